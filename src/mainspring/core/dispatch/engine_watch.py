"""Looks at the engines of a process once in a while: whether each answers, and whether it is set up well."""

from mainspring.core.model.base.instant import MINUTE, SECOND, Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.wakeups import Wakeups
from mainspring.core.runtime.engines import Engines
from mainspring.core.runtime.service import TickingService

#: Of one that is away: in a process that asks it nothing else nobody would notice that it is back.
_PROBE_EVERY: Micros = 5 * SECOND


class EngineWatch(TickingService):
    """What is wrong is in the log when it is first seen, and in the health of the process for as long as it is."""

    def __init__(self, engines: Engines, wakeups: Wakeups, clock: Clock) -> None:
        super().__init__("engines", clock, wakeups.listen(()))
        self._engines = engines

    async def tick(self) -> Micros:
        for name, engine in self._engines.named().items():
            for warning in await engine.look():
                self.log.warning(warning, engine=name)
        return _PROBE_EVERY if any(engine.away for engine in self._engines.all) else MINUTE
