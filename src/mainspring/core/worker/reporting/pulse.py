"""Logs every few seconds how many attempts a worker has completed."""

from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.wakeups import Wakeups
from mainspring.core.runtime.service import TickingService
from mainspring.core.worker.reporting.attempt_log import AttemptLog
from mainspring.core.worker.worker import Worker

_INTERVAL: Micros = 5 * SECOND
#: In log lines, ``error`` is the text of an error.
_NAMES = {"error": "failed"}


class Pulse(TickingService):
    def __init__(self, worker: Worker, attempt_log: AttemptLog, wakeups: Wakeups, clock: Clock) -> None:
        super().__init__("pulse", clock, wakeups.listen(()))
        self._worker = worker
        self._attempt_log = attempt_log
        self._before = worker.counts

    async def tick(self) -> Micros:
        now = self._worker.counts
        ended = {outcome.value: now[outcome] - self._before[outcome] for outcome in now}
        counts = {_NAMES.get(name, name): count for name, count in ended.items() if count}
        hidden = {f"{kind}_not_shown": count for kind, count in self._attempt_log.take_hidden().items()}
        # A log with a line for each run needs no counts, unless lines were left out.
        if counts and (hidden or not self._attempt_log.every_attempt):
            self.log.info("in the last 5 seconds", **counts, running=self._worker.running, **hidden)
        self._before = now
        return _INTERVAL
