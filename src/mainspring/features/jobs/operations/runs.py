"""Operations on the runs and ticks of a job: run now, pause, resume, backfill, status and history."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.errors import Conflict, Invalid
from mainspring.core.model.base.ids import JobId, RunId, decode_shard, derived_id
from mainspring.core.model.base.instant import DAY, Instant, isoformat, parse_instant
from mainspring.core.model.runs.new_run import Idempotency, JobRef, NewRun, fingerprint_of_request
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.job import Job, JobState
from mainspring.core.model.schedules.schedule import ticks_between
from mainspring.core.model.schedules.spread import MOST_OF_A_TICK, whole_ticks
from mainspring.core.model.schedules.upcoming import list_upcoming, next_starts
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import RunFilter
from mainspring.http.context import Api
from mainspring.http.jobs.lookup import find_job, find_newest_started, find_recurring_job
from mainspring.http.jobs.reading import build_idempotency, build_run_of_job
from mainspring.http.jobs.submission import KEY_HEADER
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.problems import ObjectNotFound, Problem
from mainspring.http.rendering.runs import render_run, render_status, render_tick
from mainspring.http.schemas.common import (
    Limit,
    Page,
    PageQuery,
    PauseIn,
    Request,
    Time,
    Wire,
    end_of_pause,
    format_time,
    parse_cursor,
    parse_time,
    render_page,
)
from mainspring.http.schemas.datacenters import DatacenterName, list_destinations
from mainspring.http.schemas.runs import RunMade, RunOut, StatusOut, TickOut
from mainspring.http.search import Search

runs_of_jobs = Resource("Jobs")

_MAX_BACKFILLED = 10_000
_CANCELLED = (RunState.CANCELLED, RunState.CANCELLING)
_CANNOT_RUN = "the job is cancelled; create it again to run it"


class LedgerQuery(Request):
    since: Time | None = None
    until: Time | None = None
    limit: Limit = 100


class NextQuery(Request):
    n: Annotated[int, Meta(ge=1, le=100)] = 5


class UpcomingTick(Wire):
    """A tick and the effect of calendars on it."""

    scheduled_for: str
    starts: str | None
    """Time at which its run may start; null: the tick is skipped."""
    reason: str = ""


class NextOut(Wire):
    job_id: str
    next_fires: list[str]
    """Times at which its next runs may start."""
    ticks: list[UpcomingTick] = []
    """Its next ticks including closed ones, if calendars apply to it."""


class RunJobIn(Request):
    payload: msgspec.Raw | UnsetType = UNSET
    datacenter: DatacenterName | UnsetType = UNSET
    """Data center of the run; required for a job with several data centers."""


class BackfillIn(Request):
    since: Time
    until: Time
    dry_run: bool = False


class BackfillOut(Wire):
    job_id: str
    ticks: int
    """Ticks of the schedule in the range."""
    made: int
    """Runs created; ticks that already had a run are left out."""
    scheduled_for: list[str]
    dry_run: bool


class JobStateOut(Wire):
    job_id: str
    status: str
    resume_at: str | None = None


@runs_of_jobs.operation(
    "POST",
    "/v1/jobs/{id}/run",
    permission=Permission.SUBMIT,
    body=RunJobIn,
    body_optional=True,
    answers={201: RunMade, 404: Problem, 409: Problem},
)
async def run_job(api: Api, call: Call[RunJobIn, Empty]) -> Answer:
    """Run a job now.

    A recurring job gets a run outside its schedule, a one-off job runs again. The run belongs to the job and is in its
    `/runs`. The payload of the job is used unless you send another. A request with the same header `Idempotency-Key`
    creates no second run. 409: the job is cancelled, or the key was used with another payload.
    """
    found = await find_job(api, call, payload=True)
    payload = None if call.body.payload is UNSET else bytes(call.body.payload)
    if isinstance(found, Job):
        if found.state is JobState.CANCELLED:
            raise Conflict(_CANNOT_RUN)
        ref = JobRef(id=found.id, version=found.version)
        run_id = api.jobs.new_run_id(found.spec.policy.ordering_key, tenant=found.tenant)
        run = list_destinations(
            build_run_of_job(found, run_id, payload, ref, call.principal.name), found.spec, call.body.datacenter
        )
    else:
        if found.state in _CANCELLED:
            raise Conflict(_CANNOT_RUN)
        again = found.payload if payload is None else payload
        run = NewRun(
            id=api.jobs.new_run_id(found.policy.ordering_key, tenant=found.tenant),
            task=found.task,
            payload=b"null" if again is None else again,
            queue=found.queue,
            tenant=found.tenant,
            priority=found.priority,
            policy=found.policy,
            job=JobRef(id=JobId(found.id), version=1),
            about=found.about,
            author=call.principal.name,
        )
    said: list[object] = [found.id, "run", None if payload is None else msgspec.Raw(payload)]
    if call.body.datacenter is not UNSET:
        said.append(call.body.datacenter)
    run = msgspec.structs.replace(run, idempotency=build_idempotency(call.headers.get(KEY_HEADER), said))
    await api.admission.admit_run(call.principal, run)
    accepted = await api.jobs.submit(run)
    if accepted.conflict:
        raise Conflict(f"this idempotency key was used for another request, {accepted.id}", accepted.id)
    out = RunMade(
        job_id=found.id,
        run_id=accepted.id,
        status=accepted.state.value,
        warnings=await api.workers.log_warnings(run),
    )
    return Answer(201, out, {"location": f"/v1/runs/{accepted.id}"})


@runs_of_jobs.operation(
    "POST",
    "/v1/jobs/{id}/pause",
    permission=Permission.OPERATE,
    body=PauseIn,
    body_optional=True,
    answers={200: JobStateOut, 404: Problem, 409: Problem},
)
async def pause_job(api: Api, call: Call[PauseIn, Empty]) -> Answer:
    """Pause a recurring job.

    Until the job is resumed, each tick is recorded as skipped with the reason `paused`. With `until` the job
    resumes at that time, by the clock of the store. A paused job can be paused again to change `until`. 409: the
    job is not recurring, or is cancelled.
    """
    job = await find_recurring_job(api, call)
    resume_at = end_of_pause(call.body, await api.store.now())
    author = Author(call.principal.name, job.tenant, call.body.why)
    states = await api.jobs.pause([job.id], author, resume_at=resume_at)
    return _build_state_answer(job.id, states.get(job.id), JobState.PAUSED, resume_at)


@runs_of_jobs.operation(
    "POST",
    "/v1/jobs/{id}/resume",
    permission=Permission.OPERATE,
    answers={200: JobStateOut, 404: Problem, 409: Problem},
)
async def resume_job(api: Api, call: Call[Empty, Empty]) -> Answer:
    """Resume a paused job.

    Its next tick runs as scheduled; ticks during the pause are not made up for. Use a backfill to run them. 409:
    the job is not recurring, or is cancelled.
    """
    job = await find_recurring_job(api, call)
    states = await api.jobs.resume([job.id], Author(call.principal.name, job.tenant))
    return _build_state_answer(job.id, states.get(job.id), JobState.SCHEDULED)


@runs_of_jobs.operation(
    "POST",
    "/v1/jobs/{id}/backfill",
    permission=Permission.OPERATE,
    body=BackfillIn,
    within=None,
    answers={200: BackfillOut, 404: Problem, 409: Problem},
    example={"since": "2026-11-16T00:00:00Z", "until": "2026-11-17T00:00:00Z", "dryRun": True},
)
async def backfill_job(api: Api, call: Call[BackfillIn, Empty]) -> Answer:
    """Run past ticks that have no run.

    Every tick from `since` until just before `until` gets a run, unless it has one. Repeating the request creates
    no second run. If a quota leaves room for some of them, the first ones are created; repeat the request for the
    rest. 409: an interval with a fixed delay, or a job for several data centers.
    """
    job = await find_recurring_job(api, call)
    since, until = parse_instant(call.body.since, "since"), parse_instant(call.body.until, "until")
    if until <= since:
        raise Invalid("until", "is not after since")
    if until > api.clock.now():
        raise Invalid("until", "is in the future", "a backfill covers past ticks only")
    if job.spec.fixed_delay is not None:
        raise Conflict("a job with a fixed delay has no ticks to backfill")
    if job.spec.datacenters:
        raise Conflict("the job runs in several data centers; run it now where it was missed")
    ticks = ticks_between(job.spec.schedule, since - 1, until - 1, job.id, _MAX_BACKFILLED + 1)
    if len(ticks) > _MAX_BACKFILLED:
        raise Invalid("since", f"there are more than {_MAX_BACKFILLED} ticks in this range", "choose a shorter range")
    await api.admission.check(call.principal, job.tenant, job.spec.queue, job.spec.task, job.payload)
    ran = await _list_ticks_with_runs(api, job, since, until)
    ran |= (await api.store.backfilled(job.id, since, until)).keys()
    missing = [tick for tick in ticks if tick not in ran]
    made = 0
    if not call.body.dry_run:
        admitted = await api.admission.admit_runs(job.tenant, len(missing))
        admitted.check()
        now = api.clock.now()
        runs = [_build_backfill_run(job, tick, call.principal.name, now) for tick in missing[: admitted.count]]
        made = sum(answer.new for answer in await api.jobs.submit_many(runs))
    out = BackfillOut(
        job_id=job.id,
        ticks=len(ticks),
        made=made,
        scheduled_for=[isoformat(tick) for tick in missing],
        dry_run=call.body.dry_run,
    )
    return Answer(200, out)


@runs_of_jobs.operation(
    "GET", "/v1/jobs/{id}/next", permission=Permission.READ, query=NextQuery, answers={200: NextOut, 404: Problem}
)
async def next_fires(api: Api, call: Call[Empty, NextQuery]) -> Answer:
    """List the next ticks of a job.

    Up to `n` times, with the effect of calendars: when each run may start, or why the tick is skipped. A one-off
    job has one time, if it has not started.
    """
    found = await find_job(api, call)
    ticks: list[UpcomingTick] = []
    if isinstance(found, Job):
        closed_periods = (await api.closed_times.of([found])).get(found.id)
        fires = next_starts(found, closed_periods, call.query.n)
        if closed_periods is not None:
            ticks = [
                UpcomingTick(scheduled_for=isoformat(tick), starts=format_time(starts), reason=reason)
                for tick, starts, reason in list_upcoming(found, closed_periods, call.query.n)
            ]
    else:
        fires = [found.due] if found.state in (RunState.SCHEDULED, RunState.BLOCKED, RunState.QUEUED) else []
    return Answer(200, NextOut(job_id=found.id, next_fires=[isoformat(fire) for fire in fires], ticks=ticks))


@runs_of_jobs.operation(
    "GET", "/v1/jobs/{id}/status", permission=Permission.READ, answers={200: StatusOut, 404: Problem}
)
async def job_status(api: Api, call: Call[Empty, Empty]) -> Answer:
    """Get the status of a job.

    `status` is that of its newest run that has started. A job without such a run, or one that is paused or cancelled,
    has a status of its own. `runId`, `runStatus` and the times are those of the run.
    """
    found = await find_job(api, call)
    begun = await find_newest_started(api, call, found)
    if isinstance(found, RunView):
        begun = begun or found
        stands = found.state if found.state in _CANCELLED else begun.state
        return Answer(200, render_status(found.id, stands.value, begun))
    halted = found.state in (JobState.PAUSED, JobState.CANCELLED)
    status = found.state.value if halted or begun is None else begun.state.value
    return Answer(200, render_status(found.id, status, begun))


@runs_of_jobs.operation(
    "GET", "/v1/jobs/{id}/runs", permission=Permission.READ, query=PageQuery, answers={200: Page[RunOut], 404: Problem}
)
async def job_runs(api: Api, call: Call[Empty, PageQuery]) -> Answer:
    """List the runs of a job, newest first.

    A one-off job has a run with the same id, and one for each `run` request. Pass `nextCursor` as `cursor` to get the
    next page.
    """
    found = await find_job(api, call)
    page = await Search(api.clock).runs(
        api.listed_by(call.principal),
        RunFilter(tenant=found.tenant, job=JobId(found.id)),
        parse_cursor(call.query.cursor),
        call.query.limit,
    )
    return Answer(200, render_page([render_run(run) for run in page.items], page.after, call.query.limit))


@runs_of_jobs.operation(
    "GET",
    "/v1/jobs/{id}/ledger",
    permission=Permission.READ,
    query=LedgerQuery,
    answers={200: Page[TickOut], 404: Problem, 409: Problem},
)
async def job_ledger(api: Api, call: Call[Empty, LedgerQuery]) -> Answer:
    """List the decision about each tick, oldest first.

    Covers the last day before `until`, unless you set `since`. Pass `nextCursor` as `since` to get the next page. 409:
    the job is not recurring.
    """
    job = await find_recurring_job(api, call)
    query = call.query
    until, now = parse_time(query.until, "until"), api.clock.now()
    since = parse_time(query.since, "since")
    since = (now if until is None else until) - DAY if since is None else since
    # The store's clock may be ahead of this node's.
    until = now + DAY if until is None else until
    # The rows of a tick, one per data center, are not split between pages: the next page begins at a time.
    entries = await api.seen_by(call.principal).ledger(job.id, since, until, query.limit + 1 + MOST_OF_A_TICK)
    end = whole_ticks(entries, query.limit)
    following = isoformat(entries[end].scheduled_at) if len(entries) > end else None
    return Answer(200, Page(items=[render_tick(entry) for entry in entries[:end]], next_cursor=following))


def _build_backfill_run(job: Job, tick: Instant, author: str, now: Instant) -> NewRun:
    """Build the backfill run of a tick.

    The id has the current time, so that lists show the run among new ones. The idempotency key lets only one of two
    concurrent backfills create the run; a later backfill finds it by its tick.
    """
    ref = JobRef(id=job.id, version=job.version, kind="backfill", scheduled_at=tick)
    run_id = RunId(derived_id(now, decode_shard(job.id), job.id, tick, "backfill", now))
    key = Idempotency(f"backfill {job.id} {tick}", fingerprint_of_request(job.id, tick))
    return msgspec.structs.replace(build_run_of_job(job, run_id, None, ref, author), idempotency=key)


async def _list_ticks_with_runs(api: Api, job: Job, since: Instant, until: Instant) -> set[Instant]:
    ran: set[Instant] = set()
    while True:
        entries = await api.store.seen_by(job.tenant).ledger(job.id, since, until, 1_000)
        ran |= {entry.scheduled_at for entry in entries if entry.decision == "run"}
        if len(entries) < 1_000:
            return ran
        since = entries[-1].scheduled_at + 1


def _build_state_answer(job: str, state: JobState | None, wanted: JobState, resume_at: Instant | None = None) -> Answer:
    if state is None:
        raise ObjectNotFound
    if state is not wanted:
        raise Conflict(f"the job is {state.value}")
    return Answer(200, JobStateOut(job_id=job, status=state.value, resume_at=format_time(resume_at)))
