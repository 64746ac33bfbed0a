"""Recurring jobs: declared, paused, resumed, cancelled, read."""

from collections.abc import Collection, Sequence
from itertools import islice

import asyncpg

from mainspring.adapters.store.postgres.database import Connection
from mainspring.adapters.store.postgres.names import Kind
from mainspring.adapters.store.postgres.rows import (
    JOB_STATE_CODES,
    JOB_STATES,
    decode_spec,
    encode_spec,
    job_of,
    readable_jobs,
)
from mainspring.adapters.store.postgres.staging import Staging
from mainspring.domain.errors import Invalid
from mainspring.domain.ids import JobId, shard_of
from mainspring.domain.instant import DAY, Instant, Micros
from mainspring.domain.job import Job, JobState, NewJob, version_body_id
from mainspring.domain.plan import dropped_ticks
from mainspring.domain.schedule import next_after

_OVER = (JobState.FINISHED, JobState.CANCELLED)
#: Their next ticks are computed in one go, between two statements of a transaction.
_AT_ONCE = 500


class Jobs(Staging):
    async def put_jobs(self, jobs: Sequence[NewJob]) -> list[Job]:
        self._shards_of([job.id for job in jobs])
        await self._names.number_all(
            pair
            for job in jobs
            for pair in (
                (Kind.TENANT, job.tenant),
                (Kind.TASK, job.spec.task),
                (Kind.QUEUE, job.spec.queue),
            )
        )
        # One order for everybody who declares: two nodes that start together do not deadlock.
        order = sorted(range(len(jobs)), key=lambda index: (jobs[index].tenant, jobs[index].spec.name))

        async def put(connection: Connection) -> dict[int, JobId]:
            placed: dict[int, JobId] = {}
            left = dict.fromkeys(order)
            while left:
                turn: dict[tuple[str, str], int] = {}
                for index in islice(left, _AT_ONCE):
                    # A statement puts a name once: who comes a second time has to wait for the next turn.
                    turn.setdefault((jobs[index].tenant, jobs[index].spec.name), index)
                ids = await self._put(connection, [jobs[index] for index in turn.values()])
                for index, job_id in zip(turn.values(), ids, strict=True):
                    placed[index] = job_id
                    del left[index]
            return placed

        try:
            placed = await self._db.transaction(put)
        except asyncpg.UniqueViolationError:
            # One declaration sent twice can meet itself at its id before it does at its name; now the winner is there.
            placed = await self._db.transaction(put)
        found = {job.id: job for job in await self.jobs(list(placed.values())) if job is not None}
        return [found[placed[index]] for index in range(len(jobs))]

    async def _put(self, connection: Connection, jobs: list[NewJob]) -> list[JobId]:
        """Jobs of different names, in a few statements, however many they are."""
        sql, number = self._db.sql, self._names.number
        tenants = [number(Kind.TENANT, job.tenant) for job in jobs]
        names = [job.spec.name for job in jobs]
        by_name = {
            (row["tenant"], row["name"]): row
            for row in await connection.fetch(sql["put_jobs"], [job.id for job in jobs], tenants, names)
        }
        rows = [by_name[pair] for pair in zip(tenants, names, strict=True)]
        ids = [JobId(row["id"]) for row in rows]
        versions = [row["version"] for row in rows]
        bodies = list(map(version_body_id, ids, versions))
        known = {row["job_id"]: row for row in await connection.fetch(sql["job_versions"], ids, versions, bodies)}
        changed: list[tuple[object, ...]] = []
        new_versions: list[tuple[object, ...]] = []
        moved: list[tuple[JobId, int, Instant | None, Micros | None]] = []
        touched: list[JobId] = []
        for job, job_id, row in zip(jobs, ids, rows, strict=True):
            state, version, before = JOB_STATES[row["state"]], row["version"], known[job_id]
            spec = decode_spec(before["spec"])
            if spec != job.spec or before["payload"] != job.payload:
                version += 1
                new_versions.append(self._new_version(job, job_id, version))
            elif state not in _OVER:
                continue
            if spec is not None and spec.schedule == job.spec.schedule and state not in _OVER:
                touched.append(job_id)
            else:
                following = next_after(job.spec.schedule, row["now"], job_id)
                moved.append((job_id, shard_of(job_id), following, job.spec.fixed_delay))
                if following is None:
                    state = JobState.FINISHED
                elif state in _OVER:
                    state = JobState.SCHEDULED
            changed.append((job_id, version, JOB_STATE_CODES[state]))
        if moved:
            await self._drop_ticks(connection, [job_id for job_id, *_ in moved], "schedule changed")
        if new_versions:
            await connection.execute(sql["add_versions"], *zip(*new_versions, strict=True))
        if changed:
            await connection.execute(sql["update_jobs"], *zip(*changed, strict=True))
        if moved:
            await connection.execute(sql["put_schedules"], *zip(*moved, strict=True))
        if touched:
            await connection.execute(sql["touch_schedule"], sorted(touched), True)
        return ids

    def _new_version(self, job: NewJob, job_id: JobId, version: int) -> tuple[object, ...]:
        return (
            job_id,
            version,
            encode_spec(job.spec),
            version_body_id(job_id, version),
            self._names.number(Kind.TASK, job.spec.task),
            self._policies.encode(job.spec.policy),
            job.payload,
        )

    async def _drop_ticks(self, connection: Connection, jobs: list[JobId], reason: str) -> None:
        """The schedules of these jobs, if they have any, end here: what is due of them is written down."""
        for row in await connection.fetch(self._db.sql["ending_schedules"], jobs):
            spec = decode_spec(row["spec"])
            if spec is None:
                # Which ticks it had nobody can say.
                continue
            # Tenant, state and payload have no say in it.
            job = Job(
                id=JobId(row["job_id"]),
                tenant="",
                spec=spec,
                version=row["version"],
                state=JobState.SCHEDULED,
                next_fire=row["next_fire"],
                rev=row["rev"],
            )
            ticks = dropped_ticks(job, row["now"], reason)
            if ticks:
                await self._partitions.make_ledger_within(connection, {tick.scheduled_at // DAY for tick in ticks})
                await connection.execute(
                    self._db.sql["drop_ticks"],
                    job.id,
                    job.version,
                    row["epoch"],
                    [tick.scheduled_at for tick in ticks],
                    [tick.reason for tick in ticks],
                    [tick.ticks for tick in ticks],
                    [tick.last_at for tick in ticks],
                )

    async def set_jobs_state(self, jobs: Collection[JobId], state: JobState) -> dict[JobId, JobState]:
        if state is JobState.FINISHED:
            raise Invalid("state", "a job finishes by itself", "scheduled, paused or cancelled")

        async def change(connection: Connection) -> dict[JobId, JobState]:
            rows = await connection.fetch(self._db.sql["lock_jobs"], sorted(jobs))
            answer: dict[JobId, JobState] = {}
            if state is JobState.CANCELLED:
                await self._drop_ticks(connection, [JobId(row["id"]) for row in rows], "cancelled")
            for row in rows:
                job_id, before = JobId(row["id"]), JOB_STATES[row["state"]]
                answer[job_id] = before
                if before in _OVER or before is state:
                    continue
                answer[job_id] = state
                await connection.execute(self._db.sql["set_job_state"], job_id, JOB_STATE_CODES[state])
                # The schedule is closed first: no tick can slip in between it and the cancel of what is active.
                await connection.execute(self._db.sql["touch_schedule"], [job_id], state is not JobState.CANCELLED)
                if state is JobState.CANCELLED:
                    await self._stop_runs_of(connection, job_id)
            return answer

        return await self._db.transaction(change)

    async def job_named(self, tenant: str, name: str) -> JobId | None:
        rows = await self._db.fetch("job_named", int(Kind.TENANT), tenant, name)
        return JobId(rows[0]["id"]) if rows else None

    async def jobs(self, ids: Sequence[JobId]) -> list[Job | None]:
        rows = await self._db.fetch("jobs", list(ids))
        await self._names.name_all({row["tenant"] for row in rows})
        bodies = await self._db.fetch("bodies", [version_body_id(JobId(row["id"]), row["version"]) for row in rows])
        payloads = {row["id"]: row["payload"] for row in bodies}

        def read(row: asyncpg.Record) -> Job:
            body = version_body_id(JobId(row["id"]), row["version"])
            return job_of(row, self._names, payloads.get(body, b"null"))

        found = {job.id: job for job in readable_jobs(rows, read)}
        return [found.get(job_id) for job_id in ids]
