"""Operations on one job: get, change and cancel it."""

from typing import Literal

import msgspec

from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.errors import Conflict
from mainspring.core.model.base.ids import JobId
from mainspring.core.model.runs.run import ENDED, RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.job import Job, JobState
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import RunFilter
from mainspring.http.context import Api
from mainspring.http.jobs.changes import patch_job, render_recurring
from mainspring.http.jobs.lookup import find_job, list_parents
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.problems import Problem
from mainspring.http.rendering.jobs import render_one_off, render_slo
from mainspring.http.schemas.common import Request, Wire
from mainspring.http.schemas.job_answers import JobOut
from mainspring.http.schemas.jobs import JobPatch

one_job = Resource("Jobs")

_UNFINISHED = frozenset(set(RunState) - ENDED)
#: Runs of a one-off job that are cancelled with it.
_PAGE = 1_000


class CancelJobQuery(Request):
    purge: bool = False


class CancelJobOut(Wire):
    job_id: str
    status: Literal["cancelled", "cancelling", "purged"]


@one_job.operation("GET", "/v1/jobs/{id}", permission=Permission.READ, answers={200: JobOut, 404: Problem})
async def get_job(api: Api, call: Call[Empty, Empty]) -> Answer:
    """Get a job.

    Returns the definition of a recurring job with its next ticks, or a one-off job with the state of its run. 404:
    the job does not exist, or your key has no access to it.
    """
    found = await find_job(api, call, payload=True)
    if not isinstance(found, Job):
        warnings = (
            await api.workers.find_warnings(found) if found.state in (RunState.QUEUED, RunState.SCHEDULED) else []
        )
        return Answer(
            200, render_one_off(found, parents=await list_parents(api, call.principal, found), warnings=warnings)
        )
    out = await render_recurring(
        api, found, await api.workers.find_warnings(found) if found.state is JobState.SCHEDULED else []
    )
    if found.spec.slo is not None:
        out = msgspec.structs.replace(out, slo_state=render_slo((await api.store.slo_states([found.id])).get(found.id)))
    return Answer(200, out)


async def _change(api: Api, call: Call[JobPatch, Empty]) -> Answer:
    return await patch_job(api, call.principal, lambda: find_job(api, call, payload=True), call.body)


@one_job.operation(
    "PATCH",
    "/v1/jobs/{id}",
    permission=Permission.OPERATE,
    body=JobPatch,
    answers={200: JobOut, 404: Problem, 409: Problem},
)
async def change_job(api: Api, call: Call[JobPatch, Empty]) -> Answer:
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
async def update_job(api: Api, call: Call[JobPatch, Empty]) -> Answer:
    """Change a job, like PATCH.

    Fields that you leave out keep their values. 409: a one-off job has started, or the job has another version than
    `expectedVersion`.
    """
    return await _change(api, call)


@one_job.operation(
    "DELETE",
    "/v1/jobs/{id}",
    permission=Permission.OPERATE,
    query=CancelJobQuery,
    answers={200: CancelJobOut, 202: CancelJobOut, 404: Problem, 409: Problem},
)
async def cancel_job(api: Api, call: Call[Empty, CancelJobQuery]) -> Answer:
    """Cancel a job.

    A recurring job gets no more ticks. Its runs are cancelled, including those that you started manually. 202: a run is
    still being stopped. 409: a one-off job has already ended. `purge` deletes a job that has ended, with its history.
    """
    found = await find_job(api, call)
    author = Author(call.principal.name, found.tenant)
    if isinstance(found, Job):
        await api.jobs.cancel_jobs([found.id], author)
        wanted = RunFilter(tenant=found.tenant, job=found.id, states=_UNFINISHED)
        stopping = bool((await api.seen_by(call.principal).list_runs(wanted, None, 1)).items)
    else:
        wanted = RunFilter(tenant=found.tenant, job=JobId(found.id), states=_UNFINISHED)
        added = [run.id for run in (await api.seen_by(call.principal).list_runs(wanted, None, _PAGE)).items]
        states = await api.jobs.cancel_runs(list({found.id: None, **dict.fromkeys(added)}), author)
        state = states.pop(found.id, found.state)
        stopping = any(one not in ENDED for one in (state, *states.values()))
        if state in ENDED - {RunState.CANCELLED} and not states and not call.query.purge:
            raise Conflict(f"the job has already {state.value}")
    if stopping:
        return Answer(202, CancelJobOut(job_id=found.id, status="cancelling"))
    if call.query.purge:
        if isinstance(found, RunView):
            await api.logs.delete(found)
        await api.store.purge([found.id], author)
        return Answer(200, CancelJobOut(job_id=found.id, status="purged"))
    return Answer(200, CancelJobOut(job_id=found.id, status="cancelled"))
