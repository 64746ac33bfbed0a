"""Serves lists from a standby while it is not too far behind, otherwise from the primary."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import asyncpg

from mainspring.core.model.base.errors import MainspringError, StoreUnavailable
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.model.base.staleness import staleness
from mainspring.core.runtime.log import get_logger
from mainspring.stores.postgres.database import Answer, Connection, Database, StatementRunner

_log = get_logger("mainspring.replica")

#: A measurement of the lag is valid for this long.
_MEASURE_INTERVAL: Micros = 500 * MILLISECOND
#: A replica that does not answer is not asked again for this long.
_SUSPENDED_FOR: Micros = 10 * SECOND
_PATIENCE_SECONDS = 2
_SAMPLES = 100
#: Few connections are enough: only users list.
CONNECTIONS = 3

WRITTEN = "SELECT (pg_current_wal_lsn() - '0/0')::bigint"
REPLAYED = """
SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END - '0/0')::bigint
"""


class Replica:
    """Measures how far the standby is behind, on demand, against recent log positions of the primary."""

    def __init__(self, primary: Database, dsn: str, most: Micros) -> None:
        self._primary = primary
        self.database = Database(dsn, primary.schema, CONNECTIONS, reading=True)
        self._most = most
        self._samples: deque[tuple[Micros, int]] = deque(maxlen=_SAMPLES)
        self._measured_at: Micros | None = None
        self._opened = False
        self._measuring = asyncio.Lock()
        self._used: bool | None = None
        #: The lag at the last measurement; None: unknown.
        self.staleness: Micros | None = None

    async def is_fresh(self) -> bool:
        if self._must_measure():
            async with self._measuring:
                if self._must_measure():
                    await self._measure()
        fresh = self.staleness is not None and self.staleness <= self._most
        if fresh is not self._used:
            if fresh:
                _log.info("lists read from the replica")
            else:
                _log.warning("replica behind: lists read from the primary")
            self._used = fresh
        return fresh

    def suspend(self) -> None:
        """Stop using the replica for a while, because it did not answer."""
        self.staleness = None
        self._measured_at = _now() + _SUSPENDED_FOR

    async def close(self) -> None:
        await self.database.close()

    def _must_measure(self) -> bool:
        return self._measured_at is None or _now() - self._measured_at >= _MEASURE_INTERVAL

    async def _measure(self) -> None:
        sent = _now()
        self._samples.append((sent, await self._primary.run(_written)))
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                if not self._opened:
                    await self.database.open()
                    self._opened = True
                replayed = await self.database.run(_replayed)
        except (MainspringError, TimeoutError) as error:
            _log.warning("replica unavailable", error=str(error))
            self.suspend()
            return
        self.staleness = staleness(self._samples, replayed, sent)
        self._measured_at = sent


class ReplicaRunner(StatementRunner):
    """Reads from the replica while it is fresh and answers, otherwise from the primary."""

    def __init__(self, replica: Replica, there: StatementRunner, primary: StatementRunner) -> None:
        self.schema = primary.schema
        self.sql = primary.sql
        self._replica = replica
        self._there = there
        self._primary = primary

    async def run(self, work: Callable[[Connection], Awaitable[Answer]]) -> Answer:
        if await self._replica.is_fresh():
            try:
                return await self._there.run(work)
            except StoreUnavailable:
                self._replica.suspend()
            except (MainspringError, asyncpg.PostgresError):
                # The replica may lack something, such as a migration. If not, the primary raises the same error.
                pass
        return await self._primary.run(work)


def _now() -> Micros:
    return round(asyncio.get_running_loop().time() * SECOND)


async def _written(connection: Connection) -> int:
    return int(await connection.fetchval(WRITTEN))


async def _replayed(connection: Connection) -> int:
    return int(await connection.fetchval(REPLAYED))
