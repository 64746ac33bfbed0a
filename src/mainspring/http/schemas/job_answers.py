"""Jobs in answers of the API."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from mainspring.http.schemas.common import Wire
from mainspring.http.schemas.datacenters import DatacentersIn
from mainspring.http.schemas.jobs import CatchUpIn, Retry, ScheduleType, SloIn
from mainspring.http.schemas.limits import BreakerIn, LimitIn


class SloOut(Wire):
    """Whether a schedule meets its objectives."""

    missed: list[Literal["start", "success"]]
    missed_since: str | None = None
    last_success: str | None = None


class JobOut(Wire):
    """A job, recurring or not."""

    job_id: str
    status: str
    schedule_type: ScheduleType
    task: str
    tenant: str
    queue: str
    priority: int
    created_at: str
    name: str = ""
    payload: msgspec.Raw | UnsetType = UNSET
    schedule_time: str | None = None
    end_time: str | None = None
    cron_expression: str | None = None
    every: str | None = None
    interval_mode: Literal["fixedRate", "fixedDelay"] | None = None
    timezone: str | None = None
    dst_gap: str | None = None
    dst_fold: str | None = None
    jitter: str | None = None
    max_retries: int = 0
    retry: Retry | UnsetType = UNSET
    timeout: str | None = None
    deadline: str | None = None
    start_within: str | None = None
    overlap: str | None = None
    catch_up: CatchUpIn | UnsetType = UNSET
    calendars: tuple[str, ...] = ()
    when_closed: str | None = None
    slo: SloIn | None = None
    slo_state: SloOut | None = None
    """Only if a single job is requested."""
    ordering_key: str | None = None
    requires: dict[str, str] = {}
    datacenters: DatacentersIn | UnsetType = UNSET
    """Where it runs, in the form in which a request sets it."""
    weight: int = 1
    retention: str | None = None
    """The retention class of the job or of its tenant."""
    guarantee: str | None = None
    limits: tuple[LimitIn, ...] = ()
    breaker: BreakerIn | None = None
    owner: str | None = None
    tags: tuple[str, ...] = ()
    parent_id: str | None = None
    """One-off job: the run that created it."""
    depends_on: tuple[str, ...] = ()
    """One-off job: the runs that it depends on. Only if a single job is requested."""
    when: str | None = None
    """The dependency rule."""
    source: str | None = None
    """Recurring job: the application or the file that declares it."""
    version: int | None = None
    updated_at: str | None = None
    pause_reason: str | None = None
    """Paused job: the reason."""
    resume_at: str | None = None
    """Paused job: when the pause ends by itself."""
    next_fires: list[str] = []
    warnings: list[str] = []
