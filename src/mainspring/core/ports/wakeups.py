"""Hints that something is worth looking at. Losing every one of them costs lateness, never work."""

from collections.abc import Collection
from typing import Protocol

from mainspring.core.model.base.instant import Micros

#: Topics: a queue has new work, a schedule is due soon, somebody asked a running run to stop, a scheduler came or left.
SCHEDULES = "schedules"
CANCELS = "cancels"
SHARDS = "shards"
#: Rings with the topic of any queue.
EVERY_QUEUE = "queue:*"


def queue_topic(queue: str) -> str:
    return f"queue:{queue}"


class Bell(Protocol):
    """Rings when one of its topics was rung since it was last waited for."""

    async def wait(self, timeout: Micros) -> bool:
        """Return at once if it has rung since the last wait, else when it rings or after ``timeout``. True: it rang."""
        ...

    def ring(self) -> None:
        """Ring this bell alone, from the same loop: somebody here knows better than the topics."""
        ...

    def close(self) -> None:
        """Listen no more."""
        ...


class Wakeups(Protocol):
    """Carries hints between the processes that share a store. Rings coalesce."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def ring(self, topics: Collection[str]) -> None:
        """Tell everybody who listens, here and elsewhere. Never blocks, never fails."""
        ...

    def listen(self, topics: Collection[str]) -> Bell: ...
