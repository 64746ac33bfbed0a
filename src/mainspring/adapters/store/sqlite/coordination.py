"""Who owns which shard, by sessions of schedulers in the same file."""

from collections.abc import Collection

from mainspring.adapters.store.sqlite import rows
from mainspring.adapters.store.sqlite.part import Part
from mainspring.domain.errors import Fenced
from mainspring.domain.ids import SessionId
from mainspring.domain.instant import Micros
from mainspring.ports.coordination import Membership


class SqliteCoordination(Part):
    async def join(self, name: str, ttl: Micros) -> SessionId:
        batch = rows.encode((name, "scheduler", ttl, "", "", (), (), "", "", (), ()))
        return SessionId(int(await self._writer.call("open_session", batch)))

    async def renew(self, member: SessionId, ttl: Micros) -> Membership:
        found = rows.membership.decode(await self._writer.call("renew", who=member, size=ttl))
        if found is None:
            raise Fenced(f"member {member} is not one any more")
        now, members, owned = found
        return Membership(now=now, members=members, owned=dict(owned))

    async def take(self, member: SessionId, shards: Collection[int]) -> dict[int, int]:
        return dict(rows.pairs.decode(await self._writer.call("take", rows.encode(list(shards)), who=member)))

    async def give_up(self, member: SessionId, shards: Collection[int]) -> None:
        await self._writer.call("give_up", rows.encode(list(shards)), who=member)

    async def leave(self, member: SessionId) -> None:
        await self._writer.call("leave", who=member)
