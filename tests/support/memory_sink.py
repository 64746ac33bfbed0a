"""A sink that keeps its events in memory: the reference of the contract tests."""

from collections import defaultdict
from collections.abc import Sequence

from mainspring.core.model.base.errors import Fenced
from mainspring.core.model.events.events import Event, Topic


class MemorySink:
    def __init__(self, name: str = "memory") -> None:
        self.name = name
        self.topics: defaultdict[Topic, list[Event]] = defaultdict(list)
        self._newest = 0

    async def open(self, source: str) -> None: ...

    async def close(self) -> None: ...

    def demands(self, kind: str, tenant: str) -> bool:
        return True

    async def publish(self, events: Sequence[Event], epoch: int) -> None:
        if epoch < self._newest:
            raise Fenced(f"epoch {self._newest} tells by now")
        self._newest = epoch
        for event in events:
            self.topics[event.topic].append(event)
