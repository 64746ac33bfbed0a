"""The port for the outbox: the stream of events, and its readers."""

from typing import Protocol

import msgspec

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import MINUTE, Instant, Micros

#: How long a batch of events is kept for readers that resume, even after every reader has acknowledged it.
EVENTS_KEPT: Micros = 10 * MINUTE


class EventBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Events of one kind and one tenant that happened in one transaction.

    Each change emits one event, named for its cause:
    1. A new run is ``submitted``, whatever its first state.
    2. A run that was waiting (scheduled or blocked) becomes ``queued``.
    3. An attempt that another one follows is ``retried``, ``released`` or ``lost``, for any next state of the run.
    4. A running run that is asked to stop is ``cancel_requested``.
    5. Becoming blocked emits no event.
    """

    #: Its offset in the stream, for ``acknowledge`` and ``events_after``. Offsets sort as text in the order of the
    #: events.
    position: str
    at: Instant
    #: For runs: run.submitted, run.queued, run.started, run.succeeded, run.failed, run.cancelled, run.skipped,
    #: run.retried, run.released, run.lost, run.cancel_requested.
    #: For budgets: budget.warned, budget.exceeded, with the ids of the budgets.
    #: For dead letters: dead_letters.opened, dead_letters.growing, with the newest run of the group.
    #: For recurring jobs: job.slo_missed, job.slo_recovered. For runs with dependencies: dependency.resolved.
    #: For workers, which belong to no tenant: worker.joined, worker.left, worker.lost (``events.id_of_worker``).
    kind: str
    #: The ids of the affected runs; of jobs, budgets or workers where ``kind`` says so.
    runs: tuple[RunId, ...]
    #: Empty: the events belong to no tenant.
    tenant: str
    #: The tasks and queues of newly created runs, in the order of ``runs``, where they are available at no cost. Empty:
    #: look them up.
    tasks: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()


class Outbox(Protocol):
    async def attach_reader(self, name: str, ttl: Micros | None = None) -> None:
        """Start writing changes to the outbox for this reader, which starts at the end of the stream. Idempotent.

        With a ttl, ``tidy`` removes a reader that has not been attached again for that long.
        """
        ...

    async def detach_reader(self, name: str) -> None:
        """Remove a reader. Without readers, no events are written and existing ones are deleted. Idempotent."""
        ...

    async def events(self, name: str, limit: int) -> list[EventBatch]:
        """Return the oldest unacknowledged batches in order, but none that a transaction in progress could precede."""
        ...

    async def acknowledge(self, name: str, position: str) -> None:
        """Mark everything up to and including ``position`` as processed by this reader."""
        ...
