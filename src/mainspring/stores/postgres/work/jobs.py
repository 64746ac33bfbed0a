"""Recurring jobs: put, pause, resume, cancel and read them."""

from collections.abc import Collection, Sequence
from itertools import islice

import asyncpg
import msgspec

from mainspring.core.model.base.errors import Invalid, NotFound
from mainspring.core.model.base.ids import JobId, decode_shard
from mainspring.core.model.base.instant import DAY, Instant, Micros
from mainspring.core.model.schedules.job import Job, JobSpec, JobState, NewJob, version_body_id
from mainspring.core.model.schedules.plan import dropped_ticks
from mainspring.core.model.schedules.schedule import next_after
from mainspring.core.model.schedules.slo import begin as begin_slo
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.answers import PutOutcome, PutResult, build_conflict, refuse_put
from mainspring.stores.changes import Change, job_moved, what_differs, words_of_job
from mainspring.stores.postgres.codes import JOB_STATE_CODES, JOB_STATES, NameKind
from mainspring.stores.postgres.columns import columns, columns_of_structs
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.records.calendars import CalendarMixin
from mainspring.stores.postgres.records.reading import ReadMixin
from mainspring.stores.postgres.rows import decode_spec, encode_spec
from mainspring.stores.postgres.work.keys import JOB, KeyRequest, KeyUse, build_key_request
from mainspring.stores.postgres.work.staging import SchedulerMixin

OVER = (JobState.FINISHED, JobState.CANCELLED)
_ACTIONS = {JobState.PAUSED: "jobs.pause", JobState.SCHEDULED: "jobs.resume", JobState.CANCELLED: "jobs.cancel"}
#: How many jobs are put at once: their next ticks are computed between two statements of a transaction.
_AT_ONCE = 500


class _PutResult(msgspec.Struct, frozen=True):
    """The result of a declaration."""

    id: JobId
    outcome: PutOutcome
    #: The change that the audit records.
    change: Change | None = None


class VersionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a job to insert, with the body of its runs."""

    job: JobId
    version: int
    spec: bytes
    body: str
    task: int
    policy: bytes | None
    payload: bytes
    tenant: int
    author: str
    why: str


class _ScheduleRow(msgspec.Struct, frozen=True, kw_only=True):
    """The new schedule of a job."""

    job: JobId
    shard: int
    next_fire: Instant | None
    delay: Micros | None
    tenant: int
    next_tick: Instant | None
    calendar_rev: int


class JobMixin(SchedulerMixin, ReadMixin, CalendarMixin):
    async def put_jobs(self, jobs: Sequence[NewJob]) -> list[PutResult]:
        self._decode_shards([job.id for job in jobs])
        await self._mark_weighted(job.spec.queue for job in jobs if job.spec.policy.weight > 1)
        await self._names.assign_numbers(
            pair
            for job in jobs
            for pair in (
                (NameKind.TENANT, job.tenant),
                (NameKind.TASK, job.spec.task),
                (NameKind.QUEUE, job.spec.queue),
            )
        )
        # All processes use one order: two nodes that start together do not deadlock.
        order = sorted(range(len(jobs)), key=lambda index: (jobs[index].tenant, jobs[index].spec.name))

        async def put(connection: Connection) -> tuple[dict[int, _PutResult], dict[int, KeyUse]]:
            used, taken = await self._use_new_job_keys(connection, jobs)
            placed: dict[int, _PutResult] = {}
            left = dict.fromkeys(index for index in order if index not in used)
            while left:
                turn: dict[tuple[str, str], int] = {}
                for index in islice(left, _AT_ONCE):
                    # A statement puts a name only once: its second declaration waits for the next turn.
                    turn.setdefault((jobs[index].tenant, jobs[index].spec.name), index)
                put = await self._put(connection, [jobs[index] for index in turn.values()])
                for index, answer in zip(turn.values(), put, strict=True):
                    placed[index] = answer
                    del left[index]
            await self._release_job_keys(connection, taken, placed)
            await self._audit_put(connection, jobs, placed)
            # One key twice in a batch: the second declaration gets the result of the first.
            became = {want.id: placed[index].id for index, want in taken.items()}
            return placed, {
                index: msgspec.structs.replace(before, id=became.get(before.id, before.id))
                for index, before in used.items()
            }

        try:
            placed, used = await self._db.transaction(put)
        except asyncpg.UniqueViolationError:
            # A declaration that was sent twice can collide at its id before its name. Now the winner is there.
            placed, used = await self._db.transaction(put)
        ids = [answer.id for answer in placed.values()] + [JobId(before.id) for before in used.values()]
        found = {job.id: job for job in await self.jobs(ids) if job is not None}
        return [
            _put_before(job, used[index], found)
            if index in used
            else PutResult(found[placed[index].id], placed[index].outcome)
            for index, job in enumerate(jobs)
        ]

    async def _use_new_job_keys(
        self, connection: Connection, jobs: Sequence[NewJob]
    ) -> tuple[dict[int, KeyUse], dict[int, KeyRequest]]:
        """Check the idempotency keys of jobs.

        Return the jobs that are left alone because their key was used, and the keys that the others take.
        """
        number = self._names.get_number
        wanted = {
            index: build_key_request(number(NameKind.TENANT, job.tenant), job.idempotency, job.id)
            for index, job in enumerate(jobs)
            if job.idempotency is not None
        }
        if not wanted:
            return {}, {}
        before, taken = await self._take_keys(connection, list(wanted.values()), JOB)
        used = {index: used for index, used in zip(wanted, before, strict=True) if used is not None}
        return used, {index: want for index, want in wanted.items() if want in taken and index not in used}

    async def _release_job_keys(
        self, connection: Connection, taken: dict[int, KeyRequest], placed: dict[int, _PutResult]
    ) -> None:
        """Free the keys of refused jobs; point the others to their job, which may have existed under another id."""
        refused = (PutOutcome.EXISTS, PutOutcome.STALE)
        await self._free_keys(connection, [want for index, want in taken.items() if placed[index].outcome in refused])
        others = [
            msgspec.structs.replace(want, id=placed[index].id)
            for index, want in taken.items()
            if placed[index].outcome not in refused and placed[index].id != want.id
        ]
        await self._use_keys(connection, others, JOB)

    async def _audit_put(self, connection: Connection, jobs: Sequence[NewJob], placed: dict[int, _PutResult]) -> None:
        by_author: dict[str, list[Change]] = {}
        whys: dict[str, str] = {}
        for index in sorted(placed):
            job, change = jobs[index], placed[index].change
            if job.author and change is not None:
                by_author.setdefault(job.author, []).append(change)
                whys.setdefault(job.author, job.why)
        for author, changes in by_author.items():
            await self._audit(connection, "jobs.put", Author(author, why=whys[author]), changes)

    async def _put(self, connection: Connection, jobs: list[NewJob]) -> list[_PutResult]:
        """Put jobs of different names in a few statements, however many there are."""
        sql, number = self._db.sql, self._names.get_number
        calendar_revs = await self._check_calendars(connection, jobs)
        tenants = [number(NameKind.TENANT, job.tenant) for job in jobs]
        names = [job.spec.name for job in jobs]
        by_name = {
            (row["tenant"], row["name"]): row
            for row in await connection.fetch(
                *sql["put_jobs"].bind(jobs=[job.id for job in jobs], tenants=tenants, names=names)
            )
        }
        rows = [by_name[pair] for pair in zip(tenants, names, strict=True)]
        ids = [JobId(row["id"]) for row in rows]
        versions = [row["version"] for row in rows]
        bodies = list(map(version_body_id, ids, versions))
        known = {
            row["job_id"]: row
            for row in await connection.fetch(*sql["job_versions"].bind(jobs=ids, versions=versions, bodies=bodies))
        }
        changed: list[tuple[object, ...]] = []
        new_versions: list[VersionRow] = []
        moved: list[_ScheduleRow] = []
        touched: list[JobId] = []
        watched: list[tuple[JobId, int, bytes]] = []
        unwatched: list[JobId] = []
        rescheduled: list[tuple[JobId, Instant]] = []
        placed: dict[JobId, _PutResult] = {}
        for job, job_id, row in zip(jobs, ids, rows, strict=True):
            state, version, before = JOB_STATES[row["state"]], row["version"], known[job_id]
            if version == 0 and job.expected_version is not None:
                raise NotFound(f"there is no job {job.spec.name!r}")
            spec = decode_spec(before["spec"])
            same = spec == job.spec and before["payload"] == job.payload
            refused = refuse_put(job, job_id, version, state, same) if version else None
            if refused is not None:
                placed[job_id] = _PutResult(job_id, refused)
                continue
            if not same:
                version += 1
                new_versions.append(self._new_version(job, job_id, version))
            elif state not in OVER:
                continue
            was = state
            if spec is not None and spec.timing == job.spec.timing and state not in OVER:
                touched.append(job_id)
            else:
                following = next_after(job.spec.schedule, row["now"], job_id)
                ahead = following is not None and job.spec.looks_ahead
                moved.append(
                    _ScheduleRow(
                        job=job_id,
                        shard=decode_shard(job_id),
                        next_fire=row["now"] if ahead else following,
                        delay=job.spec.fixed_delay,
                        tenant=number(NameKind.TENANT, job.tenant),
                        next_tick=following if ahead else None,
                        calendar_rev=calendar_revs[job.tenant],
                    )
                )
                if following is None:
                    state = JobState.FINISHED
                elif state in OVER:
                    state = JobState.SCHEDULED
            changed.append((job_id, version, JOB_STATE_CODES[state]))
            if job.spec.slo is not None and (spec is None or spec.slo != job.spec.slo or was in OVER):
                beginning = msgspec.json.encode(begin_slo(row["now"]))
                watched.append((job_id, number(NameKind.TENANT, job.tenant), beginning))
            elif job.spec.slo is None and spec is not None and spec.slo is not None:
                unwatched.append(job_id)
            elif job.spec.slo is not None and spec is not None and spec.timing != job.spec.timing:
                rescheduled.append((job_id, row["now"]))
            if row["version"] == 0:
                placed[job_id] = _PutResult(job_id, PutOutcome.CREATED, Change(job.tenant, job_id))
            else:
                differs = what_differs(
                    {} if spec is None else words_of_job(_build_job(job_id, job.tenant, spec, row["version"], was)),
                    words_of_job(_build_job(job_id, job.tenant, job.spec, version, state)),
                )
                change = Change(job.tenant, job_id, *(differs or ()))
                placed[job_id] = _PutResult(job_id, PutOutcome.CHANGED, change)
        if moved:
            await self._drop_ticks(connection, [row.job for row in moved], "schedule changed")
        if new_versions:
            await connection.execute(*sql["add_versions"].bind(**columns_of_structs(new_versions)))
        if changed:
            await connection.execute(*sql["update_jobs"].bind(**columns(changed, "jobs", "versions", "states")))
        if moved:
            await connection.execute(*sql["put_schedules"].bind(**columns_of_structs(moved)))
        if touched:
            await connection.execute(*sql["touch_schedule"].bind(jobs=sorted(touched), active=True))
        if watched:
            await connection.execute(*sql["put_slos"].bind(**columns(watched, "jobs", "tenants", "states")))
        if unwatched:
            await connection.execute(*sql["delete_slos"].bind(jobs=unwatched))
        if rescheduled:
            await connection.execute(*sql["reschedule_slos"].bind(**columns(rescheduled, "jobs", "times")))
        return [placed.get(job_id, _PutResult(job_id, PutOutcome.UNCHANGED)) for job_id in ids]

    def _new_version(self, job: NewJob, job_id: JobId, version: int) -> VersionRow:
        return VersionRow(
            job=job_id,
            version=version,
            spec=encode_spec(job.spec),
            body=version_body_id(job_id, version),
            task=self._names.get_number(NameKind.TASK, job.spec.task),
            policy=self._policies.encode(job.spec.policy),
            payload=job.payload,
            tenant=self._names.get_number(NameKind.TENANT, job.tenant),
            author=job.author,
            why=job.why,
        )

    async def _drop_ticks(self, connection: Connection, jobs: list[JobId], reason: str) -> None:
        """Record the due ticks of these jobs as dropped, because their schedules end or change."""
        for row in await connection.fetch(*self._db.sql["ending_schedules"].bind(jobs=jobs)):
            spec = decode_spec(row["spec"])
            if spec is None:
                # The ticks of a job that cannot be read are unknown.
                continue
            # Tenant, state and payload do not matter for the ticks.
            job = _build_job(
                JobId(row["job_id"]), "", spec, row["version"], JobState.SCHEDULED, row["tick"] or row["next_fire"]
            )
            ticks = dropped_ticks(job, row["now"], reason)
            if ticks:
                await self._partitions.make_ledger_within(connection, {tick.scheduled_at // DAY for tick in ticks})
                await connection.execute(
                    *self._db.sql["drop_ticks"].bind(
                        job=job.id,
                        version=job.version,
                        epoch=row["epoch"],
                        times=[tick.scheduled_at for tick in ticks],
                        reasons=[tick.reason for tick in ticks],
                        ticks=[tick.ticks for tick in ticks],
                        last_times=[tick.last_at for tick in ticks],
                        tenant=row["tenant"],
                        targets=[tick.target for tick in ticks],
                    ),
                )

    async def set_jobs_state(
        self,
        jobs: Collection[JobId],
        state: JobState,
        author: Author | None = None,
        resume_at: Instant | None = None,
    ) -> dict[JobId, JobState]:
        if state is JobState.FINISHED:
            raise Invalid("state", "a job finishes by itself", "scheduled, paused or cancelled")
        pauses = state is JobState.PAUSED
        until, why = (resume_at, "" if author is None else author.why) if pauses else (None, None)

        async def change(connection: Connection) -> dict[JobId, JobState]:
            rows = await connection.fetch(*self._db.sql["lock_jobs"].bind(jobs=sorted(jobs)))
            await self._names.load_names({row["tenant"] for row in rows}, connection)
            answer: dict[JobId, JobState] = {}
            changes: list[Change] = []
            if state is JobState.CANCELLED:
                await self._drop_ticks(connection, [JobId(row["id"]) for row in rows], "cancelled")
            for row in rows:
                job_id, before = JobId(row["id"]), JOB_STATES[row["state"]]
                answer[job_id] = before
                same = before is state and (not pauses or row["resume_at"] == until)
                if before in OVER or same:
                    continue
                answer[job_id] = state
                differs = job_moved(before, state, row["resume_at"], until)
                changes.append(Change(self._names.get_name(row["tenant"]), job_id, *(differs or ())))
                await connection.execute(*self._db.sql["set_job_state"].bind(job=job_id, state=JOB_STATE_CODES[state]))
                # The schedule is closed first: no tick can slip in before the active runs are canceled.
                await connection.execute(
                    *self._db.sql["touch_schedule"].bind(jobs=[job_id], active=state is not JobState.CANCELLED)
                )
                await connection.execute(
                    *self._db.sql["note_pause"].bind(
                        job=job_id, resume_at=until, why=why, was_paused=before is JobState.PAUSED
                    )
                )
                if state is JobState.CANCELLED:
                    await self._stop_job_runs(connection, job_id)
            await self._audit(connection, _ACTIONS[state], author, changes)
            return answer

        return await self._db.transaction(change)

    async def job_named(self, tenant: str, name: str) -> JobId | None:
        rows = await self._db.fetch("job_named", kind=int(NameKind.TENANT), tenant=tenant, name=name)
        return JobId(rows[0]["id"]) if rows else None


def _put_before(new: NewJob, used: KeyUse, found: dict[JobId, Job]) -> PutResult:
    """Answer a declaration whose idempotency key was used, for the same job or for something else."""
    job = found.get(JobId(used.id))
    if job is not None and used.kind == JOB:
        same = new.idempotency is not None and new.idempotency.fingerprint == used.fingerprint
        return PutResult(job, PutOutcome.UNCHANGED if same else PutOutcome.CONFLICT)
    return build_conflict(new, used.id)


def _build_job(
    job: JobId, tenant: str, spec: JobSpec, version: int, state: JobState, next_fire: Instant | None = None
) -> Job:
    return Job(id=job, tenant=tenant, spec=spec, version=version, state=state, next_fire=next_fire, rev=0)
