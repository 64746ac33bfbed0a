"""Runs the store's periodic upkeep."""

from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.upkeep import Upkeep
from mainspring.core.ports.wakeups import Wakeups
from mainspring.core.runtime.metrics.run_metrics import RunMetrics
from mainspring.core.runtime.service import TickingService

_EVERY: Micros = 2 * SECOND


class Housekeeper(TickingService):
    """Needs no leader: the store ensures that only one of several callers does the work."""

    def __init__(self, store: Upkeep, wakeups: Wakeups, clock: Clock, metrics: RunMetrics | None = None) -> None:
        super().__init__("housekeeper", clock, wakeups.listen(()))
        self._store = store
        self._metrics = metrics

    async def tick(self) -> Micros:
        ended = await self._store.tidy()
        if self._metrics is not None:
            self._metrics.unattempted(ended)
        return _EVERY
