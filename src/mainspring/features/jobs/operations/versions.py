"""Operations on the versions of a recurring job: list, compare and restore."""

from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from mainspring.core.model.access.access import Permission, Principal
from mainspring.core.model.base.errors import NotFound
from mainspring.core.model.base.ids import JobId
from mainspring.core.model.base.instant import isoformat
from mainspring.core.model.runs.names import MAX_WHY
from mainspring.core.model.schedules.job import Job
from mainspring.core.ports.storage.catalog import JobVersion, Reads
from mainspring.http.context import Api
from mainspring.http.jobs.changes import write_new_version
from mainspring.http.jobs.lookup import find_recurring_job
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.problems import Problem
from mainspring.http.rendering.jobs import read_fields
from mainspring.http.schemas.common import Request, Text, Wire
from mainspring.http.schemas.differences import Change, list_differences
from mainspring.http.schemas.job_answers import JobOut
from mainspring.http.schemas.jobs import JobPatch

versions = Resource("Jobs")

_VERSIONS_PAGE = 8


class Version(Wire):
    version: int
    made_by: str
    made_at: str
    why: str = ""
    changes: dict[str, "Change"] = {}


class VersionsQuery(Request):
    limit: Annotated[int, Meta(ge=1, le=100, description="The maximum number of versions.")] = 20
    cursor: Annotated[str, Meta(pattern="^[0-9]{1,9}$", description="`nextCursor` of the previous page.")] | None = None


class Versions(Wire):
    job_id: str
    items: list[Version]
    next_cursor: str | None = None


class RestoreIn(Request):
    why: Text = ""
    expected_version: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    """409 if the job has another version."""


class DiffQuery(Request):
    older: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = msgspec.field(default=None, name="from")
    to: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class JobDiff(Wire):
    job_id: str
    older: int = msgspec.field(name="from")
    to: int
    changes: dict[str, Change]


@versions.operation(
    "GET",
    "/v1/jobs/{id}/versions",
    permission=Permission.READ,
    query=VersionsQuery,
    answers={200: Versions, 404: Problem, 409: Problem},
)
async def job_versions(api: Api, call: Call[Empty, VersionsQuery]) -> Answer:
    """List the versions of a recurring job, newest first.

    Each version has its author, its time, the reason that was given, and the fields that it changed. 409: the job
    is not recurring.
    """
    job = await find_recurring_job(api, call)
    before = None if call.query.cursor is None else int(call.query.cursor) + 1
    items: list[Version] = []
    newer: JobVersion | None = None
    async for version in _iterate_versions(api.seen_by(call.principal), job.id, before):
        if newer is not None:
            items.append(_version_out(job, newer, version))
        newer = version
        if len(items) == call.query.limit:
            return Answer(200, Versions(job_id=job.id, items=items, next_cursor=str(newer.version)))
    if newer is not None:
        items.append(_version_out(job, newer, None))
    return Answer(200, Versions(job_id=job.id, items=items))


async def _iterate_versions(reads: Reads, job: JobId, before: int | None) -> AsyncIterator[JobVersion]:
    """Iterate over the versions, newest first, a few at a time since they contain payloads."""
    while True:
        some = await reads.versions(job, before=before, limit=_VERSIONS_PAGE)
        for version in some:
            yield version
        if len(some) < _VERSIONS_PAGE:
            return
        before = some[-1].version


@versions.operation(
    "POST",
    "/v1/jobs/{id}/versions/{version}/restore",
    permission=Permission.OPERATE,
    body=RestoreIn,
    body_optional=True,
    answers={200: JobOut, 404: Problem, 409: Problem},
)
async def restore_version(api: Api, call: Call[RestoreIn, Empty]) -> Answer:
    """Restore an old version of a recurring job.

    Creates a new version with the definition of the old one. 404: the job has no such version. 409: the job is not
    recurring, is cancelled, or has another version than `expectedVersion`.
    """
    job = await find_recurring_job(api, call)
    text = call.path["version"]
    wanted = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    old = await _find_version(api, call.principal, job, wanted)
    restored = read_fields(msgspec.structs.replace(job, spec=old.spec, payload=old.payload))
    why = f"restored version {old.version}" + (f": {call.body.why}" if call.body.why else "")
    patch = JobPatch(why=why[:MAX_WHY], expected_version=call.body.expected_version)
    return await write_new_version(api, call.principal, job, restored, patch)


@versions.operation(
    "GET",
    "/v1/jobs/{id}/diff",
    permission=Permission.READ,
    query=DiffQuery,
    answers={200: JobDiff, 404: Problem, 409: Problem},
)
async def diff_versions(api: Api, call: Call[Empty, DiffQuery]) -> Answer:
    """Compare two versions of a recurring job, field by field.

    By default the newest version is compared with the one before it. 404: the job has no such version. 409: the job
    is not recurring.
    """
    job = await find_recurring_job(api, call)
    to = job.version if call.query.to is None else call.query.to
    older = max(to - 1, 1) if call.query.older is None else call.query.older
    before, after = [
        read_fields(msgspec.structs.replace(job, spec=version.spec, payload=version.payload))
        for version in [await _find_version(api, call.principal, job, number) for number in (older, to)]
    ]
    return Answer(200, JobDiff(job_id=job.id, older=older, to=to, changes=list_differences(before, after)))


async def _find_version(api: Api, principal: Principal, job: Job, number: int) -> JobVersion:
    found = await api.seen_by(principal).versions(job.id, before=number + 1, limit=1)
    if not found or found[0].version != number:
        # Versions are never deleted by retention, so all from 1 on exist.
        raise NotFound(f"the job has no version {number}, only {f'1 to {job.version}' if job.version > 1 else '1'}")
    return found[0]


def _version_out(job: Job, version: JobVersion, older: JobVersion | None) -> Version:
    changes = {}
    if older is not None:
        before = msgspec.structs.replace(job, spec=older.spec, payload=older.payload)
        after = msgspec.structs.replace(job, spec=version.spec, payload=version.payload)
        changes = list_differences(read_fields(before), read_fields(after))
    return Version(
        version=version.version,
        made_by=version.made_by,
        made_at=isoformat(version.made_at),
        why=version.why,
        changes=changes,
    )
