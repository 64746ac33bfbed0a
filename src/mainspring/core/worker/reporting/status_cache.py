"""Connects a worker with the status cache: shows its status, and receives cancel flags at once."""

from mainspring.core.model.base.errors import BrokerUnavailable
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros, isoformat
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.status_cache import StatusCache
from mainspring.core.ports.wakeups import Wakeups
from mainspring.core.runtime.service import TickingService
from mainspring.core.worker.worker import Worker

_SHOW_EVERY: Micros = 5 * SECOND
#: The length of one wait: a worker that stops waits for its end.
_LISTEN_FOR: Micros = SECOND // 2
#: The shortest interval between checks: programs that can write flags trigger at most this many heartbeats.
_BETWEEN_LOOKS: Micros = 50 * MILLISECOND
_AWAY: Micros = 2 * SECOND


class WorkerStatusWriter(TickingService):
    def __init__(self, worker: Worker, status_cache: StatusCache, wakeups: Wakeups, clock: Clock) -> None:
        super().__init__("worker.status", clock, wakeups.listen(()))
        self._worker = worker
        self._status_cache = status_cache

    async def tick(self) -> Micros:
        worker = self._worker
        status = {
            "name": worker.settings.name,
            "queues": dict(worker.settings.queues),
            "running": worker.running,
            "at": isoformat(self.clock.now()),
        }
        try:
            await self._status_cache.show_worker(worker.settings.name, status)
        except BrokerUnavailable as error:
            self.log.debug("cannot write worker status", error=str(error))
        return _SHOW_EVERY

    async def stop(self) -> None:
        was_running = not self.stopping
        await super().stop()
        if was_running:
            try:
                await self._status_cache.hide_worker(self._worker.settings.name)
            except BrokerUnavailable as error:
                self.log.debug("cannot remove worker status", error=str(error))


class FlagListener(TickingService):
    """Waits for flags. A flag only means that the store should be checked: the store says which runs are to stop."""

    def __init__(self, worker: Worker, status_cache: StatusCache, wakeups: Wakeups, clock: Clock) -> None:
        super().__init__("worker.flags", clock, wakeups.listen(()))
        self._worker = worker
        self._status_cache = status_cache

    async def tick(self) -> Micros:
        try:
            if await self._status_cache.flagged(_LISTEN_FOR):
                self._worker.look_for_cancels()
        except BrokerUnavailable as error:
            self.log.debug("cannot read cancel flags", error=str(error))
            return _AWAY
        return _BETWEEN_LOOKS
