"""A broker inside one process: for simulations, and the reference that the contract tests compare brokers with."""

import asyncio
import heapq
from collections import defaultdict
from collections.abc import Sequence

from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.model.cluster.hints import Hint, HintCodec, read_rank
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.dispatch import LEASE, HintDelivery


class _Queue:
    def __init__(self) -> None:
        #: By rank, with the priority.
        self.ready: list[tuple[int, bytes, int]] = []
        #: Taken messages with their priority, and when they come back.
        self.taken: dict[bytes, tuple[Micros, int]] = {}
        self.came = asyncio.Event()

    def put(self, message: bytes, priority: int = 0) -> None:
        heapq.heappush(self.ready, (read_rank(message), message, priority))
        self.came.set()

    def pop(self, priority: int | None) -> tuple[bytes, int] | None:
        """The best, or the best of a priority."""
        found = min((one for one in self.ready if priority in (None, one[2])), default=None)
        if found is None:
            return None
        self.ready.remove(found)
        heapq.heapify(self.ready)
        return found[1:]


class MemoryDispatch:
    kind = "memory"
    by_priority = True

    def __init__(self, clock: Clock, codec: HintCodec, lease: Micros = LEASE) -> None:
        self.refused = 0
        self._clock = clock
        self._codec = codec
        self._lease = lease
        self._queues: defaultdict[str, _Queue] = defaultdict(_Queue)

    async def open(self, namespace: str) -> None: ...

    async def close(self) -> None: ...

    async def publish(self, hints: Sequence[Hint]) -> None:
        for hint in hints:
            self.put(hint.queue, self._codec.encode(hint), hint.priority)

    def put(self, queue: str, message: bytes, priority: int = 0) -> None:
        """Put any message into the queue."""
        self._queues[queue].put(message, priority)

    async def take(self, queue: str, limit: int, wait: Micros) -> list[HintDelivery]:
        return await self._take(queue, limit, wait, None)

    async def take_priority(self, queue: str, priority: int, limit: int, wait: Micros) -> list[HintDelivery]:
        return await self._take(queue, limit, wait, priority)

    async def _take(self, queue: str, limit: int, wait: Micros, priority: int | None) -> list[HintDelivery]:
        place = self._queues[queue]
        until = self._clock.monotonic() + wait
        while True:
            found = self._pop(queue, place, limit, priority)
            left = until - self._clock.monotonic()
            if found or left <= 0:
                return found
            place.came.clear()
            try:
                async with asyncio.timeout(left / SECOND):
                    await place.came.wait()
            except TimeoutError:
                continue

    def _pop(self, queue: str, place: _Queue, limit: int, priority: int | None) -> list[HintDelivery]:
        now = self._clock.monotonic()
        for message, (until, of) in [*place.taken.items()]:
            if until <= now:
                del place.taken[message]
                place.put(message, of)
        found: list[HintDelivery] = []
        while len(found) < limit and (popped := place.pop(priority)) is not None:
            message, of = popped
            hint = self._codec.decode(queue, message)
            if hint is None:
                self.refused += 1
            elif not any(delivery.receipt == message for delivery in found):
                place.taken[message] = now + self._lease, of
                found.append(HintDelivery(hint, message))
        return found

    async def done(self, deliveries: Sequence[HintDelivery]) -> None:
        for delivery in deliveries:
            receipt = delivery.receipt
            assert isinstance(receipt, bytes)
            self._queues[delivery.hint.queue].taken.pop(receipt, None)

    async def depth(self, queue: str) -> int:
        return len(self._queues[queue].ready)

    async def warnings(self) -> list[str]:
        return []

    def flush(self) -> None:
        """Forget everything."""
        for place in self._queues.values():
            place.ready.clear()
            place.taken.clear()
