"""The port for job requests from an external log (Kafka), which is read in batches."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Instant, Micros
from mainspring.core.model.events.record_mapping import Record


class JobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it was received. Nothing in it has been validated."""

    body: bytes
    #: The same key whenever the same record is read, and unique within its tenant.
    key: str
    #: The tenant, if the sender gave it outside the body.
    tenant: str | None
    sent_at: Instant
    #: The id its job must have, if that id was already returned to the client.
    run: str | None = None
    #: The author, if an API vouches for it. None: any program that may write to the log.
    author: str | None = None
    #: The ``traceparent`` sent with it. Empty: none that is recorded.
    trace: str = ""
    #: For topics with mapped records: the topic and the record. Otherwise the body is the request itself.
    topic: str = ""
    record: Record | None = None
    receipt: object


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    """Why no job was created from a request."""

    title: str
    detail: str
    #: The field as named in the request. Empty: the whole request.
    field: str = ""
    hint: str = ""
    #: The request is not at fault and is tried again.
    later: bool = False
    #: For a request that is tried again: later requests with the same lane do not overtake it.
    lane: str = ""


class RequestLogWriter(Protocol):
    """The writing side of the log."""

    async def accept(self, body: bytes, *, key: str, tenant: str, run: RunId, author: str) -> None:
        """Append a request; returns when the log has it.

        The job gets this id. Requests with one key are processed in order.
        """
        ...


class RequestLogReader(Protocol):
    """The reading side of the log. ``BrokerUnavailable`` is raised if the log does not answer.

    Requests that were taken and neither ``done`` nor refused are delivered again, to this process or another.
    """

    async def close(self) -> None: ...

    async def take(self, limit: int, wait: Micros) -> list[JobRequest]:
        """Take at most ``limit`` requests, each delivered to one process at a time.

        Waits for the first if there is none.
        """
        ...

    async def done(self, requests: Sequence[JobRequest]) -> None:
        """Confirm that the jobs of these requests are in the store."""
        ...

    async def refuse(self, refused: Sequence[tuple[JobRequest, Rejection]]) -> None:
        """Move requests that can never become jobs to a separate place, with the reason, for inspection.

        Returns when they are stored there.
        """
        ...
