"""Recurring jobs: declared, paused, resumed, cancelled."""

from collections.abc import Collection, Sequence

import apsw

from mainspring.adapters.store.sqlite import rows
from mainspring.adapters.store.sqlite.part import Part
from mainspring.domain.errors import Invalid
from mainspring.domain.ids import JobId, shard_of
from mainspring.domain.instant import Instant
from mainspring.domain.job import Job, JobState, NewJob
from mainspring.domain.schedule import next_after

_KNOWN = """
SELECT j.id, j.version, j.state, v.spec, b.payload FROM job j
JOIN job_version v ON v.job_id = j.id AND v.version = j.version JOIN body b ON b.id = v.body
WHERE j.tenant = ? AND j.name = ?
"""


class SqliteJobs(Part):
    async def put_jobs(self, jobs: Sequence[NewJob]) -> list[Job]:
        if not jobs:
            return []
        for job in jobs:
            self._check_shard(job.id)
        payloads = [rows.text_of(job.payload, "payload") for job in jobs]

        def work(connection: apsw.Connection, now: Instant) -> str:
            # Declared seldom, and the next tick is the interpreter's business: a row at a time.
            ids = [_put(connection, job, payload, now) for job, payload in zip(jobs, payloads, strict=True)]
            return _read(connection, ids)

        by_id = {job.id: job for job in rows.jobs(await self._writer.ask(work))}
        by_name = {(job.tenant, job.spec.name): job for job in by_id.values()}
        return [by_name[job.tenant, job.spec.name] for job in jobs]

    async def set_jobs_state(self, jobs: Collection[JobId], state: JobState) -> dict[JobId, JobState]:
        if state is JobState.FINISHED:
            raise Invalid("state", "a job finishes by itself", "scheduled, paused or cancelled")
        answer = await self._writer.call("set_jobs", rows.encode((state, list(dict.fromkeys(jobs)))))
        return dict(rows.job_states.decode(answer))
