"""What schedulers do: queue what is due, and fire the ticks of recurring jobs."""

from collections.abc import Iterable, Sequence
from heapq import merge
from itertools import islice

from mainspring.adapters.store.memory.rows import Index, JobRow, RunRow
from mainspring.adapters.store.memory.tables import Tables, gate_of_tick
from mainspring.domain.ids import JobId, RunId, SessionId
from mainspring.domain.instant import MILLISECOND, Instant
from mainspring.domain.job import Fire, Job, JobState, LedgerEntry, Overlap, Tick, tick_run_id
from mainspring.domain.run import RunState
from mainspring.ports.store import Fired, Staged


class MemoryStaging:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def stage(self, owner: SessionId, shards: Sequence[int], limit: int) -> Staged:
        tables = self._tables
        with tables.transaction() as now:
            owned = tables.owned_by(owner, shards)
            due = list(islice(_until(tables.scheduled, owned, now), limit + 1))
            staged = [run for _, row in due[:limit] if tables.stage(run := tables.runs[RunId(row)])]
            return Staged(
                now=now,
                runs=len(staged),
                queues=_queues(staged),
                more=len(due) > limit,
                schedules_due=any(True for _ in _until(tables.due_jobs, owned, now)),
            )

    async def upcoming(self, shards: Sequence[int], until: Instant, limit: int) -> list[tuple[int, Instant]]:
        tables = self._tables
        with tables.transaction():
            pairs: dict[tuple[int, Instant], None] = {}
            for due, run in _until(tables.scheduled, shards, until):
                pairs[tables.runs[RunId(run)].shard, -(-due // MILLISECOND) * MILLISECOND] = None
                if len(pairs) == limit:
                    break
            return list(pairs)

    async def due_jobs(self, shards: Sequence[int], until: Instant, limit: int) -> list[Job]:
        tables = self._tables
        with tables.transaction():
            due = islice(_until(tables.due_jobs, shards, until), limit)
            return [tables.jobs[JobId(job)].job(with_payload=False) for _, job in due]

    async def fire(self, owner: SessionId, fires: Sequence[Fire]) -> list[Fired]:
        with self._tables.transaction():
            return [self._fire(owner, fire) for fire in fires]

    def _fire(self, owner: SessionId, fire: Fire) -> Fired:
        tables = self._tables
        job = tables.jobs.get(fire.job.id)
        if job is None or not job.ticking or job.rev != fire.job.rev or not tables.owned_by(owner, [job.shard]):
            return Fired(applied=False)
        made = [run for tick in fire.ticks if (run := self._record(job, tick)) is not None]
        tables.move_schedule(job, fire.next_fire)
        delay = job.spec.fixed_delay
        if fire.finished:
            job.state = JobState.FINISHED
        elif delay is not None and fire.next_fire is None:
            if made and not made[-1].state.ended:
                job.awaits = made[-1].id
            else:
                # The overlap rule left no run whose end could set the next tick.
                tables.move_schedule(job, tables.now + delay)
        return Fired(applied=True, runs=len(made), queues=_queues(run for run in made if run.state is RunState.QUEUED))

    def _record(self, job: JobRow, tick: Tick) -> RunRow | None:
        """Write a tick down unless it was before; the run it became, if it did."""
        tables = self._tables
        ledger = tables.ledgers[job.id]
        if tick.scheduled_at in ledger:
            return None
        run_id = tick.run_id or tick_run_id(job.id, tick.scheduled_at)
        overlaps = tick.decision == "run" and self._overlaps(job)
        runs = tick.decision == "run" and not overlaps
        ledger.add(
            LedgerEntry(
                job_id=job.id,
                scheduled_at=tick.scheduled_at,
                decision="run" if runs else "skipped",
                reason="overlap" if overlaps else tick.reason,
                run_id=run_id if runs else None,
                job_version=job.version,
                epoch=tables.owners[job.shard].epoch,
                ticks=tick.ticks,
                last_at=tick.last_at,
            )
        )
        if not runs or run_id in tables.runs:
            return None
        if job.spec.overlap is Overlap.CANCEL:
            tables.ask_to_stop(tables.runs_of(job.id))
        run = _row(job, tick, run_id, tables.now)
        tables.enter(run)
        return run

    def _overlaps(self, job: JobRow) -> bool:
        """Whether the job's rule forbids one more run beside those on their way."""
        match job.spec.overlap:
            case Overlap.ALLOW | Overlap.CANCEL:
                return False
            case Overlap.SKIP:
                return bool(self._tables.active[job.id])
            case Overlap.QUEUE:
                active = self._tables.runs_of(job.id)
                return len(active) > 1 or any(run.state is RunState.BLOCKED for run in active)


def _row(job: JobRow, tick: Tick, run: RunId, now: Instant) -> RunRow:
    spec = job.spec
    return RunRow(
        id=run,
        task=spec.task,
        payload=job.payload,
        policy=spec.policy,
        queue=spec.queue,
        tenant=job.tenant,
        priority=spec.priority,
        state=RunState.SCHEDULED,
        due=tick.due,
        created_at=now,
        start_by=None if spec.start_within is None else tick.due + spec.start_within,
        deadline=None if spec.deadline is None else tick.due + spec.deadline,
        gate=gate_of_tick(job.id, job.tenant, spec),
        job_id=job.id,
        scheduled_at=tick.scheduled_at,
        paces_job=spec.fixed_delay is not None,
        late=tick.late,
    )


def _until(indexes: Sequence[Index], shards: Iterable[int], until: Instant) -> Iterable[tuple[int, str]]:
    """The entries of several shards up to an instant, in one order."""
    return merge(*(indexes[shard].until(until) for shard in set(shards) if indexes[shard]))


def _queues(runs: Iterable[RunRow]) -> tuple[str, ...]:
    return tuple(sorted({run.queue for run in runs}))
