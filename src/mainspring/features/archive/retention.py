"""Retention: deletes runs past their retention in small steps between live work."""

from collections.abc import Callable
from random import Random

from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.wakeups import Wakeups
from mainspring.core.runtime.service import TickingService
from mainspring.core.store import Reaping, Retention
from mainspring.features.archive.service import Archiver

_EVERY: Micros = 60 * SECOND
_BETWEEN_STEPS: Micros = 100 * MILLISECOND
_BETWEEN_STEPS_IF_PRESSED: Micros = 10 * SECOND
_LIMIT = 5_000


class RetentionKeeper(TickingService):
    """Prunes at startup, which also prepares storage for the coming days, and then about every minute."""

    def __init__(
        self,
        store: Reaping,
        wakeups: Wakeups,
        clock: Clock,
        random: Random,
        retention: Retention,
        pressed: Callable[[], bool] = lambda: False,
        archiver: Archiver | None = None,
    ) -> None:
        """``pressed``: whether the store is under load. ``archiver``: archives runs before they are deleted."""
        super().__init__("retention", clock, wakeups.listen([]))
        self._pressed = pressed
        self._store = store
        self._random = random
        self._retention = retention
        self._gone = 0
        self._archiver = archiver

    async def tick(self) -> Micros:
        retention, more = self._retention, False
        if self._archiver is not None:
            retention, more = await self._archiver.step(retention, lambda: self.stopping)
        gone = await self._store.prune(retention, _LIMIT)
        self._gone += gone
        if gone or more:
            return _BETWEEN_STEPS_IF_PRESSED if self._pressed() else _BETWEEN_STEPS
        if self._gone:
            self.log.info("pruned", gone=self._gone)
            self._gone = 0
        return round(_EVERY * (0.75 + self._random.random() / 2))
