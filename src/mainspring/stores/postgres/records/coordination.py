"""Coordination inside the store: shards owned by lease."""

from collections.abc import Collection, Mapping

from mainspring.core.model.base.errors import Fenced
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import Micros
from mainspring.core.model.cluster.clock_guard import ClockReading
from mainspring.core.ports.storage.coordination import Membership
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.mixin import PostgresMixin
from mainspring.stores.postgres.schema import newest


class CoordinationMixin(PostgresMixin):
    _store_id: str

    async def join(self, name: str, ttl: Micros) -> SessionId:
        rows = await self._db.fetch(
            "open_session",
            kind=2,
            name=name,
            datacenter="",
            version="",
            ttl=ttl,
            queues=(),
            tasks=(),
            owner="",
            serves="",
            labels=(),
            priorities=(),
            slots=None,
        )
        return SessionId(rows[0]["id"])

    async def renew(self, member: SessionId, ttl: Micros) -> Membership:
        # Separate statements, none inside a transaction that waits for the client: a frozen member holds no lock.
        async def work(connection: Connection) -> Membership:
            now = await connection.fetchval(*self._db.sql["renew"].bind(member=member, ttl=ttl))
            if now is None:
                raise Fenced(f"the lease of member {member} has expired")
            await connection.execute(*self._db.sql["expire_members"].bind())
            members = await connection.fetch(*self._db.sql["members"].bind())
            owned = await connection.fetch(*self._db.sql["owned"].bind(member=member))
            return Membership(
                now=now,
                members=tuple(SessionId(row["id"]) for row in members),
                owned={row["id"]: row["epoch"] for row in owned},
                first_end=min((row["lease_until"] - now for row in members if row["id"] != member), default=None),
            )

        return await self._db.run(work)

    async def take(self, member: SessionId, shards: Collection[int]) -> dict[int, int]:
        rows = await self._db.fetch("take_shards", member=member, shards=sorted(shards))
        return {row["id"]: row["epoch"] for row in rows}

    async def give_up(self, member: SessionId, shards: Collection[int]) -> None:
        await self._db.execute("release_shards", member=member, shards=sorted(shards))

    async def record_clock(self, sessions: Collection[SessionId], reading: ClockReading, tzdata: str) -> None:
        await self._db.execute(
            "report_clock",
            sessions=list(sessions),
            clock_offset=reading.offset,
            clock_error=reading.error,
            knows=newest(),
            tzdata=tzdata,
        )

    async def leave(self, member: SessionId) -> None:
        await self._db.execute("leave", member=member)

    async def identity(self) -> str:
        return str(self._store_id)

    async def epochs(self, shards: Collection[int]) -> dict[int, int]:
        return {row["id"]: row["epoch"] for row in await self._db.fetch("epochs", shards=sorted(shards))}

    async def seal(self, member: SessionId, epochs: Mapping[int, int]) -> dict[int, int]:
        rows = await self._db.fetch("raise_epochs", member=member, shards=list(epochs), epochs=list(epochs.values()))
        return {row["id"]: row["epoch"] for row in rows}
