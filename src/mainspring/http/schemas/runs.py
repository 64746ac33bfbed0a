"""Runs in the wire format."""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import isoformat
from mainspring.core.model.cluster.datacenters import find_datacenter
from mainspring.core.model.explain.reason import Reason
from mainspring.core.model.runs.run import ENDED, RunState
from mainspring.core.model.runs.traces import build_trace
from mainspring.core.model.runs.view import AttemptView, Progress, RunView
from mainspring.core.model.runs.waits import reason_told
from mainspring.core.model.schedules.job import LedgerEntry
from mainspring.core.ports.storage.catalog import LogLine
from mainspring.http.schemas.common import Wire, format_time


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


def render_reason(reason: Reason) -> ReasonOut:
    return ReasonOut(
        code=reason.code,
        words=reason.words,
        hint=reason.hint,
        holders=[HolderOut(kind=holder.kind, id=holder.id) for holder in reason.holders],
        until=format_time(reason.until),
    )


def render_tick(entry: LedgerEntry) -> TickOut:
    return TickOut(
        scheduled_for=isoformat(entry.scheduled_at),
        decision=entry.decision,
        job_version=entry.job_version,
        reason=entry.reason,
        run_id=entry.run_id,
        ticks=entry.ticks,
        until=format_time(entry.last_at),
        datacenter=entry.target or None,
    )


def render_run(
    run: RunView,
    *,
    attempts: list[AttemptView] | None = None,
    parents: Sequence[RunId] | None = None,
    traced_ticks: float = 0,
) -> RunOut:
    """Convert a run. ``traced_ticks``: the fraction of traces that is recorded if no caller has decided it."""
    trace = build_trace(run, traced_ticks)
    progress = read_progress(run)
    about = run.about
    modified = max(filter(None, (run.created_at, run.queued_at, run.started_at, run.finished_at)))
    return RunOut(
        run_id=run.id,
        job_id=run.job_id or run.id,
        status=run.state.value,
        task=run.task,
        tenant=run.tenant,
        queue=run.queue,
        priority=run.priority,
        scheduled_for=isoformat(run.due),
        created_at=isoformat(run.created_at),
        modified_time=isoformat(modified),
        attempt_number=run.attempt,
        max_retries=run.policy.retry.max_retries,
        log_url=f"/v1/runs/{run.id}/logs",
        name=about.name if about is not None else "",
        reason=reason_told(run),
        tick=format_time(run.scheduled_at),
        datacenter=find_datacenter(run.policy.requires),
        queued_at=format_time(run.queued_at),
        start_time=format_time(run.started_at),
        end_time=format_time(run.finished_at),
        executor_id=format_executor(run),
        error_message=run.error,
        result=UNSET if run.result is None else msgspec.Raw(run.result),
        payload=UNSET if run.payload is None else msgspec.Raw(run.payload),
        progress=format_progress(run),
        progress_done=None if progress is None else progress.done,
        progress_total=None if progress is None else progress.total,
        progress_note=progress.note or None if progress is not None else None,
        replay_of=run.replay_of,
        parent_id=about.parent if about is not None else None,
        workflow_id=about.workflow if about is not None else None,
        workflow=about.workflow_name or None if about is not None else None,
        node=about.node or None if about is not None else None,
        parents=run.parents,
        depends_on=UNSET if parents is None else tuple(parents),
        when=None if run.rule is None else run.rule.value,
        fingerprint=run.fingerprint or None,
        tags=about.tags if about is not None else (),
        owner=about.owner or None if about is not None else None,
        trace_id=None if trace is None else f"{trace[0]:032x}",
        attempts=UNSET if attempts is None else [render_attempt(attempt) for attempt in attempts],
    )


def render_attempt(attempt: AttemptView) -> AttemptOut:
    return AttemptOut(
        attempt_number=attempt.number,
        outcome=attempt.outcome.value,
        start_time=isoformat(attempt.started_at),
        end_time=isoformat(attempt.ended_at),
        reason=attempt.reason,
        error_message=attempt.error,
    )


def render_line(line: LogLine) -> LogLineOut:
    return LogLineOut(position=line.position, time=isoformat(line.at), attempt_number=line.attempt, text=line.text)


def render_status(job_id: str, status: str, run: RunView | None) -> StatusOut:
    if run is None:
        return StatusOut(job_id=job_id, status=status)
    progress = read_progress(run)
    return StatusOut(
        job_id=job_id,
        status=status,
        run_id=run.id,
        run_status=run.state.value,
        start_time=format_time(run.started_at),
        end_time=format_time(run.finished_at),
        progress=format_progress(run),
        progress_done=None if progress is None else progress.done,
        progress_total=None if progress is None else progress.total,
        executor_id=format_executor(run),
        error_message=run.error,
    )


def format_executor(run: RunView) -> str | None:
    if run.session is None:
        return None
    return f"{run.executor}#{run.session}" if run.executor else str(run.session)


def read_progress(run: RunView) -> Progress | None:
    """Return the progress that the newest attempt has reported."""
    progress = run.progress
    if progress is None or (run.started_at is not None and progress.at < run.started_at):
        return None
    return progress


def format_progress(run: RunView) -> str | None:
    """Return the progress such as "50%" if the total is known; "100%" for a succeeded run."""
    if run.state is RunState.SUCCEEDED:
        return "100%"
    progress = read_progress(run)
    if progress is None or not progress.total or run.state in ENDED - {RunState.FAILED, RunState.CANCELLED}:
        return None
    return f"{min(max(progress.done / progress.total, 0.0), 1.0) * 100:.0f}%"
