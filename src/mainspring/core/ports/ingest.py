"""Where requests for jobs come from besides the API: a log that others write to and that we read, in batches."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Instant, Micros
from mainspring.core.model.events.record_mapping import Record


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request, as somebody has sent it. Nothing of it has been looked at."""

    body: bytes
    #: The same for the same record whenever it is read, and for no other of its tenant.
    key: str
    #: Whom it is for, where whoever sent it says so beside the body.
    tenant: str | None
    sent_at: Instant
    #: The id that its job is to have, if it was told to somebody already.
    run: str | None = None
    #: Who has submitted it, if an API vouches for that; None: whoever may write to the log.
    author: str | None = None
    #: The ``traceparent`` that it was sent with; empty: none that is recorded.
    trace: str = ""
    #: Of a topic whose records are mapped: the topic and the record. Otherwise the body is a request as it is.
    topic: str = ""
    record: Record | None = None
    receipt: object


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why no job was made of a request."""

    title: str
    detail: str
    #: As the request has it; empty: all of it.
    field: str = ""
    hint: str = ""
    #: It is not the request's fault: it is asked again.
    later: bool = False
    #: Of one that is asked again: what comes after it and has the same lane does not overtake it.
    lane: str = ""


class Accepting(Protocol):
    """The other end of a log."""

    async def accept(self, body: bytes, *, key: str, tenant: str, run: RunId, author: str) -> None:
        """When it returns the log has it. The job will have this id. Those of one key are made in order."""
        ...


class RequestLog(Protocol):
    """``EngineUnavailable`` means that it did not answer. What was taken and is not done, or refused, comes again, here
    or to another process."""

    async def close(self) -> None: ...

    async def take(self, limit: int, wait: Micros) -> list[Ask]:
        """At most ``limit``, each to one process at a time. If there is none it waits for the first."""
        ...

    async def done(self, asks: Sequence[Ask]) -> None:
        """There are jobs of these in the store."""
        ...

    async def refuse(self, refused: Sequence[tuple[Ask, Refusal]]) -> None:
        """There never will be. When it returns they are kept apart, with the reason, for people to look at."""
        ...
