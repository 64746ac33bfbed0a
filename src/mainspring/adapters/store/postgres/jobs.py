"""Recurring jobs: declared, paused, resumed, cancelled, read."""

from collections.abc import Collection, Sequence

import asyncpg

from mainspring.adapters.store.postgres.database import Connection
from mainspring.adapters.store.postgres.names import Kind
from mainspring.adapters.store.postgres.rows import (
    JOB_STATE_CODES,
    JOB_STATES,
    decode_spec,
    encode_spec,
    job_of,
)
from mainspring.adapters.store.postgres.staging import Staging
from mainspring.domain.errors import Invalid
from mainspring.domain.ids import JobId, shard_of
from mainspring.domain.job import Job, JobState, NewJob, version_body_id
from mainspring.domain.schedule import next_after

_OVER = (JobState.FINISHED, JobState.CANCELLED)


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
            return {index: await self._put_job(connection, jobs[index]) for index in order}

        try:
            placed = await self._db.transaction(put)
        except asyncpg.UniqueViolationError:
            # One declaration sent twice can meet itself at its id before it does at its name; now the winner is there.
            placed = await self._db.transaction(put)
        found = {job.id: job for job in await self.jobs([placed[index] for index in order]) if job is not None}
        return [found[placed[index]] for index in range(len(jobs))]

    async def _put_job(self, connection: Connection, job: NewJob) -> JobId:
        sql = self._db.sql
        row = await connection.fetchrow(
            sql["put_job"], job.id, self._names.number(Kind.TENANT, job.tenant), job.spec.name
        )
        assert row is not None
        job_id, version, state, now = JobId(row["id"]), row["version"], JOB_STATES[row["state"]], row["now"]
        before = await connection.fetchrow(sql["job_version"], job_id, version, version_body_id(job_id, version))
        same = before is not None and decode_spec(before["spec"]) == job.spec and before["payload"] == job.payload
        if same and state not in _OVER:
            return job_id
        if not same:
            version += 1
            await connection.execute(
                sql["add_version"],
                job_id,
                version,
                encode_spec(job.spec),
                version_body_id(job_id, version),
                self._names.number(Kind.TASK, job.spec.task),
                self._policies.encode(job.spec.policy),
                job.payload,
            )
        revived = JobState.SCHEDULED if state in _OVER else state
        await connection.execute(sql["update_job"], job_id, version, JOB_STATE_CODES[revived])
        unmoved = before is not None and decode_spec(before["spec"]).schedule == job.spec.schedule
        if unmoved and state not in _OVER:
            await connection.execute(sql["touch_schedule"], job_id, True)
        else:
            following = next_after(job.spec.schedule, now, job_id)
            await connection.fetchrow(
                sql["put_schedule"],
                job_id,
                shard_of(job_id),
                following,
                job.spec.fixed_delay,
                following is not None,
            )
            if following is None:
                await connection.execute(sql["finish_job"], job_id)
        return job_id

    async def set_jobs_state(self, jobs: Collection[JobId], state: JobState) -> dict[JobId, JobState]:
        if state is JobState.FINISHED:
            raise Invalid("state", "a job finishes by itself", "scheduled, paused or cancelled")

        async def change(connection: Connection) -> dict[JobId, JobState]:
            rows = await connection.fetch(self._db.sql["lock_jobs"], sorted(jobs))
            answer: dict[JobId, JobState] = {}
            for row in rows:
                job_id, before = JobId(row["id"]), JOB_STATES[row["state"]]
                answer[job_id] = before
                if before in _OVER or before is state:
                    continue
                answer[job_id] = state
                await connection.execute(self._db.sql["set_job_state"], job_id, JOB_STATE_CODES[state])
                # The schedule is closed first: no tick can slip in between it and the cancel of what is active.
                await connection.execute(self._db.sql["touch_schedule"], job_id, state is not JobState.CANCELLED)
                if state is JobState.CANCELLED:
                    await self._stop_runs_of(connection, job_id)
            return answer

        return await self._db.transaction(change)

    async def jobs(self, ids: Sequence[JobId]) -> list[Job | None]:
        rows = await self._db.fetch("jobs", list(ids))
        await self._names.name_all({row["tenant"] for row in rows})
        bodies = await self._db.fetch("bodies", [version_body_id(JobId(row["id"]), row["version"]) for row in rows])
        payloads = {row["id"]: row["payload"] for row in bodies}
        found = {
            row["id"]: job_of(
                row, self._names, payloads.get(version_body_id(JobId(row["id"]), row["version"]), b"null")
            )
            for row in rows
        }
        return [found.get(job_id) for job_id in ids]
