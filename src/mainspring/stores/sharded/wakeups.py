"""Wake-ups between the processes of a sharded store: every process listens to all servers."""

import asyncio
from collections.abc import Collection, Sequence

from mainspring.core.ports.clock import Clock
from mainspring.core.runtime.local_wakeups import LocalWakeup, LocalWakeups
from mainspring.stores.postgres.wakeups import PostgresWakeups


class ShardedWakeups:
    def __init__(self, addresses: Sequence[str], clock: Clock, schema: str = "mainspring") -> None:
        self._local = LocalWakeups()
        #: One for each server, in the order of the addresses. A submit may send a notification along with its commit.
        self.parts = [PostgresWakeups(address, clock, schema, self._local) for address in addresses]

    async def open(self) -> None:
        for part in self.parts:
            await part.open()

    async def close(self) -> None:
        await asyncio.gather(*(part.close() for part in self.parts))

    def notify(self, topics: Collection[str]) -> None:
        """Notify through one server: one whose commit has sent the notification already, or the first available one."""
        notified = [part for part in self.parts if part.has_notified(topics)]
        there = [part for part in self.parts if part.reaches_others]
        (notified or there or self.parts)[0].notify(topics)

    def listen(self, topics: Collection[str]) -> LocalWakeup:
        return self._local.listen(topics)
