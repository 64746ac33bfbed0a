"""SQLite: shard ownership by the sessions of schedulers."""

from collections.abc import Collection, Mapping

import apsw

from mainspring.core.model.base.errors import Fenced
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import Instant, Micros
from mainspring.core.model.cluster.clock_guard import ClockReading
from mainspring.core.model.schedules.cron import find_zone_database
from mainspring.core.ports.storage.coordination import Membership
from mainspring.stores.sqlite.base import SqliteBase
from mainspring.stores.sqlite.rows.answers import decode_epochs, decode_renewal
from mainspring.stores.sqlite.rows.encoding import encode


class SqliteCoordination(SqliteBase):
    async def join(self, name: str, ttl: Micros) -> SessionId:
        batch = encode((name, "scheduler", ttl, "", "", (), (), "", "", (), (), None))
        session = SessionId(int(await self._writer.call("open_session", batch)))
        # The clock guard reports it in other stores, but does not run where the store's clock is this machine's.
        version = find_zone_database().version

        def note(connection: apsw.Connection, _: Instant) -> None:
            connection.execute("UPDATE session SET tzdata = :tzdata WHERE id = :id", {"tzdata": version, "id": session})

        await self._write(note)
        return session

    async def renew(self, member: SessionId, ttl: Micros) -> Membership:
        answer = decode_renewal(await self._writer.call("renew", session=member, argument=ttl))
        if answer is None:
            raise Fenced(f"member {member} is not one any more")
        owned = {row.shard: row.epoch for row in answer.owned}
        return Membership(now=answer.now, members=answer.members, owned=owned, first_end=answer.first_end)

    async def take(self, member: SessionId, shards: Collection[int]) -> dict[int, int]:
        return decode_epochs(await self._writer.call("take", encode(list(shards)), session=member))

    async def give_up(self, member: SessionId, shards: Collection[int]) -> None:
        await self._writer.call("release_shards", encode(list(shards)), session=member)

    async def record_clock(self, sessions: Collection[SessionId], reading: ClockReading, tzdata: str) -> None:
        def put(connection: apsw.Connection, _: Instant) -> None:
            statement = (
                "UPDATE session SET clock_offset = :offset, clock_error = :error, tzdata = :tzdata WHERE id = :session"
            )
            values = {"offset": reading.offset, "error": reading.error, "tzdata": tzdata}
            connection.executemany(statement, [values | {"session": session} for session in sessions])

        await self._write(put)

    async def leave(self, member: SessionId) -> None:
        await self._writer.call("leave", session=member)

    async def identity(self) -> str:
        return await self._reader.read("store_id")

    async def epochs(self, shards: Collection[int]) -> dict[int, int]:
        return decode_epochs(await self._reader.read("epochs", shards=encode(list(shards))))

    async def seal(self, member: SessionId, epochs: Mapping[int, int]) -> dict[int, int]:
        batch = encode(list(epochs.items()))
        return decode_epochs(await self._writer.call("take_at_epochs", batch, session=member))
