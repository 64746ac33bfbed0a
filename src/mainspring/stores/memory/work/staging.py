"""Memory store: operations of schedulers, which queue due runs and fire the ticks of recurring jobs."""

from collections.abc import Iterable, Sequence
from heapq import merge
from itertools import islice

from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import MILLISECOND, Instant
from mainspring.core.model.cluster.datacenters import placed
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.job import OVERLAP, Fire, Job, JobState, Overlap, Tick
from mainspring.core.ports.storage.answers import FireResult, StageResult
from mainspring.stores.key_locks import compute_tick_key_lock
from mainspring.stores.memory.index import Index
from mainspring.stores.memory.rows import JobRow, RunRow
from mainspring.stores.memory.tables import Tables


class MemoryScheduling:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def stage(self, owner: SessionId, shards: Sequence[int], limit: int) -> StageResult:
        tables = self._tables
        with tables.transaction() as now:
            owned = tables.filter_owned(owner, shards)
            due = list(islice(_merge_until(tables.scheduled, owned, now), limit + 1))
            rows = {run.id: run for _, row in due[:limit] if (run := tables.runs[RunId(row)])}
            for run in rows.values():
                tables.stage(run)
            rows.update({run.id: run for run in tables.admit_runs()})
            rows.update({run.id: run for run in tables.check_limiters(tables.limiters.find_due(now)).queued})
            staged = [run for run in rows.values() if run.state is RunState.QUEUED]
            return StageResult(
                now=now,
                runs=len(staged),
                queues=_list_queues(staged),
                more=len(due) > limit,
                schedules_due=any(True for _ in _merge_until(tables.due_jobs, owned, now)),
            )

    async def upcoming(self, shards: Sequence[int], until: Instant, limit: int) -> list[tuple[int, Instant]]:
        tables = self._tables
        with tables.transaction():
            pairs: dict[tuple[int, Instant], None] = {}
            for due, run in _merge_until(tables.scheduled, shards, until):
                pairs[tables.runs[RunId(run)].shard, -(-due // MILLISECOND) * MILLISECOND] = None
                if len(pairs) == limit:
                    break
            return list(pairs)

    async def due_jobs(self, shards: Sequence[int], until: Instant, limit: int) -> list[Job]:
        tables = self._tables
        with tables.transaction():
            due = islice(_merge_until(tables.due_jobs, shards, until), limit)
            return [tables.jobs[JobId(job)].job(with_payload=False) for _, job in due]

    async def fire(self, owner: SessionId, fires: Sequence[Fire]) -> list[FireResult]:
        tables = self._tables
        with tables.transaction():
            created = [self._fire(owner, fire) for fire in fires]
            tables.admit_runs()
            return [
                FireResult(applied=False)
                if runs is None
                else FireResult(
                    applied=True,
                    runs=len(runs),
                    queues=_list_queues(run for run in runs if run.state is RunState.QUEUED),
                )
                for runs in created
            ]

    def _fire(self, owner: SessionId, fire: Fire) -> list[RunRow] | None:
        """Apply a fire; return the runs that it created, or None if it was not applied."""
        tables = self._tables
        job = tables.jobs.get(fire.job.id)
        if job is None or not job.ticking or job.rev != fire.job.rev or not tables.filter_owned(owner, [job.shard]):
            return None
        if any(tick.happens_at > tables.now for tick in fire.ticks):
            return None
        created = [run for tick in fire.ticks if (run := self._create_run(job, tick)) is not None]
        tables.move_schedule(job, fire.next_fire, fire.next_tick)
        delay = job.spec.fixed_delay
        if fire.finished:
            job.state = JobState.FINISHED
            job.updated_at = tables.now
        elif delay is not None and fire.next_fire is None:
            if created and not created[-1].state.ended:
                job.awaits = created[-1].id
            else:
                # The overlap rule left no run whose end could set the next tick.
                tables.move_schedule(job, tables.now + delay)
        return created

    def _create_run(self, job: JobRow, tick: Tick) -> RunRow | None:
        """Record a tick unless it is recorded already; return the run that it became, if any."""
        tables = self._tables
        if tick in tables.ledgers[job.id]:
            return None
        if tick.decision == "run" and not self._admits_overlap(job, tick.target):
            tick = Tick(scheduled_at=tick.scheduled_at, decision="skipped", reason=OVERLAP, target=tick.target)
        tables.record_tick(job, tick)
        if tick.run_id is None or tick.run_id in tables.runs:
            return None
        run = _build_row(job, tick, tick.run_id, tables.now)
        tables.insert_run(run)
        return run

    def _admits_overlap(self, job: JobRow, target: str) -> bool:
        """Report whether the overlap rule admits one more run. The cancel rule first cancels the active runs."""
        tables, overlap = self._tables, job.spec.overlap
        if overlap is Overlap.ALLOW:
            return True
        if overlap is Overlap.CANCEL:
            tables.request_cancel(tables.list_active_runs(job.id, target))
        active = tables.list_active_runs(job.id, target)
        key_lock = compute_tick_key_lock(job.id, job.tenant, job.spec, target)
        return overlap.has_room(
            len(active),
            is_one_blocked=any(run.in_line for run in active),
            has_one_key=all(run.key_lock == key_lock for run in active),
        )


def _build_row(job: JobRow, tick: Tick, run: RunId, now: Instant) -> RunRow:
    spec = job.spec
    policy = placed(spec.policy, tick.target)
    return RunRow(
        id=run,
        task=spec.task,
        payload=job.payload,
        policy=policy,
        queue=spec.queue,
        tenant=job.tenant,
        priority=spec.priority,
        state=RunState.SCHEDULED,
        due=tick.due,
        created_at=now,
        start_by=None if spec.start_within is None else tick.due + spec.start_within,
        deadline=None if spec.deadline is None else tick.due + spec.deadline,
        key_lock=compute_tick_key_lock(job.id, job.tenant, spec, tick.target),
        limits=spec.policy.limiters(job.tenant, spec.task),
        job_id=job.id,
        job_version=job.version,
        scheduled_at=tick.scheduled_at,
        paces_job=spec.fixed_delay is not None,
        late=tick.late,
    )


def _merge_until(indexes: Sequence[Index], shards: Iterable[int], until: Instant) -> Iterable[tuple[int, str]]:
    """Return the entries of several shards up to an instant, in one order."""
    return merge(*(indexes[shard].until(until) for shard in set(shards) if indexes[shard]))


def _list_queues(runs: Iterable[RunRow]) -> tuple[str, ...]:
    return tuple(sorted({run.queue for run in runs}))
