"""The ports for publishing events: sinks, and the facts about the objects that events refer to."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from mainspring.core.model.base.ids import RunId, SessionId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.events.events import Event, RunFacts, WorkerFacts


class Sink(Protocol):
    """A destination of events. ``open`` needs no answer: a process starts even while its sink is unavailable."""

    #: One word, the same in every process: the sink's offset in the outbox is stored under it.
    name: str

    async def open(self, source: str) -> None:
        """Open the sink. ``source``: the identity of the store, as included in the events."""
        ...

    async def close(self) -> None: ...

    def demands(self, kind: str, tenant: str) -> bool:
        """Return whether the sink receives such events at all; ``kind`` as in the outbox.

        Unwanted events cost little.
        """
        ...

    async def publish(self, events: Sequence[Event], epoch: int) -> None:
        """Publish events.

        When it returns, the sink has all of them, in order for each key. An empty batch does nothing.

        1. ``epoch`` grows whenever another process starts to publish. A sink that can distinguish epochs rejects an
           older one (``Fenced``), so that a frozen process cannot publish old events after new ones.
        2. ``BrokerUnavailable``: the sink did not answer. It may have received any part of the batch, and gets all of
           it again.
        """
        ...


class ReaderView(msgspec.Struct, frozen=True):
    """A reader of the outbox."""

    name: str
    #: The time of its oldest unacknowledged event. None: it is not behind.
    oldest: Instant | None


class EventFacts(Protocol):
    """The part of the store that describes the objects of events."""

    async def read_run_facts(self, runs: Sequence[RunId], since: Instant) -> list[RunFacts]:
        """Return facts about runs in any state, in any order. Runs that are no longer kept are missing.

        ``since``: none of the runs ended before this time.
        """
        ...

    async def read_worker_facts(self, sessions: Sequence[SessionId]) -> list[WorkerFacts]:
        """Return facts about workers, also for a day after their end, in any order."""
        ...

    async def readers(self) -> list[ReaderView]:
        """Return all readers of the outbox, by name."""
        ...
