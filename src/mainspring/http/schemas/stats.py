"""Counts and percentiles of runs, and what became of ticks."""

from mainspring.http.schemas.common import Wire
from mainspring.http.schemas.job_answers import SloOut


class Point(Wire):
    """What ended from this moment on, for one step."""

    time: str
    succeeded: int
    failed: int
    cancelled: int
    skipped: int
    retried: int
    """Attempts that failed, of runs that were retried and of runs that failed."""
    late_ms_mean: float
    late_ms_max: float
    took_ms_mean: float
    took_ms_max: float
    queued: int | None = None
    """The most that waited when somebody looked, which is once a minute; absent: nobody did."""
    running: int | None = None
    """The most that ran then."""
    lag_ms: float | None = None
    """The longest that the oldest of what waited had been due then."""


class Stats(Wire):
    step: str
    points: list[Point]
    queued: int
    """Now."""
    running: int
    """Now."""
    lag_ms: float
    """How long the oldest queued run has been due that a worker of its queue may run."""
    late_ms_p50: float | None = None
    """Of all that ended and had run, as the next three; within a fifth or so. Absent: nothing did."""
    late_ms_p95: float | None = None
    took_ms_p50: float | None = None
    took_ms_p95: float | None = None


class RunCounts(Wire):
    counts: dict[str, int]
    """By state."""
    at_most: int


class TickEnd(Wire):
    """A tick, and what became of it."""

    scheduled_for: str
    status: str
    """The state of its run, or `skipped`; empty: the run is not kept any more."""
    reason: str = ""
    run_id: str | None = None
    late_ms: float | None = None
    """How long after the tick its newest attempt began."""
    took_ms: float | None = None
    attempt_number: int = 0
    ticks: int = 1
    """More than one: a span of ticks too many to list. 0: too many to count."""
    datacenter: str | None = None


class History(Wire):
    job_id: str
    ticks: list[TickEnd]


class Histories(Wire):
    items: list[History]


class MissedSlo(Wire):
    """A recurring job that misses an objective."""

    job_id: str
    name: str
    tenant: str
    slo_state: SloOut


class MissedSlos(Wire):
    items: list[MissedSlo]
