"""Queues in the wire format."""

from mainspring.http.schemas.common import Wire


class QueueOut(Wire):
    name: str
    queued: int
    running: int
    workers: int
    lag_ms: float
    """How long the oldest queued run that a worker of the queue can run has been due."""
    rate_per_s: float
    """Completed runs per second, averaged over five minutes."""
    paused: bool
    pause_reason: str | None = None
    resume_at: str | None = None
    """When the pause ends by itself."""
    concurrency: int | None = None
    """The largest number of concurrent runs, set by the queue's policy."""
    fair: bool = False
    """Whether tenants take turns."""
    stranded: dict[str, int] = {}
    """Queued runs that require a data center without a worker for the queue, by data center."""
