"""Retention: deletes runs past their retention in small steps between live work."""

from collections.abc import Callable
from random import Random

from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.upkeep import Retention, Upkeep
from mainspring.core.ports.wakeups import Wakeups
from mainspring.core.runtime.service import TickingService
from mainspring.features.archive.service import Archiver

_INTERVAL: Micros = 60 * SECOND
_STEP_PAUSE: Micros = 100 * MILLISECOND
_STEP_PAUSE_IF_LOADED: Micros = 10 * SECOND
_LIMIT = 5_000


class RetentionKeeper(TickingService):
    """Prunes at startup, which also prepares storage for the coming days, and then about every minute."""

    def __init__(
        self,
        store: Upkeep,
        wakeups: Wakeups,
        clock: Clock,
        random: Random,
        retention: Retention,
        is_loaded: Callable[[], bool] = lambda: False,
        archiver: Archiver | None = None,
    ) -> None:
        """``is_loaded``: whether the store is under load. ``archiver``: archives runs before they are deleted."""
        super().__init__("retention", clock, wakeups.listen([]))
        self._is_loaded = is_loaded
        self._store = store
        self._random = random
        self._retention = retention
        self._pruned = 0
        self._archiver = archiver

    async def tick(self) -> Micros:
        retention, more = self._retention, False
        if self._archiver is not None:
            retention, more = await self._archiver.step(retention, lambda: self.stopping)
        pruned = await self._store.prune(retention, _LIMIT)
        self._pruned += pruned
        if pruned or more:
            return _STEP_PAUSE_IF_LOADED if self._is_loaded() else _STEP_PAUSE
        if self._pruned:
            self.log.info("runs pruned", count=self._pruned)
            self._pruned = 0
        return round(_INTERVAL * (0.75 + self._random.random() / 2))
