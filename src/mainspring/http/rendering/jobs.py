"""Converts jobs to the wire format."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import format_duration, isoformat
from mainspring.core.model.runs.new_run import About
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.retry import RetryPolicy
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.calendar import WhenClosed
from mainspring.core.model.schedules.catch_up import CatchUp
from mainspring.core.model.schedules.closed_periods import ClosedPeriods
from mainspring.core.model.schedules.cron import DstFold, DstGap
from mainspring.core.model.schedules.job import Job, JobSpec, JobState
from mainspring.core.model.schedules.schedule import CronSchedule, Interval
from mainspring.core.model.schedules.slo import Slo, SloState
from mainspring.core.model.schedules.upcoming import next_starts
from mainspring.http.schemas.common import format_time
from mainspring.http.schemas.datacenters import render_datacenters, render_requires
from mainspring.http.schemas.job_answers import JobOut, SloOut
from mainspring.http.schemas.jobs import CatchUpIn, JobFields, Retry, SloIn, read_schedule_type
from mainspring.http.schemas.policy_fields import render_policy_fields

_WAITS = ("scheduled", "blocked", "queued")


def read_slo_fields(slo: Slo | None) -> SloIn | None:
    if slo is None:
        return None
    starts, succeeds = slo.start_within, slo.succeed_every
    return SloIn(
        start_within=None if starts is None else format_duration(starts),
        succeed_every=None if succeeds is None else format_duration(succeeds),
    )


def render_slo(state: SloState | None) -> SloOut | None:
    if state is None:
        return None
    since = [moment for moment in (state.late_since, state.quiet_since) if moment is not None]
    missed: list[Literal["start", "success"]] = ["start"] if state.late_since is not None else []
    if state.quiet_since is not None:
        missed.append("success")
    return SloOut(
        missed=missed, missed_since=format_time(min(since, default=None)), last_success=format_time(state.last_success)
    )


def read_fields(job: Job) -> JobFields:
    """Return the request fields that would create this job."""
    return read_spec_fields(job.spec, job.payload)


def read_spec_fields(spec: JobSpec, payload: bytes) -> JobFields:
    schedule = spec.schedule
    policy = spec.policy
    cron = schedule if isinstance(schedule, CronSchedule) else None
    interval = schedule if isinstance(schedule, Interval) else None
    return JobFields(
        name=spec.name,
        task=spec.task,
        payload=msgspec.Raw(payload),
        schedule_type="cron" if cron is not None else "interval",
        schedule_time=format_time(schedule.start),
        end_time=format_time(schedule.end),
        cron_expression=cron.expression if cron is not None else UNSET,
        every=format_duration(interval.every) if interval is not None else UNSET,
        interval_mode=UNSET if interval is None else "fixedDelay" if interval.mode == "fixed_delay" else "fixedRate",
        timezone=cron.timezone if cron is not None else UNSET,
        dst_gap=_gap(cron.gap) if cron is not None else UNSET,
        dst_fold=_fold(cron.fold) if cron is not None else UNSET,
        jitter=format_duration(schedule.jitter),
        queue=spec.queue,
        priority=spec.priority,
        deadline=None if spec.deadline is None else format_duration(spec.deadline),
        start_within=None if spec.start_within is None else format_duration(spec.start_within),
        overlap=spec.overlap.value,
        catch_up=render_catch_up(spec.catch_up),
        slo=read_slo_fields(spec.slo),
        calendars=spec.calendars,
        when_closed=_when_closed(spec.when_closed),
        datacenters=render_datacenters(spec.datacenters, policy.requires),
        **render_policy(policy),
        owner=spec.owner,
        tags=spec.tags,
    )


def render_policy(policy: RunPolicy) -> dict[str, Any]:
    """Return the fields of a policy as a request sets them."""
    return {
        "max_retries": policy.retry.max_retries,
        "retry": render_retry(policy.retry),
        "timeout": format_duration(policy.timeout),
        "requires": render_requires(policy.requires),
        **render_policy_fields(policy),
    }


def _render_policy_answer(policy: RunPolicy) -> dict[str, Any]:
    """Return the fields of a policy as an answer has them: empty ones are null."""
    return {name: None if value in ("", UNSET) else value for name, value in render_policy(policy).items()}


def render_retry(retry: RetryPolicy) -> Retry:
    retry = retry.effective()
    return Retry(
        backoff=retry.backoff,
        first_delay=format_duration(retry.first_delay),
        max_delay=format_duration(retry.max_delay),
        delays=tuple(format_duration(delay) for delay in retry.delays),
        retry_on=retry.retry_on,
        never_on=retry.never_on,
    )


def render_catch_up(catch_up: CatchUp) -> CatchUpIn:
    catch_up = catch_up.effective()
    return CatchUpIn(
        mode=catch_up.mode,
        grace=format_duration(catch_up.grace),
        cap=catch_up.cap,
        max_age=format_duration(catch_up.max_age),
        pace=format_duration(catch_up.pace),
    )


def render_job(
    job: Job, closed_periods: ClosedPeriods | None = None, *, payload: bool = True, warnings: list[str] | None = None
) -> JobOut:
    """Convert a recurring job. ``closed_periods``: the calendars that apply to it."""
    fields = read_fields(job)
    spec = job.spec
    return JobOut(
        job_id=job.id,
        status=job.state.value,
        schedule_type=read_schedule_type(fields),
        task=spec.task,
        tenant=job.tenant,
        queue=spec.queue,
        priority=spec.priority,
        created_at=isoformat(job.created_at),
        name=spec.name,
        payload=msgspec.Raw(job.payload) if payload else UNSET,
        schedule_time=format_time(spec.schedule.start),
        end_time=format_time(spec.schedule.end),
        cron_expression=None if fields.cron_expression is UNSET else fields.cron_expression,
        every=None if fields.every is UNSET else str(fields.every),
        interval_mode=None if fields.interval_mode is UNSET else fields.interval_mode,
        timezone=None if fields.timezone is UNSET else fields.timezone,
        dst_gap=None if fields.dst_gap is UNSET else fields.dst_gap,
        dst_fold=None if fields.dst_fold is UNSET else fields.dst_fold,
        jitter=format_duration(spec.schedule.jitter) if spec.schedule.jitter else None,
        deadline=None if spec.deadline is None else format_duration(spec.deadline),
        start_within=None if spec.start_within is None else format_duration(spec.start_within),
        overlap=spec.overlap.value,
        catch_up=render_catch_up(spec.catch_up),
        slo=read_slo_fields(spec.slo),
        calendars=spec.calendars,
        when_closed=spec.when_closed.value if spec.calendars or spec.when_closed is not WhenClosed.SKIP else None,
        datacenters=fields.datacenters,
        **_render_policy_answer(spec.policy),
        owner=spec.owner or None,
        tags=spec.tags,
        source=spec.source or None,
        version=job.version,
        updated_at=isoformat(job.updated_at),
        pause_reason=(job.pause_why or None) if job.state is JobState.PAUSED else None,
        resume_at=format_time(job.resume_at),
        next_fires=[isoformat(at) for at in next_starts(job, closed_periods)],
        warnings=warnings or [],
    )


def render_one_off(run: RunView, *, parents: Sequence[RunId] = (), warnings: list[str] | None = None) -> JobOut:
    """Convert the run of a one-off job to a job."""
    about = run.about or About()
    # A retried run has the time of its next attempt, not its original time.
    again = run.attempt > 1 or (run.attempt > 0 and run.state.value in _WAITS)
    later = run.due > run.created_at and not again
    return JobOut(
        job_id=run.id,
        status=run.state.value,
        schedule_type="future" if later else "immediate",
        task=run.task,
        tenant=run.tenant,
        queue=run.queue,
        priority=run.priority,
        created_at=isoformat(run.created_at),
        name=about.name,
        payload=UNSET if run.payload is None else msgspec.Raw(run.payload),
        schedule_time=isoformat(run.due) if later else None,
        deadline=None if run.deadline is None else format_duration(max(run.deadline - run.due, 0)),
        start_within=None if run.start_by is None else format_duration(max(run.start_by - run.due, 0)),
        datacenters=render_datacenters((), run.policy.requires),
        **_render_policy_answer(run.policy),
        parent_id=about.parent,
        depends_on=tuple(parents),
        when=None if run.rule is None else run.rule.value,
        owner=about.owner or None,
        tags=about.tags,
        updated_at=format_time(run.finished_at or run.started_at or run.queued_at or run.created_at),
        next_fires=[isoformat(run.due)] if run.state.value in _WAITS else [],
        warnings=warnings or [],
    )


def _gap(gap: DstGap) -> Literal["run_after", "skip"]:
    return "run_after" if gap is DstGap.RUN_AFTER else "skip"


def _when_closed(rule: WhenClosed) -> Literal["skip", "before", "after"]:
    match rule:
        case WhenClosed.SKIP:
            return "skip"
        case WhenClosed.BEFORE:
            return "before"
        case WhenClosed.AFTER:
            return "after"


def _fold(fold: DstFold) -> Literal["once", "twice"]:
    return "once" if fold is DstFold.ONCE else "twice"
