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

    def __init__(self, brokers: Brokers, wakeups: Wakeups, clock: Clock) -> None:
        super().__init__("brokers", clock, wakeups.listen(()))
        self._brokers = brokers

    async def tick(self) -> Micros:
        for name, broker in self._brokers.named().items():
            for warning in await broker.look():
                self.log.warning(warning, broker=name)
        return _PROBE_EVERY if any(broker.away for broker in self._brokers.all) else MINUTE
