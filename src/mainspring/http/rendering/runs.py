"""Converts runs, attempts, ticks and reasons to the wire format."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import isoformat
from mainspring.core.model.cluster.datacenters import find_datacenter
from mainspring.core.model.explain.reason import Reason
from mainspring.core.model.runs.run import ENDED, RunState
from mainspring.core.model.runs.traces import build_trace
from mainspring.core.model.runs.view import AttemptView, Progress, RunView
from mainspring.core.model.runs.waits import describe_reason
from mainspring.core.model.schedules.job import LedgerEntry
from mainspring.core.ports.storage.catalog import LogLine
from mainspring.http.schemas.common import format_time
from mainspring.http.schemas.runs import (
    AttemptOut,
    HolderOut,
    LogLineOut,
    ReasonOut,
    RunOut,
    StatusOut,
    TickOut,
)


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
        reason=describe_reason(run),
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
