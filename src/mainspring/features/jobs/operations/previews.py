"""Operations that preview a new or changed job. They write nothing."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta

from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.errors import Conflict, Invalid
from mainspring.core.model.base.instant import DAY, Instant, format_duration, isoformat
from mainspring.core.model.schedules.closed_periods import ClosedPeriods, CompiledCalendar, select_closed_periods
from mainspring.core.model.schedules.cron import Cron, clock_changes, load_zone, parts
from mainspring.core.model.schedules.job import Job, JobSpec, JobState, NewJob
from mainspring.core.model.schedules.schedule import CronSchedule, describe, next_after
from mainspring.core.model.schedules.upcoming import list_upcoming, next_starts
from mainspring.features.jobs.operations.runs import UpcomingTick
from mainspring.http.context import Api
from mainspring.http.jobs.lookup import find_recurring_job
from mainspring.http.jobs.reading import apply_patch, build_spec, changes_task, explain_past_time, read_payload
from mainspring.http.jobs.submission import make_job, make_run
from mainspring.http.operation import Answer, Call, Resource
from mainspring.http.problems import Problem
from mainspring.http.rendering.jobs import read_fields, read_spec_fields
from mainspring.http.schemas.common import Request, Wire, format_time
from mainspring.http.schemas.differences import Change, list_differences
from mainspring.http.schemas.jobs import JobFields, JobIn, JobPatch, ScheduleType, is_recurring, read_schedule_type

previews = Resource("Jobs")

#: How far ahead clock changes are listed.
_YEAR = 366 * DAY


class PreviewQuery(Request):
    n: Annotated[int, Meta(ge=1, le=100, description="The number of ticks.")] = 5


class ClockChangeOut(Wire):
    """A clock change (daylight saving time) that affects the schedule."""

    at: str
    kind: Literal["gap", "fold"]
    words: str


class JobPreview(Wire):
    schedule_type: ScheduleType
    words: str
    """The schedule in English."""
    next_fires: list[str]
    """Times at which its next runs may start."""
    ticks: list[UpcomingTick] = []
    """Its next ticks including closed ones, if calendars apply to it."""
    clock_changes: list[ClockChangeOut] = []
    """Clock changes within the next year."""
    notes: list[str] = []
    """Parts of the expression that are easily misread."""
    changes: dict[str, Change] = {}
    """Preview of a change: current and new value of each changed field."""
    warnings: list[str] = []


@previews.operation(
    "POST",
    "/v1/jobs/preview",
    permission=Permission.SUBMIT,
    body=JobIn,
    query=PreviewQuery,
    answers={200: JobPreview, 409: Problem},
    example={"name": "weekly report", "task": "report", "cronExpression": "30 9 * * MON", "timezone": "Europe/Paris"},
)
async def preview_job(api: Api, call: Call[JobIn, PreviewQuery]) -> Answer:
    """Preview a job without creating it.

    The request is checked like a request that creates the job, with the same errors. Only the quota, and whether
    the name is taken, are not checked.
    """
    fields, principal = call.body, call.principal
    tenant = await api.choose_owner(principal, fields.tenant)
    now = api.clock.now()
    if is_recurring(fields):
        new = await make_job(api, fields, tenant, principal.name, None)
        new.check()
        await api.admission.check(principal, tenant, new.spec.queue, new.spec.task, new.payload)
        return Answer(200, await _preview_recurring(api, new, now, call.query.n, is_new=True))
    run = await make_run(api, fields, tenant, principal.name, None)
    if (past := explain_past_time(run, now)) is not None:
        raise past
    run.check()
    await api.admission.check(principal, tenant, run.queue, run.task, run.payload, None)
    starts = now + run.delay if run.at is None else run.at
    words = "at once" if starts <= now else f"once, {format_duration(run.delay)} from now" if run.delay else "once"
    out = JobPreview(
        schedule_type=read_schedule_type(fields),
        words=words,
        next_fires=[isoformat(starts)],
        warnings=await api.workers.find_warnings(run),
    )
    return Answer(200, out)


@previews.operation(
    "POST",
    "/v1/jobs/{id}/preview",
    permission=Permission.OPERATE,
    body=JobPatch,
    query=PreviewQuery,
    answers={200: JobPreview, 404: Problem, 409: Problem},
)
async def preview_change(api: Api, call: Call[JobPatch, PreviewQuery]) -> Answer:
    """Preview a change of a recurring job without saving it.

    Returns the next ticks after the change and the fields that differ. 409: the job is not recurring, is cancelled,
    or has another version than `expectedVersion`.
    """
    job = await find_recurring_job(api, call)
    if job.state not in (JobState.SCHEDULED, JobState.PAUSED):
        raise Conflict(f"the job is {job.state.value}")
    if call.body.expected_version not in (UNSET, job.version):
        raise Conflict(f"the job has version {job.version} by now")
    before = read_fields(job)
    after = apply_patch(before, call.body)
    new = NewJob(id=job.id, spec=_build_spec(job, after), payload=read_payload(after), tenant=job.tenant)
    new.check()
    changed = changes_task(call.body)
    await api.admission.check(call.principal, job.tenant, new.spec.queue, new.spec.task, new.payload, by_schema=changed)
    out = await _preview_recurring(api, new, api.clock.now(), call.query.n)
    changes = list_differences(before, read_spec_fields(new.spec, new.payload))
    return Answer(200, msgspec.structs.replace(out, changes=changes))


def _build_spec(job: Job, fields: JobFields) -> JobSpec:
    spec = build_spec(fields)
    if spec.name != job.spec.name:
        raise Invalid("name", "of a recurring job cannot be changed", "create another job and delete this one")
    return spec


async def _preview_recurring(api: Api, new: NewJob, now: Instant, count: int, *, is_new: bool = False) -> JobPreview:
    spec = new.spec
    await api.admission.check_calendars(new.tenant, spec.calendars)
    job, closed_periods = _build_planned(new, now), await _read_closed_periods(api, new)
    ticks = [] if closed_periods is None else list_upcoming(job, closed_periods, count)
    return JobPreview(
        schedule_type="cron" if isinstance(spec.schedule, CronSchedule) else "interval",
        words=describe(spec.schedule, job.id),
        next_fires=[isoformat(at) for at in next_starts(job, closed_periods, count)],
        ticks=[
            UpcomingTick(scheduled_for=isoformat(tick), starts=format_time(at), reason=why) for tick, at, why in ticks
        ],
        clock_changes=_list_clock_changes(spec, job.id, now),
        notes=_list_notes(spec, job.id, is_new=is_new),
        warnings=await api.workers.find_warnings(new),
    )


def _build_planned(new: NewJob, now: Instant) -> Job:
    """Build the job as the store would hold it."""
    return Job(
        id=new.id,
        tenant=new.tenant,
        spec=new.spec,
        version=1,
        state=JobState.SCHEDULED,
        next_fire=next_after(new.spec.schedule, now, new.id),
        rev=0,
        payload=new.payload,
    )


async def _read_closed_periods(api: Api, new: NewJob) -> ClosedPeriods | None:
    known = [CompiledCalendar(calendar) for calendar in await api.store.calendars(new.tenant)]
    spec = new.spec
    return select_closed_periods(known, spec.calendars, spec.tags, spec.queue, spec.when_closed)


def _list_clock_changes(spec: JobSpec, key: str, now: Instant) -> list[ClockChangeOut]:
    schedule = spec.schedule
    if not isinstance(schedule, CronSchedule):
        return []
    cron = Cron.parse(schedule.expression, hash_key=key, field="cronExpression")
    until = now + _YEAR if schedule.end is None else min(now + _YEAR, schedule.end)
    after = now if schedule.start is None else max(now, schedule.start)
    found = clock_changes(cron, load_zone(schedule.timezone), schedule.gap, schedule.fold, after, until)
    return [ClockChangeOut(at=isoformat(one.at), kind=one.kind, words=f"{one.day}: {one.words}") for one in found]


def _list_notes(spec: JobSpec, key: str, *, is_new: bool) -> list[str]:
    schedule = spec.schedule
    if not isinstance(schedule, CronSchedule):
        return []
    cron = Cron.parse(schedule.expression, hash_key=key, field="cronExpression")
    notes = []
    if is_new and any(term.startswith("H") for part in parts(cron) for term in part.written.split(",")):
        notes.append("H is resolved when the job is created; its times will differ from these")
    if cron.either_day:
        notes.append("both day fields are restricted: a day that matches either one is enough")
    return notes
