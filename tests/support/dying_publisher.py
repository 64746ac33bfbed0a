"""A process that publishes events to a sink and is killed before it acknowledges them.

    python -m tests.support.dying_publisher DSN SINK ADDRESS AFTER

``AFTER``: how many batches it acknowledges before.
"""

import asyncio
import os
import signal
import sys

from mainspring.config.servers.sinks import make_sinks
from mainspring.core.model.base.instant import DAY, HOUR
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.features.events.service import Publisher
from mainspring.stores.postgres import PostgresStore


class DyingStore(PostgresStore):
    left = 0

    async def acknowledge(self, name: str, position: str) -> None:
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1
        await super().acknowledge(name, position)


async def main() -> None:
    dsn, kind, address, after = sys.argv[1:]
    store, clock = DyingStore(dsn), SystemClock()
    store.left = int(after)
    await store.open()
    [sink] = make_sinks(**{"kafka": "", "redis": "", kind: address}, redis_length=1_000_000)
    async with Publisher(store, sink, LocalWakeups(), clock, lambda: {0: 1}, DAY):
        await clock.sleep(HOUR)


if __name__ == "__main__":
    asyncio.run(main())
