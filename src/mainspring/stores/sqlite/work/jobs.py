"""SQLite: declares, pauses, resumes and cancels recurring jobs."""

from collections.abc import Collection, Sequence
from typing import cast

import apsw

from mainspring.core.model.base.errors import Invalid, NotFound
from mainspring.core.model.base.ids import JobId, decode_shard
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.schedules.job import Job, JobSpec, JobState, NewJob
from mainspring.core.model.schedules.plan import dropped_ticks
from mainspring.core.model.schedules.schedule import next_after
from mainspring.core.model.schedules.slo import begin
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.answers import PutOutcome, PutResult, build_conflict, refuse_put
from mainspring.core.store import KEYS_KEPT
from mainspring.stores.changes import Change, job_moved, what_differs, words_of_job
from mainspring.stores.sqlite.connection import QUERIES
from mainspring.stores.sqlite.records.audit import write_audit
from mainspring.stores.sqlite.records.calendars import check_calendars_exist, count_calendar_changes
from mainspring.stores.sqlite.rows.answers import (
    StoredJobState,
    decode_new_job_states,
    decode_stored_job_states,
    decode_stored_states,
)
from mainspring.stores.sqlite.rows.encoding import encode, encode_bytes, encode_policy
from mainspring.stores.sqlite.rows.jobs import decode_jobs
from mainspring.stores.sqlite.threads import ProcedureCall, call_procedures, read
from mainspring.stores.sqlite.work.queues import SqliteQueues

_ACTIONS = {JobState.PAUSED: "jobs.pause", JobState.SCHEDULED: "jobs.resume", JobState.CANCELLED: "jobs.cancel"}
_TICKING = (JobState.SCHEDULED, JobState.PAUSED)


class SqliteJobs(SqliteQueues):
    async def put_jobs(self, jobs: Sequence[NewJob]) -> list[PutResult]:
        if not jobs:
            return []
        for job in jobs:
            self._find_shard(job.id)
        await self._mark_weighted(job.spec.queue for job in jobs if job.spec.policy.weight > 1)
        # Declarations are rare, and their next tick is computed in Python: one at a time.
        return await self._write(lambda connection, now: _put_all(connection, jobs, now))

    async def set_jobs_state(
        self,
        jobs: Collection[JobId],
        state: JobState,
        author: Author | None = None,
        resume_at: Instant | None = None,
    ) -> dict[JobId, JobState]:
        if state is JobState.FINISHED:
            raise Invalid("state", "a job finishes by itself", "scheduled, paused or cancelled")
        ids = list(dict.fromkeys(jobs))
        until = resume_at if state is JobState.PAUSED else None
        why = "" if author is None else author.why
        call = ProcedureCall("set_jobs", encode((state, ids, until, why)))

        def read_states(connection: apsw.Connection) -> list[StoredJobState]:
            return decode_stored_job_states(read(connection, "job_states", ids=encode(ids)))

        def change(connection: apsw.Connection, now: Instant) -> str:
            if state is JobState.CANCELLED:
                # Which ticks are due is computed in Python, too.
                for job in read_jobs(connection, ids):
                    _drop_ticks(connection, job, now, "cancelled")
            before, answer, after = (
                read_states(connection),
                call_procedures(connection, [call], now)[0],
                read_states(connection),
            )
            changes = [
                Change(old.tenant, old.id, *(job_moved(old.state, state, old.resume_at, until) or ()))
                for old, new in zip(before, after, strict=True)
                if new.rev != old.rev
            ]
            write_audit(connection, now, _ACTIONS[state], author, changes)
            return answer

        alone = state is JobState.CANCELLED or author is not None
        return decode_new_job_states(await self._writer.run(change if alone else call))


def _put_all(connection: apsw.Connection, jobs: Sequence[NewJob], now: Instant) -> list[PutResult]:
    for job in jobs:
        if job.expected_version is not None and _find_job(connection, job) is None:
            raise NotFound(f"there is no job {job.spec.name!r}")
        check_calendars_exist(connection, job)
    made: dict[str, list[Change]] = {}
    whys: dict[str, str] = {}
    stored = []
    for job in jobs:
        used = _answer_repeated_put(connection, job, now)
        if used is not None:
            stored.append(used)
            continue
        known = _find_job(connection, job)
        # None if the stored version cannot be decoded: then the declaration is a new version in any case.
        before = None if known is None else next(iter(read_jobs(connection, [known[0]])), None)
        put = _put_job(connection, job, known, before, now)
        stored.append(put)
        if put.outcome in (PutOutcome.CREATED, PutOutcome.CHANGED):
            _watch_objectives(connection, put.job, before, now)
        if job.idempotency is not None and put.outcome not in (PutOutcome.EXISTS, PutOutcome.STALE):
            connection.execute(
                "INSERT OR REPLACE INTO idempotency (tenant, key, made, fingerprint, at)"
                " VALUES (:tenant, :key, :made, :fingerprint, :at)",
                {
                    "tenant": job.tenant,
                    "key": job.idempotency.key,
                    "made": put.job.id,
                    "fingerprint": job.idempotency.fingerprint.hex(),
                    "at": now,
                },
            )
        if job.author and put.outcome in (PutOutcome.CREATED, PutOutcome.CHANGED):
            differs = None if before is None else what_differs(words_of_job(before), words_of_job(put.job))
            made.setdefault(job.author, []).append(Change(put.job.tenant, put.job.id, *(differs or ())))
            whys.setdefault(job.author, job.why)
    for author, changes in made.items():
        write_audit(connection, now, "jobs.put", Author(author, why=whys[author]), changes)
    return stored


def _find_job(connection: apsw.Connection, job: NewJob) -> tuple[JobId, int, JobState] | None:
    found = connection.execute(QUERIES["job_named"], (job.tenant, job.spec.name)).get
    if found is None:
        return None
    known, version, state = cast("tuple[JobId, int, str]", found)
    return known, version, JobState(state)


def _answer_repeated_put(connection: apsw.Connection, new: NewJob, now: Instant) -> PutResult | None:
    """Answer a put whose idempotency key was used for a job or run that exists; None otherwise."""
    if new.idempotency is None:
        return None
    found = connection.execute(
        "SELECT made, fingerprint FROM idempotency WHERE tenant = :tenant AND key = :key AND at > :since",
        {"tenant": new.tenant, "key": new.idempotency.key, "since": now - KEYS_KEPT},
    ).get
    if found is None:
        return None
    made, fingerprint = cast("tuple[str, str]", found)
    for job in read_jobs(connection, [JobId(made)]):
        same = new.idempotency.fingerprint.hex() == fingerprint
        return PutResult(job, PutOutcome.UNCHANGED if same else PutOutcome.CONFLICT)
    if not decode_stored_states(read(connection, "run_states", ids=encode([made]))):
        return None
    return build_conflict(new, made)


def _put_job(
    connection: apsw.Connection,
    new: NewJob,
    known: tuple[JobId, int, JobState] | None,
    before: Job | None,
    now: Instant,
) -> PutResult:
    if known is None:
        _create_job(connection, new, now)
        _start_schedule(connection, new.id, new, now)
        return PutResult(read_jobs(connection, [new.id])[0], PutOutcome.CREATED)
    job, version, state = known
    ticking = state in _TICKING
    same = before is not None and before.spec == new.spec and before.payload == new.payload
    if before is not None:
        refused = refuse_put(new, job, version, state, same)
        if refused is not None:
            return PutResult(before, refused)
        if same and ticking:
            return PutResult(before, PutOutcome.UNCHANGED)
    rescheduled = before is None or before.spec.timing != new.spec.timing
    if ticking and rescheduled and before is not None:
        _drop_ticks(connection, before, now, "schedule changed")
    if not same:
        payload = encode_bytes(new.payload)
        add_version(connection, job, version + 1, new.spec, payload, Author(new.author, why=new.why), now)
    if not ticking:
        connection.execute(
            "UPDATE job SET state = 'scheduled', updated_at = :updated_at WHERE id = :id",
            {"updated_at": now, "id": job},
        )
        connection.execute(
            "UPDATE schedule SET resume_at = NULL, paused_until = NULL WHERE job_id = :job_id", {"job_id": job}
        )
    if not ticking or rescheduled:
        _start_schedule(connection, job, new, now)
    return PutResult(read_jobs(connection, [job])[0], PutOutcome.CHANGED)


def _watch_objectives(connection: apsw.Connection, job: Job, before: Job | None, now: Instant) -> None:
    """Evaluate the objectives of a declared job from now on, if they or its schedule changed."""
    slo = job.spec.slo
    if slo is None:
        connection.execute("DELETE FROM slo WHERE job_id = :job_id", {"job_id": job.id})
    elif before is None or before.spec.slo != slo or before.state not in _TICKING:
        connection.execute(
            "INSERT INTO slo (job_id, tenant, next_check, state)"
            " VALUES (:job_id, :tenant, :next_check, :state) ON CONFLICT (job_id) DO UPDATE"
            " SET rev = rev + 1, next_check = excluded.next_check, state = excluded.state",
            {"job_id": job.id, "tenant": job.tenant, "next_check": now, "state": encode(begin(now))},
        )
    elif before.spec.timing != job.spec.timing:
        connection.execute(
            "UPDATE slo SET rev = rev + 1, next_check = :next_check, state = json_set(state, '$.rescheduled_at',"
            " :next_check)"
            " WHERE job_id = :job_id",
            {"next_check": now, "job_id": job.id},
        )


def _create_job(connection: apsw.Connection, new: NewJob, now: Instant) -> None:
    connection.execute(
        "INSERT INTO job (id, tenant, name, version, state, created_at, updated_at)"
        " VALUES (:id, :tenant, :name, 0, :state, :created_at, :created_at)",
        {
            "id": new.id,
            "tenant": new.tenant,
            "name": new.spec.name,
            "state": JobState.SCHEDULED.value,
            "created_at": now,
        },
    )
    connection.execute(
        "INSERT INTO schedule (job_id, shard, rev) VALUES (:job_id, :shard, 0)",
        {"job_id": new.id, "shard": decode_shard(new.id)},
    )
    author = Author(new.author, why=new.why)
    add_version(connection, new.id, 1, new.spec, encode_bytes(new.payload), author, now)


def add_version(
    connection: apsw.Connection, job: JobId, version: int, spec: JobSpec, payload: str, author: Author, now: Instant
) -> None:
    """Store a spec and payload as the newest version of a job."""
    connection.execute(
        "INSERT INTO body (task, policy, payload) VALUES (:task, :policy, :payload)",
        {"task": spec.task, "policy": encode_policy(spec.policy), "payload": payload},
    )
    connection.execute(
        "INSERT INTO job_version (job_id, version, spec, body, made_by, why, made_at)"
        " VALUES (:job_id, :version, :spec, :body, :made_by, :why, :made_at)",
        {
            "job_id": job,
            "version": version,
            "spec": encode(spec),
            "body": connection.last_insert_rowid(),
            "made_by": author.name,
            "why": author.why,
            "made_at": now,
        },
    )
    connection.execute(
        "UPDATE job SET version = :version, updated_at = :updated_at WHERE id = :id",
        {"version": version, "updated_at": now, "id": job},
    )
    connection.execute(
        "UPDATE schedule SET rev = rev + 1, delay = :delay WHERE job_id = :job_id",
        {"delay": spec.fixed_delay, "job_id": job},
    )


def _start_schedule(connection: apsw.Connection, job: JobId, new: NewJob, now: Instant) -> None:
    """Start the schedule at the first tick after now; finish the job if there is none."""
    first = next_after(new.spec.schedule, now, job)
    ahead = first is not None and new.spec.looks_ahead
    connection.execute(
        "UPDATE schedule SET next_fire = :next_fire, active = :next_fire IS NOT NULL, awaits = NULL,"
        " rev = rev + 1, tick = :tick,"
        " calendar_rev = :calendar_rev WHERE job_id = :job_id",
        {
            "next_fire": now if ahead else first,
            "tick": first if ahead else None,
            "calendar_rev": count_calendar_changes(connection, new.tenant),
            "job_id": job,
        },
    )
    if first is None:
        connection.execute(
            "UPDATE job SET state = 'finished', updated_at = :updated_at WHERE id = :id", {"updated_at": now, "id": job}
        )


def _drop_ticks(connection: apsw.Connection, job: Job, now: Instant, reason: str) -> None:
    """Record the due ticks of a job as dropped, because its schedule ends now."""
    connection.executemany(
        "INSERT INTO ledger (job_id, scheduled_at, decision, reason, job_version, epoch, ticks, last_at,"
        " target) SELECT :job_id, :scheduled_at, 'skipped', :reason, :job_version, epoch, :ticks, :last_at, :target"
        " FROM shard WHERE id = :shard ON CONFLICT DO NOTHING",
        [
            {
                "job_id": job.id,
                "scheduled_at": tick.scheduled_at,
                "reason": tick.reason,
                "job_version": job.version,
                "ticks": tick.ticks,
                "last_at": tick.last_at,
                "target": tick.target,
                "shard": job.shard,
            }
            for tick in dropped_ticks(job, now, reason)
        ],
    )


def read_jobs(connection: apsw.Connection, ids: list[JobId], *, payloads: bool = True) -> list[Job]:
    """Return the jobs that exist and can be decoded."""
    return decode_jobs(read(connection, "jobs", ids=encode(ids), payloads=int(payloads)))
