"""A queue: what waits, what runs, who works on it."""

from mainspring.http.schemas.common import Wire


class QueueOut(Wire):
    name: str
    queued: int
    running: int
    workers: int
    lag_ms: float
    """How long the oldest queued run has been due that a worker of the queue may run."""
    rate_per_s: float
    """What ended, over five minutes."""
    paused: bool
    pause_reason: str | None = None
    resume_at: str | None = None
    """When it goes on by itself."""
    concurrency: int | None = None
    """At most so many run at once, by its policy."""
    fair: bool = False
    """Tenants take turns."""
    stranded: dict[str, int] = {}
    """Queued runs that require a data center where no worker takes the queue, by data center."""
