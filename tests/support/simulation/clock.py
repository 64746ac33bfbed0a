"""Clocks of a world: every process has its own, and so has the store."""

import asyncio

from mainspring.core.model.base.instant import SECOND, Instant, Micros
from tests.support.simulation.loop import WorldLoop

#: The monotonic clock starts at a value unrelated to the wall clock.
_UPTIME: Micros = 5_000 * SECOND


class NodeClock:
    """The wall clock has a skew that can change at any moment. The monotonic clock runs a little fast or slow."""

    def __init__(self, loop: WorldLoop, skew: Micros = 0, drift: float = 0.0) -> None:
        self._loop = loop
        self.skew = skew
        self._rate = 1.0 + drift

    def now(self) -> Instant:
        return self._loop.true_now() + self.skew

    def monotonic(self) -> Micros:
        return _UPTIME + round(self._loop.elapsed * self._rate)

    async def sleep(self, duration: Micros) -> None:
        await asyncio.sleep(duration / SECOND)


class StoreClock:
    """The clock that decides which runs are due. It jumps when another server takes over."""

    def __init__(self, loop: WorldLoop) -> None:
        self._loop = loop
        self.offset: Micros = 0

    def now(self) -> Instant:
        return self._loop.true_now() + self.offset

    def monotonic(self) -> Micros:
        return self._loop.elapsed

    async def sleep(self, duration: Micros) -> None:
        raise NotImplementedError("a store does not sleep")
