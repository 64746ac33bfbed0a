"""The port for notifications between processes. Losing all of them costs latency, never work."""

from collections.abc import Collection
from typing import Protocol

from mainspring.core.model.base.instant import Micros

#: Topics: a queue has new work, a schedule is due soon, a running run was asked to stop, a scheduler joined or left.
SCHEDULES = "schedules"
CANCELS = "cancels"
SHARDS = "shards"
#: Matches the topic of any queue.
EVERY_QUEUE = "queue:*"


def queue_topic(queue: str) -> str:
    return f"queue:{queue}"


class Wakeup(Protocol):
    """Waits for notifications on its topics."""

    async def wait(self, timeout: Micros) -> bool:
        """Wait for a notification, at most ``timeout``. True: there was one, possibly since the last wait."""
        ...

    def notify(self) -> None:
        """Notify this listener alone, from the same event loop, without a topic."""
        ...

    def close(self) -> None:
        """Stop listening."""
        ...


class Wakeups(Protocol):
    """Sends notifications between the processes that share a store. Notifications coalesce."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def notify(self, topics: Collection[str]) -> None:
        """Notify all listeners of these topics, in this process and others. Never blocks, never fails."""
        ...

    def listen(self, topics: Collection[str]) -> Wakeup: ...
