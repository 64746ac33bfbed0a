"""Finds the object that a path names, if the caller may access it."""

from typing import TypeAlias

from mainspring.core.model.access.access import Permission, Principal
from mainspring.core.model.base.errors import Conflict
from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.job import Job
from mainspring.core.ports.storage.catalog import RunFilter
from mainspring.http.context import Api
from mainspring.http.operation import Body, Call, Query
from mainspring.http.problems import ObjectNotFound
from mainspring.http.schemas.common import parse_id

#: The objects that ``/v1/jobs/{id}`` can name.
JobOrRun: TypeAlias = Job | RunView


async def find_job(api: Api, call: Call[Body, Query], *, payload: bool = False) -> JobOrRun:
    """Return a recurring job, or the run of a one-off job. A run of a recurring job is not a job."""
    identifier = parse_id(call.path["id"])
    seen = api.seen_by(call.principal)
    job = (await seen.jobs([JobId(identifier)]))[0]
    if job is not None:
        _check_queue(api, call, job.spec.queue)
        return job
    run = (await seen.runs([RunId(identifier)], payloads=payload))[0]
    if run is None or run.job_id is not None:
        raise ObjectNotFound
    _check_queue(api, call, run.queue)
    return run


async def find_newest_started(api: Api, call: Call[Body, Query], job: JobOrRun) -> RunView | None:
    """Return the newest started run among the last ten runs of a job."""
    wanted = RunFilter(tenant=job.tenant, job=JobId(job.id))
    newest = await api.seen_by(call.principal).list_runs(wanted, None, 10)
    return next((run for run in newest.items if run.started_at is not None), None)


async def find_recurring_job(api: Api, call: Call[Body, Query]) -> Job:
    found = await find_job(api, call)
    if isinstance(found, RunView):
        raise Conflict("this is for recurring jobs; the job is a one-off")
    return found


async def find_run(api: Api, call: Call[Body, Query], *, payload: bool = False) -> RunView:
    run = (await api.seen_by(call.principal).runs([RunId(parse_id(call.path["id"]))], payloads=payload))[0]
    if run is None:
        raise ObjectNotFound
    _check_queue(api, call, run.queue)
    return run


async def list_parents(api: Api, principal: Principal, run: RunView) -> list[RunId]:
    """Return the parents of a run. Most runs have none, so the store is not queried."""
    return await api.seen_by(principal).parent_ids(run.id) if run.parents else []


def _check_queue(api: Api, call: Call[Body, Query], queue: str) -> None:
    """Refuse a change outside the queues of the caller's key. Such a key may still read everything of its tenant."""
    if call.permission is not Permission.READ:
        api.admission.check_queue(call.principal, queue)
