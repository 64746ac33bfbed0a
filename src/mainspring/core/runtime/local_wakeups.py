"""Notifications inside one process, as events on its loop."""

import asyncio
from collections import defaultdict
from collections.abc import Collection

from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.ports.wakeups import EVERY_QUEUE, queue_topic


class LocalWakeup:
    """A listener that remembers a notification until the next wait."""

    def __init__(self, wakeups: "LocalWakeups", topics: Collection[str]) -> None:
        self._wakeups = wakeups
        self._topics = tuple(topics)
        self._notified = asyncio.Event()

    async def wait(self, timeout: Micros) -> bool:
        if not self._notified.is_set():
            try:
                async with asyncio.timeout(timeout / SECOND):
                    await self._notified.wait()
            except TimeoutError:
                return False
        self._notified.clear()
        return True

    def notify(self) -> None:
        self._notified.set()

    def close(self) -> None:
        self._wakeups.forget(self, self._topics)


class LocalWakeups:
    """Notifies only listeners in the same process. The other kinds are built on it."""

    def __init__(self) -> None:
        # Dictionaries, not sets: listeners are notified in the order of registration, so that simulations are
        # reproducible.
        self._listeners: defaultdict[str, dict[LocalWakeup, None]] = defaultdict(dict)

    async def open(self) -> None: ...

    async def close(self) -> None:
        self._listeners.clear()

    def notify(self, topics: Collection[str]) -> None:
        for topic in topics:
            for wakeup in list(self._listeners.get(topic, ())):
                wakeup.notify()
        if EVERY_QUEUE in self._listeners and any(topic.startswith(queue_topic("")) for topic in topics):
            for wakeup in list(self._listeners[EVERY_QUEUE]):
                wakeup.notify()

    def notify_all(self, but: Collection[str] = ()) -> None:
        """Notify all topics: any object may have changed."""
        self.notify([topic for topic in self._listeners if topic not in but])

    def listen(self, topics: Collection[str]) -> LocalWakeup:
        wakeup = LocalWakeup(self, topics)
        for topic in topics:
            self._listeners[topic][wakeup] = None
        return wakeup

    def forget(self, wakeup: LocalWakeup, topics: Collection[str]) -> None:
        for topic in topics:
            self._listeners[topic].pop(wakeup, None)
