"""Notifications inside one process, as events on its loop."""

import asyncio
from collections import defaultdict
from collections.abc import Collection

from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.ports.wakeups import EVERY_QUEUE, queue_topic


class LocalBell:
    """A listener that remembers a notification until the next wait."""

    def __init__(self, wakeups: "LocalWakeups", topics: Collection[str]) -> None:
        self._wakeups = wakeups
        self._topics = tuple(topics)
        self._rung = asyncio.Event()

    async def wait(self, timeout: Micros) -> bool:
        if not self._rung.is_set():
            try:
                async with asyncio.timeout(timeout / SECOND):
                    await self._rung.wait()
            except TimeoutError:
                return False
        self._rung.clear()
        return True

    def ring(self) -> None:
        self._rung.set()

    def close(self) -> None:
        self._wakeups.forget(self, self._topics)


class LocalWakeups:
    """Notifies only listeners in the same process. The other kinds are built on it."""

    def __init__(self) -> None:
        # Dictionaries, not sets: listeners are notified in the order of registration, so that simulations are
        # reproducible.
        self._bells: defaultdict[str, dict[LocalBell, None]] = defaultdict(dict)

    async def open(self) -> None: ...

    async def close(self) -> None:
        self._bells.clear()

    def ring(self, topics: Collection[str]) -> None:
        for topic in topics:
            for bell in list(self._bells.get(topic, ())):
                bell.ring()
        if EVERY_QUEUE in self._bells and any(topic.startswith(queue_topic("")) for topic in topics):
            for bell in list(self._bells[EVERY_QUEUE]):
                bell.ring()

    def ring_all(self, but: Collection[str] = ()) -> None:
        """Notify all topics: any object may have changed."""
        self.ring([topic for topic in self._bells if topic not in but])

    def listen(self, topics: Collection[str]) -> LocalBell:
        bell = LocalBell(self, topics)
        for topic in topics:
            self._bells[topic][bell] = None
        return bell

    def forget(self, bell: LocalBell, topics: Collection[str]) -> None:
        for topic in topics:
            self._bells[topic].pop(bell, None)
