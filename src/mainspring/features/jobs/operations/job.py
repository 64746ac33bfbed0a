"""One job: look at it, change it, cancel it."""

from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec
from msgspec import UNSET

from mainspring.core.model.access.access import Permission, Principal
from mainspring.core.model.base.errors import Conflict, Invalid
from mainspring.core.model.base.ids import JobId
from mainspring.core.model.runs.run import ENDED, About, RunState, RunView
from mainspring.core.model.schedules.job import Job, JobState, NewJob
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import RunFilter
from mainspring.core.store import PutOutcome
from mainspring.http.context import Api
from mainspring.http.lookup import Found, find, parents_of
from mainspring.http.operation import Answer, Call, Nothing, Resource
from mainspring.http.problems import Missing, Problem
from mainspring.http.schemas.common import Request, Wire, retention_out
from mainspring.http.schemas.job_answers import JobOut, fields_of, job_out, one_off_out, slo_out
from mainspring.http.schemas.jobs import JobFields, JobPatch, changes_call, merged, past_of, payload_of, run_of, spec_of

one_job = Resource("Jobs")

#: How often a change is made anew on top of what somebody else changed meanwhile.
_TRIES = 10
_ON_ITS_WAY = frozenset(set(RunState) - ENDED)
#: So many runs of a one-off job are cancelled with it.
_AT_ONCE = 1_000


class Purge(Request):
    purge: bool = False


class Cancelled(Wire):
    job_id: str
    status: Literal["cancelled", "cancelling", "purged"]


@one_job.operation("GET", "/v1/jobs/{id}", permission=Permission.READ, answers={200: JobOut, 404: Problem})
async def get_job(api: Api, call: Call[Nothing, Nothing]) -> Answer:
    """Get a job.

    Returns the definition of a recurring job with its next ticks, or a one-off job with the state of its run. 404:
    the job does not exist, or your key has no access to it.
    """
    found = await find(api, call, payload=True)
    if not isinstance(found, Job):
        warnings = await api.warnings(found) if found.state in (RunState.QUEUED, RunState.SCHEDULED) else []
        return Answer(200, one_off_out(found, parents=await parents_of(api, call.principal, found), warnings=warnings))
    out = await _recurring_out(api, found, await api.warnings(found) if found.state is JobState.SCHEDULED else [])
    if found.spec.slo is not None:
        out = msgspec.structs.replace(out, slo_state=slo_out((await api.store.slo_states([found.id])).get(found.id)))
    return Answer(200, out)


async def _recurring_out(api: Api, job: Job, warnings: list[str] | None = None) -> JobOut:
    """A recurring job with its next fires as calendars let them."""
    return job_out(job, (await api.closed_times.of([job])).get(job.id), warnings=warnings)


async def _change(api: Api, call: Call[JobPatch, Nothing]) -> Answer:
    return await change(api, call.principal, lambda: find(api, call, payload=True), call.body)


async def change(api: Api, principal: Principal, look: Callable[[], Awaitable[Found]], patch: JobPatch) -> Answer:
    """Change a job. ``look`` reads it with its payload, again if it changed meanwhile."""
    for _ in range(_TRIES):
        found = await look()
        if not isinstance(found, RunView):
            return await new_version(api, principal, found, merged(fields_of(found), patch), patch)
        answer = await _edit_one_off(api, principal, found, patch)
        if answer is not None:
            return answer
    raise Conflict("others are changing this job at the same time; ask again")


async def new_version(api: Api, principal: Principal, job: Job, fields: JobFields, patch: JobPatch) -> Answer:
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
    await api.check(principal, new.tenant, spec.queue, spec.task, new.payload, by_schema=changes_call(patch))
    put = (await api.jobs.put_jobs([new]))[0]
    if put.outcome is PutOutcome.STALE:
        raise Conflict(f"the job has version {put.job.version} by now")
    return Answer(200, await _recurring_out(api, put.job, await api.warn(new)))


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
    if run.about is not None:
        # Where it comes from, and its place in a workflow, stay as they are.
        said = new.about or About()
        about = msgspec.structs.replace(run.about, name=said.name, owner=said.owner, tags=said.tags)
        new = msgspec.structs.replace(new, about=None if about == About() else about)
    if (past := past_of(new, api.clock.now())) is not None:
        raise past
    if patch.schedule_time is UNSET and patch.delay is UNSET:
        new = msgspec.structs.replace(new, at=run.due)
    new.check()
    await api.check(principal, new.tenant, new.queue, new.task, new.payload, None, by_schema=changes_call(patch))
    accepted = await api.store.edit_run(new, Author(principal.name, run.tenant, _why(patch)), was=run)
    if accepted is None:
        raise Conflict("the job has started; what it does cannot be changed any more")
    if accepted.conflict:
        return None
    seen = (await api.store.seen_by(run.tenant).runs([run.id], payloads=True))[0]
    if seen is None:
        raise Missing
    warnings = await api.warn(new)
    return Answer(200, one_off_out(seen, parents=await parents_of(api, principal, seen), warnings=warnings))


@one_job.operation(
    "PATCH",
    "/v1/jobs/{id}",
    permission=Permission.OPERATE,
    body=JobPatch,
    answers={200: JobOut, 404: Problem, 409: Problem},
)
async def change_job(api: Api, call: Call[JobPatch, Nothing]) -> Answer:
    """Change a job.

    Fields that you leave out keep their values. A recurring job gets a new version; a one-off job can be changed
    until it starts. 409: it has started, is cancelled, or has another version than `expectedVersion`.
    """
    return await _change(api, call)


@one_job.operation(
    "PUT",
    "/v1/jobs/{id}",
    permission=Permission.OPERATE,
    body=JobPatch,
    answers={200: JobOut, 404: Problem, 409: Problem},
)
async def update_job(api: Api, call: Call[JobPatch, Nothing]) -> Answer:
    """Change a job, like PATCH.

    Fields that you leave out keep their values. 409: a one-off job has started, or the job has another version than
    `expectedVersion`.
    """
    return await _change(api, call)


@one_job.operation(
    "DELETE",
    "/v1/jobs/{id}",
    permission=Permission.OPERATE,
    query=Purge,
    answers={200: Cancelled, 202: Cancelled, 404: Problem, 409: Problem},
)
async def cancel_job(api: Api, call: Call[Nothing, Purge]) -> Answer:
    """Cancel a job.

    A recurring job gets no more ticks, and its runs are cancelled, as are runs that you started of it. 202: a run is
    still being stopped. 409: a one-off job has already ended. `purge` deletes a job that has ended, with its history.
    """
    found = await find(api, call)
    author = Author(call.principal.name, found.tenant)
    if isinstance(found, Job):
        await api.jobs.cancel_jobs([found.id], author)
        wanted = RunFilter(tenant=found.tenant, job=found.id, states=_ON_ITS_WAY)
        stopping = bool((await api.seen_by(call.principal).list_runs(wanted, None, 1)).items)
    else:
        wanted = RunFilter(tenant=found.tenant, job=JobId(found.id), states=_ON_ITS_WAY)
        added = [run.id for run in (await api.seen_by(call.principal).list_runs(wanted, None, _AT_ONCE)).items]
        states = await api.jobs.cancel_runs(list({found.id: None, **dict.fromkeys(added)}), author)
        state = states.pop(found.id, found.state)
        stopping = any(one not in ENDED for one in (state, *states.values()))
        if state in ENDED - {RunState.CANCELLED} and not states and not call.query.purge:
            raise Conflict(f"the job has {state.value} already")
    if stopping:
        return Answer(202, Cancelled(job_id=found.id, status="cancelling"))
    if call.query.purge:
        if isinstance(found, RunView):
            await api.logs.delete(found)
        await api.store.purge([found.id], author)
        return Answer(200, Cancelled(job_id=found.id, status="purged"))
    return Answer(200, Cancelled(job_id=found.id, status="cancelled"))


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
        requires=out.requires,
        datacenters=out.datacenters,
        weight=run.policy.weight,
        retention=retention_out(run.policy.retention),
        guarantee=run.policy.guarantee,
        limits=out.limits,
        breaker=out.breaker,
        owner=out.owner or UNSET,
        tags=out.tags,
    )


def _why(patch: JobPatch) -> str:
    return "" if patch.why is UNSET else patch.why
