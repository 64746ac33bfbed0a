"""Where events go outside: a sink, and what the store says of those whom events are about."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from mainspring.core.model.base.ids import RunId, SessionId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.events.events import Event, RunFacts, WorkerFacts


class Sink(Protocol):
    """One place that is told. ``open`` needs no answer of it: a process starts while its sink is away."""

    #: One word, the same in every process: the sink's place in the outbox is kept under it.
    name: str

    async def open(self, source: str) -> None:
        """``source``: which store this is about, as it stands in the events."""
        ...

    async def close(self) -> None: ...

    def wants(self, kind: str, tenant: str) -> bool:
        """Whether it hears of such changes at all; ``kind`` as in the outbox. What it does not want costs little."""
        ...

    async def publish(self, events: Sequence[Event], epoch: int) -> None:
        """When it returns the sink has all of them, in order for each key. An empty batch does nothing.

        ``epoch`` grows whenever another process begins to tell. Where the sink can tell them apart it refuses an older
        one (``Fenced``), so that nobody who was frozen tells old things after new ones.
        ``EngineUnavailable``: it did not answer. It may have any part of them, and is told all of them again.
        """
        ...


class ReaderView(msgspec.Struct, frozen=True):
    """A reader of the outbox."""

    name: str
    #: When the oldest happened that it has not acknowledged; None: it is not behind.
    oldest: Instant | None


class EventFacts(Protocol):
    """The part of the store that says what events are about."""

    async def facts_of(self, runs: Sequence[RunId], since: Instant) -> list[RunFacts]:
        """Wherever they are, in any order; none of them has ended before ``since``. Those that are not kept any more
        are missing."""
        ...

    async def workers_of(self, sessions: Sequence[SessionId]) -> list[WorkerFacts]:
        """Also for a day after their end; in any order."""
        ...

    async def readers(self) -> list[ReaderView]:
        """Everybody who reads the outbox, by name."""
        ...
