"""Clocks that a test moves."""

import asyncio
from heapq import heappop, heappush
from itertools import count

from mainspring.core.model.base.instant import Instant, Micros, parse_instant
from mainspring.core.runtime.system_clock import SystemClock

START: Instant = parse_instant("2026-03-01T00:00:00Z")


class ManualClock:
    """Stands still until a test calls ``advance``. Sleepers wake in the order of their times."""

    def __init__(self, start: Instant = START) -> None:
        self._now = start
        self._monotonic: Micros = 0
        self._order = count()
        self._sleepers: list[tuple[Micros, int, asyncio.Future[None]]] = []

    def now(self) -> Instant:
        return self._now

    def monotonic(self) -> Micros:
        return self._monotonic

    async def sleep(self, duration: Micros) -> None:
        if duration <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heappush(self._sleepers, (self._monotonic + duration, next(self._order), future))
        await future

    def advance(self, duration: Micros) -> None:
        """Let time pass. Sleepers that wake run when the caller next awaits."""
        self._now += duration
        self._monotonic += duration
        while self._sleepers and self._sleepers[0][0] <= self._monotonic:
            _, _, future = heappop(self._sleepers)
            if not future.done():
                future.set_result(None)

    def jump(self, duration: Micros) -> None:
        """Set the wall clock forward or back, as an administrator would. No time passes."""
        self._now += duration


class SkippingClock(SystemClock):
    """The machine's clocks, but a test can skip time. Sleeps take as long as ever."""

    def __init__(self) -> None:
        self._skipped: Micros = 0

    def skip(self, duration: Micros) -> None:
        self._skipped += duration

    def now(self) -> Instant:
        return super().now() + self._skipped

    def monotonic(self) -> Micros:
        return super().monotonic() + self._skipped
