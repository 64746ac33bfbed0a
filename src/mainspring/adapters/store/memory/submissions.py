"""What is handed in: runs, jobs, and requests to stop."""

from collections.abc import Collection, Sequence

from mainspring.adapters.store.memory.rows import JobRow, RunRow
from mainspring.adapters.store.memory.tables import Tables, gate_of_run
from mainspring.domain.errors import Invalid
from mainspring.domain.ids import JobId, RunId
from mainspring.domain.instant import Instant
from mainspring.domain.job import Job, JobState, NewJob
from mainspring.domain.run import NewRun, RunState
from mainspring.domain.schedule import next_after
from mainspring.ports.store import Accepted


class MemorySubmissions:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def submit(self, runs: Sequence[NewRun]) -> list[Accepted]:
        tables = self._tables
        for run in runs:
            tables.check_shard(run.id)
        with tables.transaction() as now:
            fresh: dict[RunId, RunRow] = {}
            new = []
            for run in runs:
                new.append(run.id not in tables.runs and run.id not in fresh)
                if new[-1]:
                    fresh[run.id] = _row(run, now)
            # Inside a batch, too, those of one ordering key stand in the order of (due, id).
            for row in sorted(fresh.values(), key=lambda row: (row.due, row.id)):
                tables.enter(row)
            return [
                Accepted(run.id, tables.runs[run.id].shown_state(), is_new)
                for run, is_new in zip(runs, new, strict=True)
            ]

    async def put_jobs(self, jobs: Sequence[NewJob]) -> list[Job]:
        for job in jobs:
            self._tables.check_shard(job.id)
        with self._tables.transaction() as now:
            return [self._put_job(job, now).job(with_payload=True) for job in jobs]

    def _put_job(self, new: NewJob, now: Instant) -> JobRow:
        tables = self._tables
        known = tables.job_names.get((new.tenant, new.spec.name))
        if known is None:
            row = JobRow(
                id=new.id, tenant=new.tenant, spec=new.spec, payload=new.payload, state=JobState.SCHEDULED, version=1
            )
            tables.jobs[row.id] = row
            tables.job_names[new.tenant, new.spec.name] = row.id
            self._start_schedule(row, now)
            return row
        row = tables.jobs[known]
        rescheduled = row.ticking and row.spec.schedule != new.spec.schedule
        if rescheduled:
            tables.drop_ticks(row, "schedule changed")
        if row.spec != new.spec or row.payload != new.payload:
            row.spec = new.spec
            row.payload = new.payload
            row.version += 1
            row.rev += 1
        if not row.ticking:
            row.state = JobState.SCHEDULED
            self._start_schedule(row, now)
        elif rescheduled:
            self._start_schedule(row, now)
        return row

    def _start_schedule(self, row: JobRow, now: Instant) -> None:
        first = next_after(row.spec.schedule, now, row.id)
        if first is None:
            row.state = JobState.FINISHED
        self._tables.move_schedule(row, first)

    async def set_jobs_state(self, jobs: Collection[JobId], state: JobState) -> dict[JobId, JobState]:
        if state is JobState.FINISHED:
            raise Invalid("state", "a job finishes by itself", "scheduled, paused or cancelled")
        tables = self._tables
        with tables.transaction():
            rows = [tables.jobs[job] for job in dict.fromkeys(jobs) if job in tables.jobs]
            for row in rows:
                if not row.ticking or row.state is state:
                    continue
                row.state = state
                if state is JobState.CANCELLED:
                    tables.drop_ticks(row, "cancelled")
                    # The schedule is closed first: nothing can be made behind the runs that are asked to stop.
                    tables.move_schedule(row, None)
                    tables.ask_to_stop(tables.runs_of(row.id))
                else:
                    row.rev += 1
            return {row.id: row.state for row in rows}

    async def cancel(self, runs: Collection[RunId]) -> dict[RunId, RunState]:
        tables = self._tables
        with tables.transaction():
            rows = [tables.runs[run] for run in dict.fromkeys(runs) if run in tables.runs]
            tables.ask_to_stop(rows)
            return {row.id: row.shown_state() for row in rows}


def _row(run: NewRun, now: Instant) -> RunRow:
    due = run.at if run.at is not None else now + run.delay
    return RunRow(
        id=run.id,
        task=run.task,
        payload=run.payload,
        policy=run.policy,
        queue=run.queue,
        tenant=run.tenant,
        priority=run.priority,
        state=RunState.SCHEDULED,
        due=due,
        created_at=now,
        start_by=None if run.start_within is None else due + run.start_within,
        deadline=None if run.deadline is None else due + run.deadline,
        gate=gate_of_run(run.tenant, run.policy),
        replay_of=run.replay_of,
    )
