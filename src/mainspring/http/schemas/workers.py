"""Live workers and schedulers in the wire format."""

from mainspring.http.schemas.common import Wire


class WorkerOut(Wire):
    worker_id: str
    name: str
    version: str
    started_at: str
    lease_until: str
    last_heartbeat_at: str
    """When its lease was last renewed."""
    running: int
    draining: bool
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    labels: dict[str, str] = {}
    priorities: tuple[int, ...] = ()
    """It has slots for each of these priorities, and takes no others; empty: it takes all."""
    slots: int | None = None
    """How many runs it has room for at a time; null: not reported. A run with a larger weight takes several slots."""
    datacenter: str = ""
    clock_offset_ms: float | None = None
    """How far its node's clock is ahead of the store's; null: not measured."""
    clock_error_ms: float | None = None
    """The error bound of `clockOffsetMs`: half of a round trip."""


class Workers(Wire):
    items: list[WorkerOut]


class SchedulerOut(Wire):
    scheduler_id: str
    name: str
    version: str
    started_at: str
    lease_until: str
    last_heartbeat_at: str
    shards: int
    datacenter: str = ""
    clock_offset_ms: float | None = None
    clock_error_ms: float | None = None
    tzdata: str = ""
    """The version of its time zone database, such as 2026f; empty: not reported."""


class Schedulers(Wire):
    items: list[SchedulerOut]
    lag_ms: float
    """How long the oldest run that should be queued has been due; 0 if there is none."""
