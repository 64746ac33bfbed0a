"""Decodes the rows of recurring jobs and of their ticks."""

import msgspec

from mainspring.core.model.base.ids import JobId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.schedules.job import Job, JobState, LedgerEntry
from mainspring.core.ports.storage.catalog import JobVersion
from mainspring.stores.sqlite.rows.encoding import decode_bytes, decode_spec
from mainspring.stores.unreadable import name_unreadable_job, read_rows


class _JobRow(msgspec.Struct, frozen=True):
    id: JobId
    tenant: str
    spec: str
    version: int
    state: JobState
    next_fire: Instant | None
    rev: int
    payload: str
    created_at: Instant
    updated_at: Instant
    resume_at: Instant | None
    paused_until: Instant | None
    pause_why: str
    next_tick: Instant | None
    calendar_rev: int


class _VersionRow(msgspec.Struct, frozen=True):
    version: int
    spec: str
    payload: str
    made_by: str
    why: str
    made_at: Instant


_job_rows = msgspec.json.Decoder(list[_JobRow])
_version_rows = msgspec.json.Decoder(list[_VersionRow])

decode_ledger = msgspec.json.Decoder(list[LedgerEntry]).decode


def decode_jobs(text: str) -> list[Job]:
    """Decode decode_jobs. Those that cannot be decoded are logged and left out."""
    found, unreadable = read_rows(_job_rows.decode(text), _build_job)
    for row, error in unreadable:
        name_unreadable_job(row.id, row.version, str(error))
    return found


def _build_job(row: _JobRow) -> Job:
    return Job(
        id=row.id,
        tenant=row.tenant,
        spec=decode_spec(row.spec),
        version=row.version,
        state=row.state,
        next_fire=row.next_fire,
        rev=row.rev,
        payload=decode_bytes(row.payload),
        created_at=row.created_at,
        updated_at=row.updated_at,
        resume_at=row.resume_at,
        paused_until=row.paused_until,
        pause_why=row.pause_why,
        next_tick=row.next_tick,
        calendar_rev=row.calendar_rev,
    )


def decode_job_versions(text: str) -> list[JobVersion]:
    """Decode the versions that can be decoded."""
    found, _ = read_rows(_version_rows.decode(text), _build_version)
    return found


def _build_version(row: _VersionRow) -> JobVersion:
    return JobVersion(
        version=row.version,
        spec=decode_spec(row.spec),
        payload=decode_bytes(row.payload),
        made_by=row.made_by,
        why=row.why,
        made_at=row.made_at,
    )
