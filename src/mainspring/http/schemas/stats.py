"""Statistics of runs, and the results of ticks."""

from mainspring.http.schemas.common import Wire
from mainspring.http.schemas.job_answers import SloOut


class Point(Wire):
    """The runs that ended in one step, which begins at `time`."""

    time: str
    succeeded: int
    failed: int
    cancelled: int
    skipped: int
    retried: int
    """Failed attempts, both of runs that were retried and of runs that failed."""
    late_ms_mean: float
    late_ms_max: float
    took_ms_mean: float
    took_ms_max: float
    queued: int | None = None
    """The largest number of queued runs, sampled once a minute. Absent if there was no sample."""
    running: int | None = None
    """The largest number of active runs in the samples."""
    lag_ms: float | None = None
    """The largest lag in the samples: how long the oldest queued run had been due."""


class Stats(Wire):
    step: str
    points: list[Point]
    queued: int
    """The current number."""
    running: int
    """The current number."""
    lag_ms: float
    """How long the oldest queued run that a worker of its queue can run has been due."""
    late_ms_p50: float | None = None
    """Percentiles of the start delay and the duration of ended runs that had started, to about 20 %. Absent if
    there are none.
    """
    late_ms_p95: float | None = None
    took_ms_p50: float | None = None
    took_ms_p95: float | None = None


class RunCounts(Wire):
    counts: dict[str, int]
    """By state."""
    at_most: int


class TickEnd(Wire):
    """A tick and its result."""

    scheduled_for: str
    status: str
    """The state of its run, or `skipped`; empty: the run has been deleted."""
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
