"""Recurring jobs: declared, paused, resumed, cancelled."""

from collections.abc import Collection, Sequence
from typing import cast

import apsw

from mainspring.adapters.store.sqlite import rows
from mainspring.adapters.store.sqlite.connection import QUERIES
from mainspring.adapters.store.sqlite.part import Part
from mainspring.adapters.store.sqlite.threads import Call, call_procedures
from mainspring.domain.errors import Invalid
from mainspring.domain.ids import JobId, shard_of
from mainspring.domain.instant import Instant
from mainspring.domain.job import Job, JobState, NewJob
from mainspring.domain.plan import dropped_ticks
from mainspring.domain.schedule import next_after


class SqliteJobs(Part):
    async def put_jobs(self, jobs: Sequence[NewJob]) -> list[Job]:
        if not jobs:
            return []
        for job in jobs:
            self._shard_of(job.id)
        payloads = [rows.text_of(job.payload) for job in jobs]
        stored: list[Job] = []

        def work(connection: apsw.Connection, now: Instant) -> str:
            # Jobs are declared seldom, and their next tick is the interpreter's business: one at a time.
            stored.extend(_put(connection, job, payload, now) for job, payload in zip(jobs, payloads, strict=True))
            return ""

        await self._writer.ask(work)
        return stored

    async def set_jobs_state(self, jobs: Collection[JobId], state: JobState) -> dict[JobId, JobState]:
        if state is JobState.FINISHED:
            raise Invalid("state", "a job finishes by itself", "scheduled, paused or cancelled")
        ids = list(dict.fromkeys(jobs))
        call = Call("set_jobs", rows.encode((state, ids)))

        def cancel(connection: apsw.Connection, now: Instant) -> str:
            # Which ticks are due is the interpreter's business too.
            for job in _jobs(connection, ids):
                _drop_ticks(connection, job, now, "cancelled")
            return call_procedures(connection, [call], now)[0]

        answer = await self._writer.ask(cancel if state is JobState.CANCELLED else call)
        return dict(rows.job_states.decode(answer))


def _put(connection: apsw.Connection, new: NewJob, payload: str, now: Instant) -> Job:
    known = connection.execute(QUERIES["job_named"], (new.tenant, new.spec.name)).get
    if known is None:
        _make(connection, new, payload, now)
        _start_schedule(connection, new.id, new, now)
        return _jobs(connection, [new.id])[0]
    job, version, state = cast(tuple[JobId, int, str], known)
    # None if what is stored of it cannot be read: then it is another version whatever it said.
    before = next(iter(_jobs(connection, [job])), None)
    ticking = state in (JobState.SCHEDULED, JobState.PAUSED)
    rescheduled = before is None or before.spec.schedule != new.spec.schedule
    if ticking and rescheduled and before is not None:
        _drop_ticks(connection, before, now, "schedule changed")
    if before is None or before.spec != new.spec or before.payload != new.payload:
        _add_version(connection, job, version + 1, new, payload, now)
        connection.execute("UPDATE job SET version = version + 1, updated_at = ? WHERE id = ?", (now, job))
        connection.execute("UPDATE schedule SET rev = rev + 1, delay = ? WHERE job_id = ?", (new.spec.fixed_delay, job))
    if not ticking:
        connection.execute("UPDATE job SET state = 'scheduled', updated_at = ? WHERE id = ?", (now, job))
        _start_schedule(connection, job, new, now)
    elif rescheduled:
        _start_schedule(connection, job, new, now)
    return _jobs(connection, [job])[0]


def _make(connection: apsw.Connection, new: NewJob, payload: str, now: Instant) -> None:
    connection.execute(
        "INSERT INTO job (id, tenant, name, version, state, created_at, updated_at) VALUES (?, ?, ?, 1, ?, ?, ?)",
        (new.id, new.tenant, new.spec.name, JobState.SCHEDULED.value, now, now),
    )
    _add_version(connection, new.id, 1, new, payload, now)
    connection.execute(
        "INSERT INTO schedule (job_id, shard, rev, delay) VALUES (?, ?, 0, ?)",
        (new.id, shard_of(new.id), new.spec.fixed_delay),
    )


def _add_version(
    connection: apsw.Connection, job: JobId, version: int, new: NewJob, payload: str, now: Instant
) -> None:
    connection.execute(
        "INSERT INTO body (task, policy, payload) VALUES (?, ?, ?)",
        (new.spec.task, rows.policy_text(new.spec.policy), payload),
    )
    connection.execute(
        "INSERT INTO job_version (job_id, version, spec, body, made_at) VALUES (?, ?, ?, ?, ?)",
        (job, version, rows.encode(new.spec), connection.last_insert_rowid(), now),
    )


def _start_schedule(connection: apsw.Connection, job: JobId, new: NewJob, now: Instant) -> None:
    """From the first tick after now; a schedule that has none left is finished."""
    first = next_after(new.spec.schedule, now, job)
    connection.execute(
        "UPDATE schedule SET next_fire = ?1, active = ?1 IS NOT NULL, awaits = NULL, rev = rev + 1 WHERE job_id = ?2",
        (first, job),
    )
    if first is None:
        connection.execute("UPDATE job SET state = 'finished', updated_at = ? WHERE id = ?", (now, job))


def _drop_ticks(connection: apsw.Connection, job: Job, now: Instant, reason: str) -> None:
    """The job's schedule ends here: what is due of it is written down."""
    connection.executemany(
        "INSERT INTO ledger (job_id, scheduled_at, decision, reason, job_version, epoch, ticks, last_at)"
        " SELECT ?, ?, 'skipped', ?, ?, epoch, ?, ? FROM shard WHERE id = ? ON CONFLICT DO NOTHING",
        [
            (job.id, tick.scheduled_at, tick.reason, job.version, tick.ticks, tick.last_at, job.shard)
            for tick in dropped_ticks(job, now, reason)
        ],
    )


def _jobs(connection: apsw.Connection, ids: list[JobId]) -> list[Job]:
    text = connection.execute(QUERIES["jobs"], {"ids": rows.encode(ids)}).get
    assert isinstance(text, str)
    return rows.jobs(text)
