"""Watches the health of the store, reports what harms it, and postpones background work while it is under pressure."""

from collections.abc import Callable, Mapping

from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.model.cluster.diagnosis import Finding, Level
from mainspring.core.model.cluster.store_health import changed, find_worst, is_pressed
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.health import PressureReads
from mainspring.core.ports.wakeups import Wakeups
from mainspring.core.runtime.service import TickingService

_EVERY: Micros = 15 * SECOND
_SHARD = 0


class HealthGuard(TickingService):
    """Checks in every scheduler, so that each knows when to hold back.

    The owner of the first shard logs the findings.
    """

    def __init__(
        self, store: PressureReads, wakeups: Wakeups, clock: Clock, owned: Callable[[], Mapping[int, int]]
    ) -> None:
        super().__init__("health", clock, wakeups.listen([]))
        self._store = store
        self._owned = owned
        self._worst: dict[str, Finding] = {}

    @property
    def pressed(self) -> bool:
        """True if background work should wait."""
        return is_pressed(self._worst.values())

    async def tick(self) -> Micros:
        before, was_pressed = self._worst, self.pressed
        self._worst = find_worst(await self._store.read_pressure())
        if _SHARD in self._owned():
            for finding in changed(before, self._worst):
                self._say(finding)
        if self.pressed is not was_pressed:
            self.log.info("background work paused" if self.pressed else "background work resumed")
        return _EVERY

    def health(self) -> dict[str, object]:
        bad = [finding for finding in self._worst.values() if finding.level is not Level.OK]
        return {finding.check: finding.says for finding in bad}

    def _say(self, finding: Finding) -> None:
        match finding.level:
            case Level.OK:
                self.log.info("store condition resolved", check=finding.check, says=finding.says)
            case Level.WARNING:
                self.log.warning("the store", check=finding.check, says=finding.says, advice=finding.advice)
            case Level.PROBLEM:
                self.log.error("the store", check=finding.check, says=finding.says, advice=finding.advice)
