"""Jobs: one-off and recurring."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from mainspring.api.context import Admitted, Api
from mainspring.api.lookup import find, job_only
from mainspring.api.operation import Answer, Call, Nothing, Resource
from mainspring.api.problems import Missing, Problem, decode, problem_of
from mainspring.api.schemas.common import (
    Cursor,
    Limit,
    Name,
    Page,
    Request,
    Time,
    Wire,
    cursor_of,
    instant_of,
)
from mainspring.api.schemas.jobs import (
    JobFields,
    JobIn,
    JobOut,
    JobPatch,
    fields_of,
    idempotency_of,
    is_recurring,
    job_out,
    merged,
    one_off_out,
    past_of,
    payload_of,
    run_of,
    run_of_job,
    spec_of,
    tenant_of,
)
from mainspring.api.schemas.runs import (
    SYNONYMS,
    RunMade,
    RunOut,
    StatusOut,
    TickOut,
    run_out,
    status_out,
)
from mainspring.domain.access import Permission, Principal
from mainspring.domain.errors import Conflict, Invalid, StoreUnavailable
from mainspring.domain.ids import JobId, RunId, derived_id, shard_of
from mainspring.domain.instant import DAY, Instant, isoformat, parse_instant
from mainspring.domain.job import Job, JobState, NewJob
from mainspring.domain.labels import labels_of
from mainspring.domain.run import (
    ENDED,
    Idempotency,
    JobRef,
    NewRun,
    RunState,
    RunView,
    fingerprint_of_request,
    made_once,
)
from mainspring.domain.schedule import ticks_between
from mainspring.ports.access import Author
from mainspring.ports.catalog import JobFilter, JobVersion, Reads, RunFilter
from mainspring.ports.store import Put, PutOutcome

jobs = Resource("Jobs", "What to run, when, and by which policies. A one-off job is its run: both have the same id.")

New = TypeVar("New", NewRun, NewJob)

KEY_HEADER = "idempotency-key"
LARGEST_BATCH = 10_000
#: How often a change is made anew on top of what somebody else changed meanwhile.
_TRIES = 10
_MOST_BACKFILLED = 10_000
#: Of larger values a change tells the sizes.
_LARGEST_SHOWN = 4_096
_VERSIONS_AT_ONCE = 8
_ON_ITS_WAY = frozenset(set(RunState) - ENDED)


class Batch(Request):
    """Up to 10,000 jobs."""

    jobs: Annotated[
        list[msgspec.Raw],
        Meta(
            min_length=1,
            max_length=LARGEST_BATCH,
            extra_json_schema={"items": {"$ref": "#/components/schemas/JobIn"}},
        ),
    ]


class BatchItem(Wire):
    """What became of one job of a batch."""

    job_id: str | None = None
    status: str | None = None
    problem: Problem | None = None


class BatchOut(Wire):
    accepted: int
    refused: int
    items: list[BatchItem]


class ListJobs(Request):
    status: Annotated[str, Meta(max_length=200, description="One or several, with commas.")] | None = None
    kind: Literal["recurring", "oneOff"] | None = None
    task: Name | None = None
    queue: Name | None = None
    tag: Name | None = None
    source: Annotated[Name, Meta(description="Recurring ones that this application or file declares.")] | None = None
    tenant: Name | None = None
    text: Annotated[str, Meta(max_length=200, description="Part of the name, the task or the id.")] | None = None
    created_after: Time | None = None
    created_before: Time | None = None
    limit: Limit = 50
    cursor: Cursor | None = None


class PageQuery(Request):
    limit: Limit = 50
    cursor: Cursor | None = None


class LedgerQuery(Request):
    since: Time | None = None
    until: Time | None = None
    limit: Limit = 100


class NextQuery(Request):
    n: Annotated[int, Meta(ge=1, le=100)] = 5


class NextOut(Wire):
    job_id: str
    next_fires: list[str]


class Purge(Request):
    purge: bool = False


class Cancelled(Wire):
    job_id: str
    status: Literal["cancelled", "cancelling", "purged"]


class RunNow(Request):
    payload: msgspec.Raw | UnsetType = UNSET


class Backfill(Request):
    since: Time
    until: Time
    dry_run: bool = False


class BackfillOut(Wire):
    job_id: str
    ticks: int
    """How many ticks of the schedule lie in the range."""
    made: int
    """How many runs were made; ticks that had a run already are left out."""
    scheduled_for: list[str]
    dry_run: bool


class Version(Wire):
    version: int
    made_by: str
    made_at: str
    why: str = ""
    changes: dict[str, "Change"] = {}


class Change(Wire):
    """What it was and what it became; of what has more than 4 KiB only the sizes."""

    before: msgspec.Raw | UnsetType = UNSET
    after: msgspec.Raw | UnsetType = UNSET
    bytes_before: int | UnsetType = UNSET
    bytes_after: int | UnsetType = UNSET


class VersionsQuery(Request):
    limit: Annotated[int, Meta(ge=1, le=100, description="How many at most.")] = 20
    cursor: Annotated[str, Meta(pattern="^[0-9]{1,9}$", description="`nextCursor` of the page before.")] | None = None


class Versions(Wire):
    job_id: str
    items: list[Version]
    next_cursor: str | None = None


class JobStateOut(Wire):
    job_id: str
    status: str


@jobs.operation("POST", "/v1/jobs", permission=Permission.SUBMIT, body=JobIn, answers={201: JobOut, 409: Problem})
async def create_job(api: Api, call: Call[JobIn, Nothing]) -> Answer:
    """Make a job.

    The answer comes when it is committed. The same `idempotencyKey` with the same body makes no second job.
    """
    fields = call.body
    tenant = tenant_of(fields, call.principal.tenant)
    key = key_of(fields, call.headers.get(KEY_HEADER))
    if is_recurring(fields):
        new = new_job(api, fields, tenant, call.principal.name, key)
        await api.admit_job(call.principal, new)
        return _put_answer((await api.jobs.put_jobs([new]))[0], 201, await api.warnings(tenant, new.spec.task))
    run = _new_run(api, fields, tenant, call.principal.name, key)
    past = past_of(run, api.clock.now())
    # Its time may have come since it was made. Sent again it is the same, whatever became of it.
    if past is not None and (key is None or not await api.store.used_keys(tenant, [key])):
        raise past
    await api.admit(call.principal, run)
    accepted = await api.jobs.submit(run)
    if accepted.conflict:
        raise Conflict(f"this idempotency key was used for another job, {accepted.id}")
    warnings = await api.warnings(tenant, run.task)
    if not accepted.new:
        found = (await api.seen_by(call.principal).runs([accepted.id]))[0]
        if found is not None:
            return Answer(201, one_off_out(found, warnings=warnings), {"location": f"/v1/jobs/{accepted.id}"})
    out = one_off_out(view_of(run, accepted.state, api.clock.now()), warnings=warnings)
    return Answer(201, out, {"location": f"/v1/jobs/{accepted.id}"})


@jobs.operation(
    "POST",
    "/v1/jobs/batch",
    permission=Permission.SUBMIT,
    body=Batch,
    answers={200: BatchOut},
    largest_body=64 * 1024 * 1024,
    within=None,
)
async def create_jobs(api: Api, call: Call[Batch, Nothing]) -> Answer:
    """Make up to 10,000 jobs.

    Each is answered for itself, in order, and has its own `idempotencyKey`; the header is refused. What has a `jobId`
    is committed; what has a `problem` is not. Where a quota allows only some, these are the first ones.
    """
    items: list[BatchItem | None] = []
    runs: list[tuple[int, NewRun]] = []
    late: list[tuple[int, NewRun]] = []
    recurring: list[tuple[int, NewJob]] = []
    now = api.clock.now()
    if KEY_HEADER in call.headers:
        raise Invalid("Idempotency-Key", "is not for a batch", "give each job an idempotencyKey of its own")
    for number, raw in enumerate(call.body.jobs):
        items.append(None)
        try:
            fields = decode(bytes(raw), JobIn, _job_decoder)
            tenant = tenant_of(fields, call.principal.tenant)
            key = key_of(fields, None)
            if is_recurring(fields):
                new = new_job(api, fields, tenant, call.principal.name, key)
                new.check()
                await api.check(call.principal, tenant, new.spec.queue, new.spec.task, new.payload)
                recurring.append((number, new))
            else:
                run = _new_run(api, fields, tenant, call.principal.name, key)
                run.check()
                await api.check(call.principal, tenant, run.queue, run.task, run.payload)
                past = past_of(run, now)
                if past is not None and key is None:
                    raise past
                (runs if past is None else late).append((number, run))
        except Exception as error:
            items[number] = _refused(error)
    runs = sorted(runs + await _repeats(api, late, now, items), key=lambda pair: pair[0])
    runs = await _within_quotas(runs, api.room_for_runs, items)
    recurring = await _within_quotas(recurring, api.room_for_jobs, items)
    for start in range(0, len(runs), 1_000):
        part = runs[start : start + 1_000]
        try:
            accepted = await api.jobs.submit_many([run for _, run in part])
        except StoreUnavailable as error:
            if not start:
                raise
            # It was asked for long enough: the rest is answered at once.
            for number, _ in runs[start:]:
                items[number] = _refused(error)
            break
        except Exception as error:
            for number, _ in part:
                items[number] = _refused(error)
            continue
        for (number, _), answer in zip(part, accepted, strict=True):
            if answer.conflict:
                items[number] = _refused(Conflict(f"this idempotency key was used for another job, {answer.id}"))
            else:
                items[number] = BatchItem(job_id=answer.id, status=answer.state.value)
    for start in range(0, len(recurring), 1_000):
        some = recurring[start : start + 1_000]
        try:
            puts = await api.jobs.put_jobs([new for _, new in some])
        except StoreUnavailable as error:
            if not runs and not start:
                raise
            for number, _ in recurring[start:]:
                items[number] = _refused(error)
            break
        except Exception as error:
            for number, _ in some:
                items[number] = _refused(error)
            continue
        for (number, _), put in zip(some, puts, strict=True):
            try:
                answered = _put_answer(put, 201, [])
                items[number] = BatchItem(job_id=put.job.id, status=answered.body.status)
            except Conflict as error:
                items[number] = _refused(error)
    done = [item for item in items if item is not None]
    refused = sum(item.problem is not None for item in done)
    return Answer(200, BatchOut(accepted=len(done) - refused, refused=refused, items=done))


async def _repeats(
    api: Api, late: list[tuple[int, NewRun]], now: Instant, items: list[BatchItem | None]
) -> list[tuple[int, NewRun]]:
    """Of those whose time has passed, the ones that were made before. The others are answered."""
    keys: dict[str, list[str]] = {}
    for _, run in late:
        keys.setdefault(run.tenant, []).append("" if run.idempotency is None else run.idempotency.key)
    used = {tenant: await api.store.used_keys(tenant, given) for tenant, given in keys.items()}
    known = []
    for number, run in late:
        if run.idempotency is not None and run.idempotency.key in used[run.tenant]:
            known.append((number, run))
        elif (past := past_of(run, now)) is not None:
            items[number] = _refused(past)
    return known


async def _within_quotas(
    asked: list[tuple[int, New]],
    room: Callable[[str, int], Awaitable[Admitted]],
    items: list[BatchItem | None],
) -> list[tuple[int, New]]:
    """Those that the quotas allow, each tenant's asked once. The others are answered."""
    counts = Counter(new.tenant for _, new in asked)
    admitted = {tenant: await room(tenant, count) for tenant, count in counts.items()}
    seen: Counter[str] = Counter()
    kept = []
    for number, new in asked:
        tenant = new.tenant
        seen[tenant] += 1
        why_not = admitted[tenant].why_not_more
        if seen[tenant] > admitted[tenant].count and why_not is not None:
            items[number] = _refused(why_not)
        else:
            kept.append((number, new))
    return kept


@jobs.operation("GET", "/v1/jobs", permission=Permission.READ, query=ListJobs, answers={200: Page[JobOut]})
async def list_jobs(api: Api, call: Call[Nothing, ListJobs]) -> Answer:
    """List jobs, newest first.

    Recurring and one-off ones together; `kind` chooses. Filters must all hold.
    """
    query = call.query
    tenant = api.scope(call.principal, query.tenant)
    job_states, run_states, asked = _states(query.status)
    after = cursor_of(query.cursor)
    since, until = instant_of(query.created_after, "createdAfter"), instant_of(query.created_before, "createdBefore")
    items: list[tuple[str, JobOut]] = []
    reached: list[str] = []
    if query.kind != "oneOff" and (job_states or not asked):
        page = await api.seen_by(call.principal).list_jobs(
            JobFilter(
                tenant=tenant,
                states=frozenset(job_states),
                task=query.task or "",
                queue=query.queue or "",
                tag=query.tag or "",
                source=query.source or "",
                text=query.text or "",
                since=since,
                until=until,
            ),
            None if after is None else JobId(after),
            query.limit,
        )
        items += [(job.id, job_out(job, payload=False)) for job in page.items]
        reached += [page.after] if page.after else []
    if query.kind != "recurring" and query.source is None and (run_states or not asked):
        runs = await api.seen_by(call.principal).list_runs(
            RunFilter(
                tenant=tenant,
                states=frozenset(run_states),
                task=query.task or "",
                queue=query.queue or "",
                tag=query.tag or "",
                text=query.text or "",
                one_off=True,
                since=since,
                until=until,
            ),
            None if after is None else RunId(after),
            query.limit,
        )
        items += [(run.id, one_off_out(run)) for run in runs.items]
        reached += [runs.after] if runs.after else []
    # Both lists are complete down to the newer of the places they reached; what lies below is read again.
    complete_to = max(reached, default="")
    ordered = sorted((item for item in items if item[0] >= complete_to), key=lambda item: item[0], reverse=True)
    shown = ordered[: query.limit]
    more = len(ordered) > query.limit or len(shown) < len(items) or bool(reached)
    following = (shown[-1][0] if len(ordered) > query.limit else complete_to or shown[-1][0]) if more else None
    return Answer(200, Page(items=[out for _, out in shown], next_cursor=following))


@jobs.operation("GET", "/v1/jobs/{id}", permission=Permission.READ, answers={200: JobOut, 404: Problem})
async def get_job(api: Api, call: Call[Nothing, Nothing]) -> Answer:
    """Get a job."""
    found = await find(api, call, payload=True)
    return Answer(200, job_out(found) if isinstance(found, Job) else one_off_out(found))


async def _change(api: Api, call: Call[JobPatch, Nothing]) -> Answer:
    for _ in range(_TRIES):
        found = await find(api, call, payload=True)
        if not isinstance(found, RunView):
            return await _new_version(api, call.principal, found, merged(fields_of(found), call.body), call.body)
        answer = await _edit_one_off(api, call.principal, found, call.body)
        if answer is not None:
            return answer
    raise Conflict("others are changing this job at the same time; ask again")


async def _new_version(api: Api, principal: Principal, job: Job, fields: JobFields, patch: JobPatch) -> Answer:
    if job.state not in (JobState.SCHEDULED, JobState.PAUSED):
        raise Conflict(f"the job is {job.state.value}")
    # Whoever declares it goes on doing so: their next plan shows what was changed here.
    spec = msgspec.structs.replace(spec_of(fields), source=job.spec.source)
    if spec.name != job.spec.name:
        raise Invalid("name", "of a recurring job cannot be changed", "make another job and delete this one")
    expected = job.version if patch.expected_version is UNSET else patch.expected_version
    new = NewJob(
        id=job.id,
        spec=spec,
        payload=payload_of(fields),
        tenant=job.tenant,
        author=principal.name,
        why=_why(patch),
        expected_version=expected,
    )
    await api.check(principal, new.tenant, spec.queue, spec.task, new.payload)
    put = (await api.jobs.put_jobs([new]))[0]
    if put.outcome is PutOutcome.STALE:
        raise Conflict(f"the job has version {put.job.version} by now")
    return Answer(200, job_out(put.job, warnings=await api.warnings(job.tenant, spec.task)))


async def _edit_one_off(api: Api, principal: Principal, run: RunView, patch: JobPatch) -> Answer | None:
    """None: somebody else has changed it since it was read."""
    if patch.expected_version is not UNSET:
        raise Invalid("expectedVersion", "is for recurring jobs", "a one-off job has no versions")
    if patch.cron_expression is not UNSET or patch.every is not UNSET:
        raise Invalid("scheduleType", "of a one-off job cannot become recurring", "make another job")
    base = one_off_fields(run)
    changed = merged(base, patch)
    if patch.schedule_time is UNSET:
        changed = msgspec.structs.replace(changed, schedule_time=UNSET, schedule_type=UNSET)
    new = run_of(changed, run.id, run.tenant, principal.name)
    if (past := past_of(new, api.clock.now())) is not None:
        raise past
    if patch.schedule_time is UNSET and patch.delay is UNSET:
        new = msgspec.structs.replace(new, at=run.due)
    new.check()
    await api.check(principal, new.tenant, new.queue, new.task, new.payload)
    accepted = await api.store.edit_run(new, Author(principal.name, run.tenant, _why(patch)), was=run)
    if accepted is None:
        raise Conflict("the job has started; what it does cannot be changed any more")
    if accepted.conflict:
        return None
    seen = (await api.store.seen_by(run.tenant).runs([run.id], payloads=True))[0]
    if seen is None:
        raise Missing
    return Answer(200, one_off_out(seen))


@jobs.operation(
    "PATCH",
    "/v1/jobs/{id}",
    permission=Permission.OPERATE,
    body=JobPatch,
    answers={200: JobOut, 404: Problem, 409: Problem},
)
async def change_job(api: Api, call: Call[JobPatch, Nothing]) -> Answer:
    """Change a job.

    What is not named stays. A recurring job gets a new version; a one-off can be changed until it starts.
    """
    return await _change(api, call)


@jobs.operation(
    "PUT",
    "/v1/jobs/{id}",
    permission=Permission.OPERATE,
    body=JobPatch,
    answers={200: JobOut, 404: Problem, 409: Problem},
)
async def update_job(api: Api, call: Call[JobPatch, Nothing]) -> Answer:
    """Change a job, as PATCH does.

    What is not named stays.
    """
    return await _change(api, call)


@jobs.operation(
    "DELETE",
    "/v1/jobs/{id}",
    permission=Permission.OPERATE,
    query=Purge,
    answers={200: Cancelled, 202: Cancelled, 404: Problem, 409: Problem},
)
async def cancel_job(api: Api, call: Call[Nothing, Purge]) -> Answer:
    """Cancel a job, scheduled or running.

    202 while what runs is being stopped. With `purge` a job that has ended is deleted for good.
    """
    found = await find(api, call)
    author = Author(call.principal.name, found.tenant)
    if isinstance(found, Job):
        await api.jobs.cancel_jobs([found.id], author)
        wanted = RunFilter(tenant=found.tenant, job=found.id, states=_ON_ITS_WAY)
        stopping = bool((await api.seen_by(call.principal).list_runs(wanted, None, 1)).items)
    else:
        states = await api.jobs.cancel_runs([found.id], author)
        state = states.get(found.id, found.state)
        stopping = state not in ENDED
        if state in ENDED - {RunState.CANCELLED} and not call.query.purge:
            raise Conflict(f"the job has {state.value} already")
    if stopping:
        return Answer(202, Cancelled(job_id=found.id, status="cancelling"))
    if call.query.purge:
        await api.store.purge([found.id], author)
        return Answer(200, Cancelled(job_id=found.id, status="purged"))
    return Answer(200, Cancelled(job_id=found.id, status="cancelled"))


@jobs.operation(
    "POST",
    "/v1/jobs/{id}/run",
    permission=Permission.SUBMIT,
    body=RunNow,
    body_optional=True,
    answers={201: RunMade, 404: Problem},
)
async def run_job(api: Api, call: Call[RunNow, Nothing]) -> Answer:
    """Run a job now.

    A recurring one beside its schedule, a one-off once more; with another payload if one is given. The same
    `Idempotency-Key` makes no second run.
    """
    found = await find(api, call, payload=True)
    payload = None if call.body.payload is UNSET else bytes(call.body.payload)
    if isinstance(found, Job):
        ref = JobRef(id=found.id, version=found.version)
        run_id = api.jobs.new_run_id(found.spec.policy.ordering_key)
        run = run_of_job(found, run_id, payload, ref, call.principal.name)
    else:
        again = found.payload if payload is None else payload
        run = NewRun(
            id=api.jobs.new_run_id(found.policy.ordering_key),
            task=found.task,
            payload=b"null" if again is None else again,
            queue=found.queue,
            tenant=found.tenant,
            priority=found.priority,
            policy=found.policy,
            about=found.about,
            author=call.principal.name,
        )
    said = [found.id, "run", None if payload is None else msgspec.Raw(payload)]
    run = msgspec.structs.replace(run, idempotency=idempotency_of(call.headers.get(KEY_HEADER), said))
    await api.admit(call.principal, run)
    accepted = await api.jobs.submit(run)
    if accepted.conflict:
        raise Conflict(f"this idempotency key was used for something else, {accepted.id}")
    out = RunMade(
        job_id=found.id,
        run_id=accepted.id,
        status=accepted.state.value,
        warnings=await api.warnings(run.tenant, run.task),
    )
    return Answer(201, out, {"location": f"/v1/runs/{accepted.id}"})


@jobs.operation(
    "POST", "/v1/jobs/{id}/pause", permission=Permission.OPERATE, answers={200: JobStateOut, 404: Problem, 409: Problem}
)
async def pause_job(api: Api, call: Call[Nothing, Nothing]) -> Answer:
    """Pause a recurring job.

    Its ticks are recorded as skipped (paused) until it is resumed.
    """
    job = await job_only(api, call)
    states = await api.jobs.pause([job.id], Author(call.principal.name, job.tenant))
    return _state_answer(job.id, states.get(job.id), JobState.PAUSED)


@jobs.operation(
    "POST",
    "/v1/jobs/{id}/resume",
    permission=Permission.OPERATE,
    answers={200: JobStateOut, 404: Problem, 409: Problem},
)
async def resume_job(api: Api, call: Call[Nothing, Nothing]) -> Answer:
    """Resume a paused job."""
    job = await job_only(api, call)
    states = await api.jobs.resume([job.id], Author(call.principal.name, job.tenant))
    return _state_answer(job.id, states.get(job.id), JobState.SCHEDULED)


@jobs.operation(
    "POST",
    "/v1/jobs/{id}/backfill",
    permission=Permission.OPERATE,
    body=Backfill,
    within=None,
    answers={200: BackfillOut, 404: Problem, 409: Problem},
)
async def backfill_job(api: Api, call: Call[Backfill, Nothing]) -> Answer:
    """Make up for ticks in a range of time.

    Every tick from `since` to before `until` that has no run yet gets one. Asked again it makes none twice. Where a
    quota allows only some, these are the first ones; ask again for the others.
    """
    job = await job_only(api, call)
    since, until = parse_instant(call.body.since, "since"), parse_instant(call.body.until, "until")
    if until <= since:
        raise Invalid("until", "is not after since")
    if until > api.clock.now():
        raise Invalid("until", "is in the future", "a backfill makes up for what has passed")
    if job.spec.fixed_delay is not None:
        raise Conflict("a fixed delay has no ticks of its own to make up for")
    ticks = ticks_between(job.spec.schedule, since - 1, until - 1, job.id, _MOST_BACKFILLED + 1)
    if len(ticks) > _MOST_BACKFILLED:
        raise Invalid("since", f"there are more than {_MOST_BACKFILLED} ticks in this range", "take a shorter one")
    await api.check(call.principal, job.tenant, job.spec.queue, job.spec.task, job.payload)
    ran = await _ticks_with_runs(api, job, since, until)
    missing = [tick for tick in ticks if tick not in ran]
    made = 0
    if not call.body.dry_run:
        runs = await _not_made_yet(api, [_backfilled(job, tick, call.principal.name) for tick in missing])
        admitted = await api.room_for_runs(job.tenant, len(runs))
        admitted.insist()
        runs = runs[: admitted.count]
        made = sum(answer.new for answer in await api.jobs.submit_many(runs))
    out = BackfillOut(
        job_id=job.id,
        ticks=len(ticks),
        made=made,
        scheduled_for=[isoformat(tick) for tick in missing],
        dry_run=call.body.dry_run,
    )
    return Answer(200, out)


@jobs.operation(
    "GET", "/v1/jobs/{id}/next", permission=Permission.READ, query=NextQuery, answers={200: NextOut, 404: Problem}
)
async def next_fires(api: Api, call: Call[Nothing, NextQuery]) -> Answer:
    """The next fires of a job."""
    found = await find(api, call)
    if isinstance(found, Job):
        fires = found.next_fires(call.query.n) if found.state in (JobState.SCHEDULED, JobState.PAUSED) else []
    else:
        fires = [found.due] if found.state in (RunState.SCHEDULED, RunState.BLOCKED, RunState.QUEUED) else []
    return Answer(200, NextOut(job_id=found.id, next_fires=[isoformat(fire) for fire in fires]))


@jobs.operation("GET", "/v1/jobs/{id}/status", permission=Permission.READ, answers={200: StatusOut, 404: Problem})
async def job_status(api: Api, call: Call[Nothing, Nothing]) -> Answer:
    """Where a job stands.

    Its newest run that has begun, else its schedule.
    """
    found = await find(api, call)
    if isinstance(found, RunView):
        return Answer(200, status_out(found.id, found.state.value, found))
    newest = await api.seen_by(call.principal).list_runs(RunFilter(tenant=found.tenant, job=found.id), None, 10)
    begun = next((run for run in newest.items if run.started_at is not None), None)
    return Answer(200, status_out(found.id, found.state.value, begun))


@jobs.operation(
    "GET", "/v1/jobs/{id}/runs", permission=Permission.READ, query=PageQuery, answers={200: Page[RunOut], 404: Problem}
)
async def job_runs(api: Api, call: Call[Nothing, PageQuery]) -> Answer:
    """The runs of a job, newest first."""
    found = await find(api, call)
    if isinstance(found, RunView):
        return Answer(200, Page(items=[run_out(found)] if call.query.cursor is None else []))
    after = cursor_of(call.query.cursor)
    page = await api.seen_by(call.principal).list_runs(
        RunFilter(tenant=found.tenant, job=found.id), None if after is None else RunId(after), call.query.limit
    )
    return Answer(200, Page(items=[run_out(run) for run in page.items], next_cursor=page.after))


@jobs.operation(
    "GET",
    "/v1/jobs/{id}/ledger",
    permission=Permission.READ,
    query=LedgerQuery,
    answers={200: Page[TickOut], 404: Problem, 409: Problem},
)
async def job_ledger(api: Api, call: Call[Nothing, LedgerQuery]) -> Answer:
    """What became of every tick, oldest first.

    The last day before `until` unless `since` says otherwise; the cursor of a page is the `since` of the next.
    """
    job = await job_only(api, call)
    query = call.query
    until, now = instant_of(query.until, "until"), api.clock.now()
    since = instant_of(query.since, "since")
    since = (now if until is None else until) - DAY if since is None else since
    # The store's clock may be ahead of ours.
    until = now + DAY if until is None else until
    entries = await api.seen_by(call.principal).ledger(job.id, since, until, query.limit + 1)
    shown = entries[: query.limit]
    items = [
        TickOut(
            scheduled_for=isoformat(entry.scheduled_at),
            decision=entry.decision,
            job_version=entry.job_version,
            reason=entry.reason,
            run_id=entry.run_id,
            ticks=entry.ticks,
            until=None if entry.last_at is None else isoformat(entry.last_at),
        )
        for entry in shown
    ]
    following = isoformat(entries[query.limit].scheduled_at) if len(entries) > query.limit else None
    return Answer(200, Page(items=items, next_cursor=following))


@jobs.operation(
    "GET",
    "/v1/jobs/{id}/versions",
    permission=Permission.READ,
    query=VersionsQuery,
    answers={200: Versions, 404: Problem, 409: Problem},
)
async def job_versions(api: Api, call: Call[Nothing, VersionsQuery]) -> Answer:
    """Who changed what, newest first."""
    job = await job_only(api, call)
    before = None if call.query.cursor is None else int(call.query.cursor) + 1
    items: list[Version] = []
    newer: JobVersion | None = None
    async for version in _versions(api.seen_by(call.principal), job.id, before):
        if newer is not None:
            items.append(_version_out(job, newer, version))
        newer = version
        if len(items) == call.query.limit:
            return Answer(200, Versions(job_id=job.id, items=items, next_cursor=str(newer.version)))
    if newer is not None:
        items.append(_version_out(job, newer, None))
    return Answer(200, Versions(job_id=job.id, items=items))


async def _versions(reads: Reads, job: JobId, before: int | None) -> AsyncIterator[JobVersion]:
    """Newest first. They have payloads, so only a few are held at once."""
    while True:
        some = await reads.versions(job, before=before, limit=_VERSIONS_AT_ONCE)
        for version in some:
            yield version
        if len(some) < _VERSIONS_AT_ONCE:
            return
        before = some[-1].version


@jobs.operation(
    "POST",
    "/v1/jobs/{id}/versions/{version}/restore",
    permission=Permission.OPERATE,
    answers={200: JobOut, 404: Problem, 409: Problem},
)
async def restore_version(api: Api, call: Call[Nothing, Nothing]) -> Answer:
    """Make an old version the newest one."""
    job = await job_only(api, call)
    text = call.path["version"]
    wanted = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    found = await api.seen_by(call.principal).versions(job.id, before=wanted + 1, limit=1)
    if not found or found[0].version != wanted:
        raise Missing
    old = found[0]
    restored = fields_of(msgspec.structs.replace(job, spec=old.spec, payload=old.payload))
    return await _new_version(api, call.principal, job, restored, JobPatch(why=f"restored version {old.version}"))


def _new_run(api: Api, fields: JobFields, tenant: str, author: str, key: str | None) -> NewRun:
    ordering_key = "" if fields.ordering_key is UNSET else fields.ordering_key
    run = run_of(fields, api.jobs.new_run_id(ordering_key), tenant, author)
    return run if key is None else made_once(run, key)


def new_job(api: Api, fields: JobFields, tenant: str, author: str, key: str | None) -> NewJob:
    spec = spec_of(fields)
    payload = payload_of(fields)
    return NewJob(
        id=api.jobs.new_job_id(tenant, spec.name),
        spec=spec,
        payload=payload,
        tenant=tenant,
        author=author,
        must_be_new=True,
        idempotency=None if key is None else Idempotency(key, fingerprint_of_request(spec, payload)),
    )


def key_of(fields: JobIn, header: str | None) -> str | None:
    """The idempotency key, wherever it stands."""
    key = header if fields.idempotency_key is UNSET else fields.idempotency_key
    if header is not None and key != header:
        raise Invalid("idempotencyKey", "differs from the header Idempotency-Key")
    if key is None:
        return None
    if not 0 < len(key) <= 200 or not key.isprintable():
        raise Invalid("idempotencyKey", "is not a key", "1 to 200 printable characters")
    return key


def view_of(run: NewRun, state: RunState, now: Instant) -> RunView:
    """A run that was just made, as it would be read back."""
    due = run.at if run.at is not None else now + run.delay
    return RunView(
        id=run.id,
        state=state,
        task=run.task,
        queue=run.queue,
        tenant=run.tenant,
        priority=run.priority,
        attempt=0,
        due=due,
        created_at=now,
        about=run.about,
        policy=run.policy,
        start_by=None if run.start_within is None else due + run.start_within,
        deadline=None if run.deadline is None else due + run.deadline,
        payload=run.payload,
    )


def one_off_fields(run: RunView) -> JobFields:
    out = one_off_out(run)
    return JobFields(
        name=out.name or UNSET,
        task=run.task,
        payload=msgspec.Raw(run.payload or b"null"),
        queue=run.queue,
        priority=run.priority,
        max_retries=out.max_retries,
        retry=out.retry,
        timeout=out.timeout or UNSET,
        deadline=out.deadline,
        start_within=out.start_within,
        ordering_key=run.policy.ordering_key,
        requires=labels_of(run.policy.requires),
        guarantee=run.policy.guarantee,
        owner=out.owner or UNSET,
        tags=out.tags,
    )


def _backfilled(job: Job, tick: Instant, author: str) -> NewRun:
    ref = JobRef(id=job.id, version=job.version, kind="backfill", scheduled_at=tick)
    # The id says which tick, so that a repeated backfill makes nothing twice.
    run_id = RunId(derived_id(tick, shard_of(job.id), job.id, tick, "backfill"))
    return run_of_job(job, run_id, None, ref, author)


async def _not_made_yet(api: Api, runs: list[NewRun]) -> list[NewRun]:
    """Only these count against a quota."""
    found: list[RunView | None] = []
    for start in range(0, len(runs), 1_000):
        found += await api.store.runs([run.id for run in runs[start : start + 1_000]])
    return [run for run, made in zip(runs, found, strict=True) if made is None]


async def _ticks_with_runs(api: Api, job: Job, since: Instant, until: Instant) -> set[Instant]:
    ran: set[Instant] = set()
    while True:
        entries = await api.store.seen_by(job.tenant).ledger(job.id, since, until, 1_000)
        ran |= {entry.scheduled_at for entry in entries if entry.decision == "run"}
        if len(entries) < 1_000:
            return ran
        since = entries[-1].scheduled_at + 1


def _version_out(job: Job, version: JobVersion, older: JobVersion | None) -> Version:
    changes = {}
    if older is not None:
        before = msgspec.structs.replace(job, spec=older.spec, payload=older.payload)
        after = msgspec.structs.replace(job, spec=version.spec, payload=version.payload)
        changes = differences(fields_of(before), fields_of(after))
    return Version(
        version=version.version,
        made_by=version.made_by,
        made_at=isoformat(version.made_at),
        why=version.why,
        changes=changes,
    )


def differences(before: JobFields, after: JobFields) -> dict[str, Change]:
    """Field by field, as people write them."""
    old = msgspec.json.decode(msgspec.json.encode(before), type=dict[str, msgspec.Raw])
    new = msgspec.json.decode(msgspec.json.encode(after), type=dict[str, msgspec.Raw])
    null = msgspec.Raw(b"null")
    changes = {}
    for name in sorted(old.keys() | new.keys()):
        was, became = old.get(name, null), new.get(name, null)
        sizes = len(bytes(was)), len(bytes(became))
        if bytes(was) == bytes(became):
            continue
        if max(sizes) > _LARGEST_SHOWN:
            changes[name] = Change(bytes_before=sizes[0], bytes_after=sizes[1])
        else:
            changes[name] = Change(before=was, after=became)
    return changes


def _put_answer(put: Put, status: int, warnings: list[str]) -> Answer:
    if put.outcome is PutOutcome.EXISTS:
        raise Conflict(f"there is a job of this name, {put.job.id}")
    if put.outcome is PutOutcome.CONFLICT:
        raise Conflict(f"this idempotency key was used for another job, {put.job.id}")
    return Answer(status, job_out(put.job, warnings=warnings), {"location": f"/v1/jobs/{put.job.id}"})


def _state_answer(job: str, state: JobState | None, wanted: JobState) -> Answer:
    if state is None:
        raise Missing
    if state is not wanted:
        raise Conflict(f"the job is {state.value}")
    return Answer(200, JobStateOut(job_id=job, status=state.value))


def _refused(error: Exception) -> BatchItem:
    return BatchItem(problem=problem_of(error)[0])


def _why(patch: JobPatch) -> str:
    return "" if patch.why is UNSET else patch.why


def _states(text: str | None) -> tuple[set[JobState], set[RunState], bool]:
    """The states of recurring jobs and of runs that a filter names."""
    job_states: set[JobState] = set()
    run_states: set[RunState] = set()
    words = [word.strip().lower() for word in (text or "").split(",") if word.strip()]
    for word in words:
        known = False
        if word in set(JobState):
            job_states.add(JobState(word))
            known = True
        if word in SYNONYMS:
            run_states.add(SYNONYMS[word])
            known = True
        if not known:
            names = ", ".join(sorted({*JobState, *SYNONYMS}))
            raise Invalid("status", f"{word[:40]!r} is no status", names)
    return job_states, run_states, bool(words)


_job_decoder: "msgspec.json.Decoder[JobIn]" = msgspec.json.Decoder(JobIn)
