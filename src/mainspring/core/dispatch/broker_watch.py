"""Checks the brokers of a process periodically: whether each answers, and whether it is configured well."""

from mainspring.core.model.base.instant import MINUTE, SECOND, Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.wakeups import Wakeups
from mainspring.core.runtime.brokers import Brokers
from mainspring.core.runtime.service import TickingService

#: The interval for an unavailable broker: a process that calls it for nothing else would not notice its return.
_PROBE_EVERY: Micros = 5 * SECOND


class BrokerWatch(TickingService):
    """Logs each problem when it is first seen, and keeps it in the health of the process as long as it lasts."""

    def __init__(self, engines: Brokers, wakeups: Wakeups, clock: Clock) -> None:
        super().__init__("engines", clock, wakeups.listen(()))
        self._engines = engines

    async def tick(self) -> Micros:
        for name, engine in self._engines.named().items():
            for warning in await engine.look():
                self.log.warning(warning, engine=name)
        return _PROBE_EVERY if any(engine.away for engine in self._engines.all) else MINUTE
