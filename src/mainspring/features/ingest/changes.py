"""Updates and cancellations of jobs requested by records; a job is named by its id or by its external name."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from mainspring.core.model.access.access import Principal
from mainspring.core.model.base.errors import Conflict, NotFound
from mainspring.core.model.base.ids import JobId, RunId, is_id
from mainspring.core.model.runs.names import JOB_TAG
from mainspring.core.model.runs.run import ENDED, RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.job import Job, JobState
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import JobFilter, Page, Reads, RunFilter
from mainspring.http.context import Api
from mainspring.http.jobs.changes import patch_job
from mainspring.http.jobs.lookup import JobOrRun
from mainspring.http.schemas.jobs import JobPatch

T = TypeVar("T")
Cursor = TypeVar("Cursor", JobId, RunId)

_UNFINISHED = frozenset(set(RunState) - ENDED)
_ENDED_JOBS = frozenset(set(JobState) - {JobState.SCHEDULED, JobState.PAUSED})
#: Jobs read per page.
_PAGE = 1_000


class JobChange(msgspec.Struct, frozen=True, kw_only=True):
    """An update or cancellation of an existing job."""

    tenant: str
    job: str
    #: None cancels the job.
    patch: JobPatch | None


class JobChanger:
    def __init__(self, api: Api) -> None:
        self._api = api

    async def apply(self, patch_job: JobChange, principal: Principal) -> None:
        """Apply the change. Cancelling an ended job does nothing, so a record that is read twice is harmless."""
        reads = self._api.store.seen_by(patch_job.tenant)
        found = await self._find(reads, patch_job)
        unfinished = [one for one in found if not _has_ended(one)]
        if patch_job.patch is None:
            await self._cancel(unfinished, Author(principal.name, patch_job.tenant))
            return
        if not unfinished:
            raise Conflict(f"the job {patch_job.job!r} has ended")
        for one in unfinished:
            await self._change(reads, one, patch_job.patch, principal)

    async def _find(self, reads: Reads, patch_job: JobChange) -> list[JobOrRun]:
        identifier = patch_job.job.replace("-", "").lower()
        found: list[JobOrRun] = []
        if is_id(identifier):
            found += [job for job in await reads.jobs([JobId(identifier)]) if job is not None]
            found += [run for run in await reads.runs([RunId(identifier)]) if run is not None]
        found = found or await self._find_tagged(reads, patch_job)
        if not found:
            raise NotFound(f"there is no job {patch_job.job!r:.80}")
        return found

    async def _find_tagged(self, reads: Reads, patch_job: JobChange) -> list[JobOrRun]:
        """Find all unfinished jobs with the tag; otherwise a finished one, so that only unknown jobs are refused."""
        tag, tenant = JOB_TAG + patch_job.job, patch_job.tenant
        unfinished, ended = (RunFilter(tenant=tenant, tag=tag, states=states) for states in (_UNFINISHED, ENDED))
        jobs = await _read_all(lambda after: reads.list_jobs(JobFilter(tenant=tenant, tag=tag), after, _PAGE), JobId)
        runs = await _read_all(lambda after: reads.list_runs(unfinished, after, _PAGE), RunId)
        found: list[JobOrRun] = [*jobs, *runs]
        return found or [*(await reads.list_runs(ended, None, 1)).items]

    async def _cancel(self, unfinished: list[JobOrRun], author: Author) -> None:
        if jobs := [one.id for one in unfinished if isinstance(one, Job)]:
            await self._api.jobs.cancel_jobs(jobs, author)
        if runs := [one.id for one in unfinished if isinstance(one, RunView)]:
            await self._api.jobs.cancel_runs(runs, author)

    async def _change(self, reads: Reads, found: JobOrRun, patch: JobPatch, principal: Principal) -> None:
        async def look() -> JobOrRun:
            current: JobOrRun | None
            if isinstance(found, Job):
                current = (await reads.jobs([found.id]))[0]
            else:
                current = (await reads.runs([found.id], payloads=True))[0]
            if current is None:
                raise NotFound("the job does not exist any more")
            return current

        await patch_job(self._api, principal, look, patch)


async def _read_all(
    read: Callable[[Cursor | None], Awaitable[Page[T]]], parse_cursor: Callable[[str], Cursor]
) -> list[T]:
    found: list[T] = []
    after: Cursor | None = None
    while True:
        page = await read(after)
        found += page.items
        if page.after is None:
            return found
        after = parse_cursor(page.after)


def _has_ended(one: JobOrRun) -> bool:
    return one.state in _ENDED_JOBS if isinstance(one, Job) else one.state in ENDED
