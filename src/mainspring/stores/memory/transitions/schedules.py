"""Transitions of recurring jobs."""

from mainspring.core.model.base.ids import JobId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.schedules.job import LedgerEntry, Tick
from mainspring.core.model.schedules.plan import dropped_ticks
from mainspring.core.ports.storage.catalog import JobVersion
from mainspring.stores.memory.data import StoreData
from mainspring.stores.memory.rows import JobRow, RunRow


class ScheduleTransitions(StoreData):
    """Moves schedules, and records ticks and versions."""

    def move_schedule(self, job: JobRow, next_fire: Instant | None, next_tick: Instant | None = None) -> None:
        """Set the next tick. Every change increments ``rev``, so a scheduler with an old plan reads the row again."""
        if job.next_fire is not None:
            self.due_jobs[job.shard].remove(job.next_fire, job.id)
        job.next_fire = next_fire
        job.next_tick = next_tick
        if next_fire is not None:
            self.due_jobs[job.shard].add(next_fire, job.id)
        job.awaits = None
        job.rev += 1

    def compute_calendar_rev(self, tenant: str) -> int:
        """Return how many times the calendars of a tenant have changed."""
        return sum(versions[-1].version for (owner, _), versions in self.calendars.items() if owner == tenant)

    def add_version(self, job: JobRow, made_by: str, why: str) -> None:
        """Store the current spec and payload of the job as its next version."""
        job.version += 1
        job.rev += 1
        self.versions[job.id].append(
            JobVersion(
                version=job.version,
                spec=job.spec,
                payload=job.payload,
                made_by=made_by,
                why=why,
                made_at=self.now,
            )
        )

    def record_tick(self, job: JobRow, tick: Tick) -> None:
        """Add a tick to the ledger unless it is there already."""
        if tick not in self.ledgers[job.id]:
            self.ledgers[job.id].add(
                LedgerEntry(
                    job_id=job.id,
                    scheduled_at=tick.scheduled_at,
                    decision=tick.decision,
                    reason=tick.reason,
                    run_id=tick.run_id,
                    job_version=job.version,
                    epoch=self.shard_rows[job.shard].epoch,
                    ticks=tick.ticks,
                    last_at=tick.last_at,
                    target=tick.target,
                )
            )

    def drop_ticks(self, job: JobRow, reason: str) -> None:
        """Record the due ticks of a job as dropped, because its schedule ends now."""
        for tick in dropped_ticks(job.job(with_payload=False), self.now, reason):
            self.record_tick(job, tick)

    def list_active_runs(self, job: JobId, target: str = "") -> list[RunRow]:
        """Return the active runs of a job; with ``target``, only those for that data center or for none."""
        runs = [self.runs[run] for run in self.active_by_job.get(job, ())]
        ledger = self.ledgers[job]
        return [run for run in runs if ledger.find_target(run) in ("", target)] if target else runs

    def _start_fixed_delay(self, job: JobRow, run: RunRow) -> None:
        """Set the next tick of a fixed-delay job when its run has ended."""
        delay = job.spec.fixed_delay
        if delay is not None and job.ticking and job.next_fire is None and job.awaits == run.id:
            self.move_schedule(job, self.now + delay)

    def purge_job(self, job: JobRow) -> None:
        """Delete an ended job. Its runs stay."""
        del self.jobs[job.id]
        del self.job_names[job.tenant, job.spec.name]
        self.versions.pop(job.id, None)
        self.ledgers.pop(job.id, None)
        slo = self.slos.pop(job.id, None)
        if slo is not None:
            self.slo_checks.remove(slo.next_check, job.id)
