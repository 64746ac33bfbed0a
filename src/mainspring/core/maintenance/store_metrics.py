"""Metrics of the store itself: growth, transactions that hold back vacuum, and unattended work."""

import asyncio

from mainspring.core.model.base.errors import MainspringError
from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.health import StoreHealth, Vitals
from mainspring.core.runtime.cached import Cached
from mainspring.core.runtime.log import get_logger
from mainspring.core.runtime.metrics import declared
from mainspring.core.runtime.metrics.exposition import Exposition
from mainspring.core.runtime.metrics.metric import Metric

_PATIENCE_SECONDS = 5

_log = get_logger("mainspring.metrics")


class StoreVitals:
    """Reads metrics of the store on a separate connection, so that an exhausted pool does not hide them.

    A read takes some milliseconds, so its result is cached for a while.
    """

    def __init__(self, health: StoreHealth, clock: Clock, every: Micros) -> None:
        self._read = Cached(health.vitals, clock, every)
        self._failing = False

    async def export(self, exposition: Exposition) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                servers = await self._read.get()
        except (MainspringError, TimeoutError) as error:
            if not self._failing:
                _log.warning("cannot read store metrics", error=str(error) or "no answer in time")
            self._failing = True
            return
        self._failing = False
        exposition.put(declared.DEAD_LETTERS, sum(one.dead_letters for one in servers))
        exposition.put(declared.SCHEDULED, sum(one.scheduled for one in servers))
        exposition.put(declared.BLOCKED, sum(one.blocked for one in servers))
        exposition.put(declared.MISSED, sum(one.missed_objectives for one in servers))
        lost = [one.lost_workers for one in servers if one.lost_workers is not None]
        if lost:
            # A lost worker is lost on every server, so the counts are not added.
            exposition.put(declared.LOST_WORKERS, max(lost))
        exposition.put(declared.STAGING_LAG, max(one.staging_lag for one in servers) / SECOND)
        exposition.put(declared.FIRING_LAG, max(one.firing_lag for one in servers) / SECOND)
        for number, one in enumerate(servers):
            _tell_of_server(exposition, one, str(number))


def _tell_of_server(exposition: Exposition, vitals: Vitals, server: str) -> None:
    def known(metric: Metric, value: float | None) -> None:
        if value is not None:
            exposition.put(metric, value, server)

    known(declared.STORE_SIZE, vitals.size)
    known(declared.DISK_FREE, vitals.disk_free)
    known(declared.OLDEST, _seconds(vitals.oldest_transaction))
    known(declared.XID_AGE, vitals.transaction_id_age)
    known(declared.CONNECTIONS, vitals.connections)
    known(declared.CONNECTIONS_LIMIT, vitals.connections_limit)
    known(declared.WAL_KEPT, vitals.wal_kept)
    known(declared.STANDBY_LAG, _seconds(vitals.replication_lag))
    known(declared.STANDBY_BYTES, vitals.replication_bytes)
    for table in vitals.tables:
        exposition.put(declared.DEAD_ROWS, table.dead, server, table.name)
        exposition.put(declared.LIVE_ROWS, table.live, server, table.name)
        if table.vacuumed_ago is not None:
            exposition.put(declared.VACUUM_AGE, table.vacuumed_ago / SECOND, server, table.name)


def _seconds(time: Micros | None) -> float | None:
    return None if time is None else time / SECOND
