"""What a handler may ask for by taking a ``Context`` as its first parameter."""

import msgspec

from mainspring.domain.ids import JobId, RunId
from mainspring.domain.instant import Instant
from mainspring.domain.run import HeldRun


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt that is running. ``run_id`` and ``fence`` make outside effects idempotent."""

    run_id: RunId
    attempt: int
    """From 1; grows with every try."""
    fence: int
    """Grows with every acquisition of the run: an outside system that keeps the largest can refuse a stale attempt."""
    due: Instant
    """When the run could start at the earliest, in microseconds since 1970."""
    job_id: JobId | None = None
    scheduled_at: Instant | None = None
    """The tick of a recurring job that this run is for."""


#: What a task gets that is called directly, as the plain function it is.
LOCAL = Context(run_id=RunId("0" * 32), attempt=1, fence=0, due=0)


def context_of(held: HeldRun) -> Context:
    return Context(
        run_id=held.id,
        attempt=held.attempt,
        fence=held.fence,
        due=held.due,
        job_id=held.job_id,
        scheduled_at=held.scheduled_at,
    )
