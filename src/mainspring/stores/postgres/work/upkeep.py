"""Maintenance every few seconds: vacuum of the live tables, metrics per minute, ended pauses and pruning.

Autovacuum runs once a minute, which is too rare for a queue.
"""

import time

import asyncpg

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import MINUTE, SECOND, Instant, Micros
from mainspring.core.ports.storage.catalog import LOADS_AT_ONCE, LOADS_KEPT
from mainspring.core.ports.storage.upkeep import UnattemptedRuns
from mainspring.core.runtime.log import get_logger
from mainspring.stores.postgres.codes import STATES
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.records.reading import ReadMixin

_log = get_logger("mainspring.upkeep")

#: Claims become slower from about this many dead rows; a vacuum then takes some tens of milliseconds.
_DEAD_ROWS = 50_000
_AGAIN_IN_SECONDS = 20
#: How many rows are pruned at a time.
_AT_ONCE = 10_000
_RESUMED = 1_000
#: Metrics stay this far behind. It is longer than a transaction may take, so no run ends in a period already counted.
_BEHIND: Micros = 15 * SECOND
#: History is rolled up in pieces of this length, and at most ``_PIECES`` of them per call: an hour.
_PIECE: Micros = 2 * MINUTE
_PIECES = 30


class MaintenanceMixin(ReadMixin):
    #: Tables whose dead rows could not be removed, and until when that is not tried again.
    _in_vain: dict[str, float]

    async def tidy(self) -> list[UnattemptedRuns]:
        # First, because the queues need it. The roll-up may have an hour to catch up on.
        await self._db.run(self._vacuum)
        await self._db.transaction(self._forget)
        await self._db.transaction(self._end_pauses)
        await self._db.transaction(self._close_own_groups)
        ended: list[asyncpg.Record] = []
        for _ in range(_PIECES):
            more, found = await self._db.transaction(self._roll_up)
            ended += found
            if not more:
                break
        await self._names.load_names({row["task"] for row in ended})
        return [
            UnattemptedRuns(task=self._names.get_name(row["task"]), state=STATES[row["state"]], runs=row["runs"])
            for row in ended
        ]

    async def sample_load(self) -> Instant:
        [row] = await self._db.fetch("sample_load", kept=LOADS_KEPT, limit=LOADS_AT_ONCE)
        return int(row["now"])

    async def queue_fronts(self, limit: int) -> list[RunId]:
        return [RunId(row["id"]) for row in await self._db.fetch("queue_fronts", limit=limit)]

    async def _forget(self, connection: Connection) -> None:
        if not await self._is_mine(connection):
            return
        await connection.execute(*self._db.sql["prune_readers"].bind())
        await self._forget_events(connection, _AT_ONCE)
        await connection.execute(*self._db.sql["prune_idempotency_keys"].bind(limit=_AT_ONCE))

    async def _end_pauses(self, connection: Connection) -> None:
        """Resume jobs whose pause has ended, and delete other pauses a day after their end."""
        await connection.execute(*self._db.sql["resume_due"].bind(limit=_RESUMED))
        await connection.execute(*self._db.sql["prune_pauses"].bind())

    async def _close_own_groups(self, connection: Connection) -> None:
        """Close the own claim groups of workers that no run targets any more: they claim like all others again."""
        locked = await connection.fetch(*self._db.sql["lock_own_groups"].bind())
        if locked:
            # A separate statement: it sees every run that was made before the locks.
            await connection.execute(*self._db.sql["close_own_groups"].bind(workers=[row["id"] for row in locked]))

    async def _roll_up(self, connection: Connection) -> tuple[bool, list[asyncpg.Record]]:
        """Roll up a piece of history into metrics.

        Return whether there is more, and the runs in it that ended without an attempt.
        """
        if not await self._is_mine(connection):
            return False, []
        row = await connection.fetchrow(*self._db.sql["rolled_up"].bind(behind=_BEHIND))
        assert row is not None
        since, end = row["since"], row["until"]
        if since >= end:
            return False, []
        until = min(end, since + _PIECE)
        await connection.execute(*self._db.sql["roll_up"].bind(since=since, until=until))
        await connection.execute(*self._db.sql["roll_up_usage"].bind(since=since, until=until))
        return bool(until < end), await connection.fetch(*self._db.sql["unattempted"].bind(since=since, until=until))

    async def _is_mine(self, connection: Connection) -> bool:
        """Whether this process may tidy. One does at a time; a second process leaves it to the first."""
        name = f"{self._db.schema}.tidy"
        return bool(await connection.fetchval(*self._db.sql["try_lock"].bind(name=name)))

    async def _vacuum(self, connection: Connection) -> None:
        rows = await connection.fetch(*self._db.sql["dead_rows"].bind())
        now = time.monotonic()  # noqa: TID251
        due = [
            row["relname"] for row in rows if row["dead"] > _DEAD_ROWS and now >= self._in_vain.get(row["relname"], 0)
        ]
        if not due or connection.is_in_transaction():
            # Behind a pooler everything runs in transactions, where VACUUM cannot: it is left to autovacuum.
            return
        try:
            for table in due:
                # SKIP_LOCKED skips a table that another process is vacuuming. A lock of our own would outlive a caller
                # that is canceled here: the connection returns to the pool with its lock. Truncating would need a lock
                # that blocks every query, and the pages are needed again at once.
                await connection.execute(f"VACUUM (TRUNCATE off, SKIP_LOCKED on) {self._db.schema}.{table}")
            left = {row["relname"]: row["dead"] for row in await connection.fetch(*self._db.sql["dead_rows"].bind())}
            # A transaction may still see these rows: scanning all of them again soon would not help.
            self._in_vain |= {table: now + _AGAIN_IN_SECONDS for table in due if left[table] > _DEAD_ROWS}
        except asyncpg.QueryCanceledError:
            _log.warning("vacuum timed out: left to autovacuum", tables=due)
