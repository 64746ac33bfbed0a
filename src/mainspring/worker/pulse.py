"""Says in the log, every few seconds, what a worker has done: a sign of life for whoever watches."""

from mainspring.domain.instant import SECOND, Micros
from mainspring.ports.clock import Clock
from mainspring.ports.wakeups import Wakeups
from mainspring.runtime.service import TickingService
from mainspring.worker.worker import Worker

_EVERY: Micros = 5 * SECOND
#: What is called an error in a log is the text of one.
_WORDS = {"error": "failed"}


class Pulse(TickingService):
    def __init__(self, worker: Worker, wakeups: Wakeups, clock: Clock) -> None:
        super().__init__("pulse", clock, wakeups.listen(()))
        self._worker = worker
        self._before = worker.counts

    async def tick(self) -> Micros:
        now = self._worker.counts
        ended = {outcome.value: now[outcome] - self._before[outcome] for outcome in now}
        lately = {_WORDS.get(name, name): count for name, count in ended.items() if count}
        if lately:
            self.log.info("in the last 5 seconds", **lately, running=self._worker.running)
        self._before = now
        return _EVERY
