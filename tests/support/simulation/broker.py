"""A broker that all processes share. While faults are on, it loses, repeats, delays and forgets hints."""

from collections import defaultdict
from collections.abc import Sequence

from mainspring.core.model.base.errors import BrokerUnavailable
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.model.cluster.hints import Hint, HintCodec
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.dispatch import HintDelivery
from tests.support.memory_dispatch import MemoryDispatch, _Queue
from tests.support.simulation.faults import CALM, Faults
from tests.support.simulation.loop import Process

_LOOK: Micros = 20 * MILLISECOND
#: Probabilities, per hint and per batch.
_LOST, _TWICE, _LATE, _FORGOTTEN, _AWAY = 0.2, 0.3, 0.2, 0.01, 0.05


class BrokerServer:
    """The content of the server."""

    def __init__(self) -> None:
        self.queues: defaultdict[str, _Queue] = defaultdict(_Queue)


class LossyBroker(MemoryDispatch):
    """The broker as one process sees it."""

    def __init__(self, server: BrokerServer, process: Process, faults: Faults, clock: Clock) -> None:
        super().__init__(clock, HintCodec(b"world"))
        self._queues = server.queues
        self._process = process
        self._faults = faults

    def _goes_wrong(self, how_often: float) -> bool:
        return self._faults.rates is not CALM and self._faults.chance.random() < how_often

    async def _there(self) -> None:
        await self._clock.sleep(MILLISECOND)
        if self._goes_wrong(_AWAY) or self._process.name in self._faults.cut_off:
            raise BrokerUnavailable("it is away")

    async def publish(self, hints: Sequence[Hint]) -> None:
        await self._there()
        if self._goes_wrong(_FORGOTTEN):
            self.flush()
        for hint in hints:
            message = self._codec.encode(hint)
            for _ in range(2 if self._goes_wrong(_TWICE) else 1):
                if self._goes_wrong(_LATE):
                    wait = self._faults.chance.random() * 10
                    self._process.loop.call_later(wait, self.put, hint.queue, message, hint.priority)
                elif not self._goes_wrong(_LOST):
                    self.put(hint.queue, message, hint.priority)

    async def _take(self, queue: str, limit: int, wait: Micros, priority: int | None) -> list[HintDelivery]:
        until = self._clock.monotonic() + wait
        while True:
            await self._there()
            found = self._pop(queue, self._queues[queue], limit, priority)
            if found or self._clock.monotonic() >= until:
                return found
            await self._clock.sleep(min(_LOOK, SECOND))

    async def depth(self, queue: str) -> int:
        await self._there()
        return await super().depth(queue)
