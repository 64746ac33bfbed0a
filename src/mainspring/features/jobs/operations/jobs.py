"""Operations that create and list jobs, one-off and recurring."""

import asyncio
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from mainspring.core.model.access.access import Permission, Principal
from mainspring.core.model.base.errors import Invalid, NotFound
from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.storage.catalog import JobFilter, RunFilter
from mainspring.http.context import Api
from mainspring.http.jobs.lookup import list_parents
from mainspring.http.jobs.reading import explain_past_time
from mainspring.http.jobs.submission import KEY_HEADER, Submit, answer_put, build_conflict, make_job, make_run, read_key
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.problems import Problem
from mainspring.http.rendering.jobs import render_job, render_one_off
from mainspring.http.schemas.common import (
    Cursor,
    Ids,
    Limit,
    Name,
    Page,
    Request,
    Time,
    parse_cursor,
    parse_ids,
    parse_time,
    render_page,
)
from mainspring.http.schemas.job_answers import JobOut
from mainspring.http.schemas.jobs import JobIn, is_recurring
from mainspring.http.schemas.status_words import states_of_both
from mainspring.http.schemas.workflows import read_dependencies
from mainspring.http.search import Search

jobs = Resource("Jobs")


class ListJobsQuery(Request):
    status: Annotated[str, Meta(max_length=200, description="One or several states, comma-separated.")] | None = None
    kind: Literal["recurring", "oneOff"] | None = None
    ids: Ids | None = None
    task: Name | None = None
    queue: Name | None = None
    tag: Name | None = None
    source: Annotated[Name, Meta(description="Only recurring jobs that this application or file declares.")] | None = (
        None
    )
    tenant: Name | None = None
    text: Annotated[str, Meta(max_length=200, description="A part of the name, the task or the id.")] | None = None
    created_after: Time | None = None
    created_before: Time | None = None
    limit: Limit = 50
    cursor: Cursor | None = None


@jobs.operation(
    "POST",
    "/v1/jobs",
    permission=Permission.SUBMIT,
    body=JobIn,
    query=Submit,
    answers={201: JobOut, 202: JobOut, 409: Problem},
    example={"task": "send_welcome", "queue": "mail", "payload": {"user_id": 42}, "idempotencyKey": "welcome-42"},
)
async def create_job(api: Api, call: Call[JobIn, Submit]) -> Answer:
    """Create a job.

    Fields may have the names of other schedulers, such as `job_type`, `executeAt` and `retries`, and may be in
    snake_case. The response follows the commit. A request with the same `idempotencyKey` and the same body creates no
    second job; with another body it is a 409, as is a name or a unique key that is taken. 202: the store is
    unavailable, Kafka keeps the one-off job, and it is created when the store is back.
    """
    return await _create(api, call)


async def _create(api: Api, call: Call[JobIn, Submit]) -> Answer:
    fields = call.body
    tenant = await api.choose_owner(call.principal, fields.tenant)
    key = read_key(fields, call.headers.get(KEY_HEADER))
    if is_recurring(fields):
        new = await make_job(api, fields, tenant, call.principal.name, key)
        await api.admission.admit_job(call.principal, new)
        if call.query.strict:
            await api.workers.check_runnable(new)
        [put] = await api.jobs.put_jobs([new])
        closed = await api.closed_times.of([put.job])
        return answer_put(put, 201, await api.workers.log_warnings(new), closed.get(put.job.id))
    run = await make_run(api, fields, tenant, call.principal.name, key)
    if api.submit_buffer is None:
        return await _create_run(api, call, run, key)
    # An id derived from the key has the time of midnight, and lists are ordered by id. So only jobs kept in the log get
    # one; a job that goes to the store directly has an id of the current time.
    accepted = run if key is None else msgspec.structs.replace(run, id=api.jobs.id_by_key(run))
    answers: list[Answer] = []

    async def create(run: NewRun) -> None:
        answers.append(await _create_run(api, call, run, key))

    async def check() -> None:
        family = read_dependencies(fields)
        parents = () if family is None else family.parents
        await api.admission.check(call.principal, tenant, run.queue, run.task, run.payload, parents, by_store=False)

    api.admission.check_queue(call.principal, run.queue)
    if await api.submit_buffer.submit(run, accepted, fields, create, check):
        return answers[0]
    later = "the store is unavailable; the job is created when it is available again"
    state = RunState.QUEUED if run.at is None and not run.delay else RunState.SCHEDULED
    parents = [RunId(word) for word in fields.depends_on or ()]
    out = render_one_off(build_view(accepted, state, api.clock.now()), parents=parents, warnings=[later])
    return Answer(202, out, {"location": f"/v1/jobs/{accepted.id}"})


@jobs.operation(
    "POST",
    "/api/jobs/schedule",
    permission=Permission.SUBMIT,
    body=JobIn,
    query=Submit,
    answers={200: JobOut, 202: JobOut, 409: Problem},
)
async def schedule_job(api: Api, call: Call[JobIn, Submit]) -> Answer:
    """Create a job, for clients that send `type`, `executeAt`, `priority` and `payload` to this path.

    Works like `POST /v1/jobs`, but responds with 200 instead of 201. A time that has passed is a 400.
    """
    made = await _create(api, call)
    return msgspec.structs.replace(made, status=200) if made.status == 201 else made


async def _create_run(api: Api, call: Call[JobIn, Submit], run: NewRun, key: str | None) -> Answer:
    fields, tenant = call.body, run.tenant
    past = explain_past_time(run, api.clock.now())
    # A repeated request may arrive after its time has passed: it gets the same answer as the first one.
    if past is not None and (key is None or not await api.store.used_keys(tenant, [key])):
        raise past
    # Dependencies are not in the key's fingerprint: repeating a batch gives its jobs new ids.
    run = msgspec.structs.replace(run, after=read_dependencies(fields))
    await api.admission.admit_run(call.principal, run)
    if call.query.strict:
        await api.workers.check_runnable(run)
    try:
        accepted = await api.jobs.submit(run)
    except NotFound as error:
        raise Invalid("dependsOn", str(error)) from None
    if accepted.conflict:
        raise build_conflict(run, accepted)
    warnings = await api.workers.log_warnings(run)
    if not accepted.new:
        found = (await api.seen_by(call.principal).runs([accepted.id]))[0]
        if found is not None:
            parents = await list_parents(api, call.principal, found)
            out = render_one_off(found, parents=parents, warnings=warnings)
            return Answer(201, out, {"location": f"/v1/jobs/{accepted.id}"})
    parents = [] if run.after is None else list(run.after.parents)
    out = render_one_off(build_view(run, accepted.state, api.clock.now()), parents=parents, warnings=warnings)
    return Answer(201, out, {"location": f"/v1/jobs/{accepted.id}"})


@jobs.operation("GET", "/v1/jobs", permission=Permission.READ, query=ListJobsQuery, answers={200: Page[JobOut]})
async def list_jobs(api: Api, call: Call[Empty, ListJobsQuery]) -> Answer:
    """List jobs, newest first.

    Includes recurring and one-off jobs, unless you set `kind`. A job must match every filter. Pass `nextCursor` as
    `cursor` to get the next page.
    """
    query = call.query
    if query.ids is not None:
        return Answer(200, Page(items=await _read_chosen(api, call.principal, parse_ids(query, query.ids))))
    tenant = api.choose_listed(call.principal, query.tenant)
    job_states, run_states = states_of_both(query.status)
    asked = job_states or run_states
    reads, search, cursor = api.listed_by(call.principal), Search(api.clock), parse_cursor(query.cursor)
    since, until = parse_time(query.created_after, "createdAfter"), parse_time(query.created_before, "createdBefore")
    items: list[tuple[str, JobOut]] = []
    reached: list[str] = []
    if query.kind != "oneOff" and (job_states or not asked):
        page = await search.jobs(
            reads,
            JobFilter(
                tenant=tenant,
                states=job_states,
                task=query.task or "",
                queue=query.queue or "",
                tag=query.tag or "",
                source=query.source or "",
                text=query.text or "",
                since=since,
                until=until,
            ),
            cursor,
            query.limit,
        )
        closed = await api.closed_times.of(page.items)
        items += [(job.id, render_job(job, closed.get(job.id), payload=False)) for job in page.items]
        reached += [page.after] if page.after else []
    if query.kind != "recurring" and query.source is None and (run_states or not asked):
        runs = await search.runs(
            reads,
            RunFilter(
                tenant=tenant,
                states=run_states,
                task=query.task or "",
                queue=query.queue or "",
                tag=query.tag or "",
                text=query.text or "",
                one_off=True,
                since=since,
                until=until,
            ),
            cursor,
            query.limit,
        )
        items += [(run.id, render_one_off(run)) for run in runs.items]
        reached += [runs.after] if runs.after else []
    # Both lists are complete down to the newer of their two cursors; the next page reads older items again.
    complete_to = max(reached, default="")
    ordered = sorted((item for item in items if item[0] >= complete_to), key=lambda item: item[0], reverse=True)
    shown = ordered[: query.limit]
    more = len(ordered) > query.limit or len(shown) < len(items) or bool(reached)
    following = (shown[-1][0] if len(ordered) > query.limit else complete_to or shown[-1][0]) if more else None
    return Answer(200, render_page([out for _, out in shown], following, query.limit))


async def _read_chosen(api: Api, principal: Principal, ids: list[str]) -> list[JobOut]:
    """Read jobs of both kinds by their ids; unknown ids are left out."""
    reads = api.listed_by(principal)
    jobs, runs = await asyncio.gather(reads.jobs(list(map(JobId, ids))), reads.runs(list(map(RunId, ids))))
    closed = await api.closed_times.of([job for job in jobs if job is not None])
    found: list[JobOut] = []
    for job, run in zip(jobs, runs, strict=True):
        if job is not None:
            found.append(render_job(job, closed.get(job.id), payload=False))
        elif run is not None and run.job_id is None:
            found.append(render_one_off(run))
    return found


def build_view(run: NewRun, state: RunState, now: Instant) -> RunView:
    """Build the view of a run that was just submitted, as the store would return it."""
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
        parents=0 if run.after is None else len(run.after.parents),
        rule=None if run.after is None else run.after.rule,
    )
