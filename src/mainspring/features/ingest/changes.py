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
from mainspring.http.jobs.changes import change
from mainspring.http.jobs.lookup import Found
from mainspring.http.schemas.jobs import JobPatch

T = TypeVar("T")
Cursor = TypeVar("Cursor", JobId, RunId)

_ON_ITS_WAY = frozenset(set(RunState) - ENDED)
_OVER = frozenset(set(JobState) - {JobState.SCHEDULED, JobState.PAUSED})
#: Jobs read per page.
_PAGE = 1_000


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """An update or cancellation of an existing job."""

    tenant: str
    job: str
    #: None cancels the job.
    patch: JobPatch | None


class Changes:
    def __init__(self, api: Api) -> None:
        self._api = api

    async def apply(self, asked: Change, principal: Principal) -> None:
        """Apply the change. Cancelling an ended job does nothing, so a record that is read twice is harmless."""
        reads = self._api.store.seen_by(asked.tenant)
        found = await self._find(reads, asked)
        live = [one for one in found if not _is_over(one)]
        if asked.patch is None:
            await self._cancel(live, Author(principal.name, asked.tenant))
            return
        if not live:
            raise Conflict(f"the job {asked.job!r} has ended")
        for one in live:
            await self._change(reads, one, asked.patch, principal)

    async def _find(self, reads: Reads, asked: Change) -> list[Found]:
        identifier = asked.job.replace("-", "").lower()
        found: list[Found] = []
        if is_id(identifier):
            found += [job for job in await reads.jobs([JobId(identifier)]) if job is not None]
            found += [run for run in await reads.runs([RunId(identifier)]) if run is not None]
        found = found or await self._find_tagged(reads, asked)
        if not found:
            raise NotFound(f"there is no job {asked.job!r:.80}")
        return found

    async def _find_tagged(self, reads: Reads, asked: Change) -> list[Found]:
        """Find all unfinished jobs with the tag; otherwise a finished one, so that only unknown jobs are refused."""
        tag, tenant = JOB_TAG + asked.job, asked.tenant
        live, ended = (RunFilter(tenant=tenant, tag=tag, states=states) for states in (_ON_ITS_WAY, ENDED))
        jobs = await _read_all(lambda after: reads.list_jobs(JobFilter(tenant=tenant, tag=tag), after, _PAGE), JobId)
        runs = await _read_all(lambda after: reads.list_runs(live, after, _PAGE), RunId)
        found: list[Found] = [*jobs, *runs]
        return found or [*(await reads.list_runs(ended, None, 1)).items]

    async def _cancel(self, live: list[Found], author: Author) -> None:
        if jobs := [one.id for one in live if isinstance(one, Job)]:
            await self._api.jobs.cancel_jobs(jobs, author)
        if runs := [one.id for one in live if isinstance(one, RunView)]:
            await self._api.jobs.cancel_runs(runs, author)

    async def _change(self, reads: Reads, found: Found, patch: JobPatch, principal: Principal) -> None:
        async def look() -> Found:
            again: Found | None
            if isinstance(found, Job):
                again = (await reads.jobs([found.id]))[0]
            else:
                again = (await reads.runs([found.id], payloads=True))[0]
            if again is None:
                raise NotFound("the job is not kept any more")
            return again

        await change(self._api, principal, look, patch)


async def _read_all(read: Callable[[Cursor | None], Awaitable[Page[T]]], cursor: Callable[[str], Cursor]) -> list[T]:
    found: list[T] = []
    after: Cursor | None = None
    while True:
        page = await read(after)
        found += page.items
        if page.after is None:
            return found
        after = cursor(page.after)


def _is_over(one: Found) -> bool:
    return one.state in _OVER if isinstance(one, Job) else one.state in ENDED
