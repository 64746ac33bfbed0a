"""What is due every few seconds: vacuum of the live tables, figures by the minute, and what is to be forgotten.

Autovacuum looks once a minute, and a queue cannot wait that long.
"""

import time

import asyncpg

from mainspring.core.model.base.instant import MINUTE, SECOND, Instant, Micros
from mainspring.core.ports.storage.catalog import LOADS_AT_ONCE, LOADS_KEPT
from mainspring.core.runtime.log import get_logger
from mainspring.core.store import Unattempted
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.records.reading import Reading
from mainspring.stores.postgres.rows import STATES

_log = get_logger("mainspring.upkeep")

#: Dead rows make claims slower from about here on; a vacuum then takes some tens of milliseconds.
_DEAD_ROWS = 50_000
_AGAIN_IN_SECONDS = 20
#: What is forgotten at a time.
_AT_ONCE = 10_000
_RESUMED = 1_000
#: Figures keep this far behind: longer than a transaction may take, so that nothing ends behind their back.
_BEHIND: Micros = 15 * SECOND
#: History is rolled up in pieces of this length, and so many of them at a time: an hour in each call.
_PIECE: Micros = 2 * MINUTE
_PIECES = 30


class Upkeep(Reading):
    #: Tables whose dead rows could not be removed, and until when that is not tried again.
    _in_vain: dict[str, float]

    async def tidy(self) -> list[Unattempted]:
        # First: the queues wait for it. Figures may have an hour to catch up on.
        await self._db.run(self._vacuum)
        await self._db.transaction(self._forget)
        await self._db.transaction(self._end_pauses)
        await self._db.transaction(self._close_own_lanes)
        ended: list[asyncpg.Record] = []
        for _ in range(_PIECES):
            more, found = await self._db.transaction(self._roll_up)
            ended += found
            if not more:
                break
        await self._names.name_all({row["task"] for row in ended})
        return [
            Unattempted(task=self._names.name(row["task"]), state=STATES[row["state"]], runs=row["runs"])
            for row in ended
        ]

    async def sample_load(self) -> Instant:
        [row] = await self._db.fetch("sample_load", LOADS_KEPT, LOADS_AT_ONCE)
        return int(row["now"])

    async def _forget(self, connection: Connection) -> None:
        if not await self._is_mine(connection):
            return
        await connection.execute(self._db.sql["forget_readers"])
        await self._forget_events(connection, _AT_ONCE)
        await connection.execute(self._db.sql["prune_keys"], _AT_ONCE)

    async def _end_pauses(self, connection: Connection) -> None:
        """Those that were to end by now."""
        await connection.execute(self._db.sql["resume_due"], _RESUMED)
        await connection.execute(self._db.sql["forget_pauses"])

    async def _close_own_lanes(self, connection: Connection) -> None:
        """Workers that have nothing left for them alone claim as all others again."""
        locked = await connection.fetch(self._db.sql["lock_own_lanes"])
        if locked:
            # A statement of its own: it sees whatever was made before the locks.
            await connection.execute(self._db.sql["close_own_lanes"], [row["id"] for row in locked])

    async def _roll_up(self, connection: Connection) -> tuple[bool, list[asyncpg.Record]]:
        """A piece of history into the figures; whether there is more, and what of it ended without an attempt."""
        if not await self._is_mine(connection):
            return False, []
        row = await connection.fetchrow(self._db.sql["rolled_up"], _BEHIND)
        assert row is not None
        since, end = row["since"], row["until"]
        if since >= end:
            return False, []
        until = min(end, since + _PIECE)
        await connection.execute(self._db.sql["roll_up"], since, until)
        await connection.execute(self._db.sql["roll_up_usage"], since, until)
        return bool(until < end), await connection.fetch(self._db.sql["unattempted"], since, until)

    async def _is_mine(self, connection: Connection) -> bool:
        """One process at a time; who comes second leaves it to the first."""
        name = f"{self._db.schema}.tidy"
        return bool(await connection.fetchval(self._db.sql["try_to_tidy"], name))

    async def _vacuum(self, connection: Connection) -> None:
        rows = await connection.fetch(self._db.sql["dead_rows"])
        now = time.monotonic()  # noqa: TID251
        due = [
            row["relname"] for row in rows if row["dead"] > _DEAD_ROWS and now >= self._in_vain.get(row["relname"], 0)
        ]
        if not due or connection.is_in_transaction():
            # Behind a pooler all is done in transactions, and this cannot be: autovacuum does it.
            return
        try:
            for table in due:
                # What another process is just vacuuming is passed over. A lock of our own would outlive a caller that
                # is cancelled here: the connection goes back to the pool, and the lock with it.
                # Truncating would need a lock that stops everybody; the pages are wanted again at once anyway.
                await connection.execute(f"VACUUM (TRUNCATE off, SKIP_LOCKED on) {self._db.schema}.{table}")
            left = {row["relname"]: row["dead"] for row in await connection.fetch(self._db.sql["dead_rows"])}
            # Somebody may still see them: to go through all of them again soon would help nobody.
            self._in_vain |= {table: now + _AGAIN_IN_SECONDS for table in due if left[table] > _DEAD_ROWS}
        except asyncpg.QueryCanceledError:
            _log.warning("a vacuum took too long; autovacuum will do it", tables=due)
