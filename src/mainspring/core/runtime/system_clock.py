"""The clocks of the operating system."""

import asyncio
import time

from mainspring.core.model.base.instant import SECOND, Instant, Micros


class SystemClock:
    def now(self) -> Instant:
        return time.time_ns() // 1_000

    def monotonic(self) -> Micros:
        return time.monotonic_ns() // 1_000

    async def sleep(self, duration: Micros) -> None:
        await asyncio.sleep(duration / SECOND)
