"""Shards owned by lease, in the store itself."""

from collections.abc import Collection

from mainspring.adapters.store.postgres.database import Connection
from mainspring.adapters.store.postgres.part import Part
from mainspring.domain.errors import Fenced
from mainspring.domain.ids import SessionId
from mainspring.domain.instant import Micros
from mainspring.ports.coordination import Membership


class Coordination(Part):
    async def join(self, name: str, ttl: Micros) -> SessionId:
        rows = await self._db.fetch("open_session", 2, name, "", "", ttl, (), (), "", "", (), ())
        return SessionId(rows[0]["id"])

    async def renew(self, member: SessionId, ttl: Micros) -> Membership:
        # Statements of their own, none waiting for the client inside a transaction: a frozen member holds no lock.
        async def work(connection: Connection) -> Membership:
            now = await connection.fetchval(self._db.sql["renew"], member, ttl)
            if now is None:
                raise Fenced(f"member {member} was buried: its lease ran out")
            await connection.execute(self._db.sql["bury"])
            members = await connection.fetch(self._db.sql["members"])
            owned = await connection.fetch(self._db.sql["owned"], member)
            return Membership(
                now=now,
                members=tuple(SessionId(row["id"]) for row in members),
                owned={row["id"]: row["epoch"] for row in owned},
            )

        return await self._db.run(work)

    async def take(self, member: SessionId, shards: Collection[int]) -> dict[int, int]:
        rows = await self._db.fetch("take", member, sorted(shards))
        return {row["id"]: row["epoch"] for row in rows}

    async def give_up(self, member: SessionId, shards: Collection[int]) -> None:
        await self._db.execute("give_up", member, sorted(shards))

    async def leave(self, member: SessionId) -> None:
        await self._db.execute("leave", member)
