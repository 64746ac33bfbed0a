"""Runs in the wire format."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from mainspring.http.schemas.common import Wire


class AttemptOut(Wire):
    attempt_number: int
    outcome: str
    start_time: str
    end_time: str
    reason: str = ""
    error_message: str | None = None


class RunOut(Wire):
    """One execution of a job."""

    run_id: str
    job_id: str
    status: str
    task: str
    tenant: str
    queue: str
    priority: int
    scheduled_for: str
    created_at: str
    modified_time: str
    attempt_number: int
    max_retries: int
    log_url: str
    name: str = ""
    reason: str = ""
    tick: str | None = None
    """The tick of its recurring job."""
    queued_at: str | None = None
    start_time: str | None = None
    end_time: str | None = None
    executor_id: str | None = None
    datacenter: str | None = None
    """The data center that it requires."""
    error_message: str | None = None
    result: msgspec.Raw | UnsetType = UNSET
    payload: msgspec.Raw | UnsetType = UNSET
    progress: str | None = None
    progress_done: float | None = None
    progress_total: float | None = None
    progress_note: str | None = None
    replay_of: str | None = None
    parent_id: str | None = None
    """The run that created it."""
    workflow_id: str | None = None
    workflow: str | None = None
    node: str | None = None
    """Its name in the workflow."""
    parents: int = 0
    """How many runs it depends on."""
    depends_on: tuple[str, ...] | UnsetType = UNSET
    """The ids of these runs. Only if a single run is requested."""
    when: str | None = None
    """The dependency rule."""
    fingerprint: str | None = None
    tags: tuple[str, ...] = ()
    owner: str | None = None
    trace_id: str | None = None
    """The trace in which it is recorded."""
    attempts: list[AttemptOut] | UnsetType = UNSET


class StatusOut(Wire):
    """The status of a job: that of its newest run, or the job's own if it has no run, is paused or is cancelled."""

    job_id: str
    status: str
    run_id: str | None = None
    run_status: str | None = None
    """The status of the run, even if `status` is that of the job."""
    start_time: str | None = None
    end_time: str | None = None
    progress: str | None = None
    progress_done: float | None = None
    progress_total: float | None = None
    executor_id: str | None = None
    error_message: str | None = None


class RunMade(Wire):
    """A run that was just created."""

    job_id: str
    run_id: str
    status: str
    warnings: list[str] = []


class TickOut(Wire):
    """One tick of a recurring job: the decision about it, and the reason."""

    scheduled_for: str
    decision: Literal["run", "skipped"]
    job_version: int
    reason: str = ""
    run_id: str | None = None
    ticks: int = 1
    """More than one: a span of ticks too many to list. 0: too many to count."""
    until: str | None = None
    datacenter: str | None = None
    """For a job with several data centers: the data center of this tick."""


class LogLineOut(Wire):
    position: int
    time: str
    attempt_number: int
    text: str


class HolderOut(Wire):
    """The object that holds what the run waits for."""

    kind: Literal["run", "worker", "scheduler", "job", "tenant", "queue", "key", "budget"]
    id: str


class ReasonOut(Wire):
    """One reason in machine-readable form."""

    code: str
    """Stays the same when the text changes."""
    words: str
    hint: str = ""
    holders: list[HolderOut] = []
    until: str | None = None
    """When this ends by itself, if known."""


class Explanation(Wire):
    """Why a run has its status."""

    run_id: str
    status: str
    reasons: list[str]
    hints: list[str] = []
    because: list[ReasonOut] = []
    """The reasons as data, the most important first."""
    position: int | None = None
    """Runs ahead of it in its queue, by priority."""
    estimated_start: str | None = None


class TickExplanation(Wire):
    """Whether a job ran at a time, and if not, why."""

    job_id: str
    time: str
    answer: Literal["ran", "running", "waiting", "skipped", "no-tick", "due", "ahead", "unknown"]
    because: list[ReasonOut]
    """The most important reason first."""
    job_version: int | None = None
    """The version of the job at that time."""
    tick: TickOut | None = None
    """The record of the tick."""
    run: RunOut | None = None
    """The run of the tick, or of the backfill that replaced it."""
    tick_before: str | None = None
    tick_after: str | None = None
    """The next tick after the time, by the schedule of that version. `tickBefore` is the one before it."""
