"""Memory store: objectives of jobs, and whether they are met."""

from collections.abc import Collection, Sequence
from itertools import islice

import msgspec

from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.job import JobSpec
from mainspring.core.model.schedules.slo import SloState, begin
from mainspring.core.ports.storage.slos import SloDue, SloResult
from mainspring.stores.memory.rows import JobRow, SloRow
from mainspring.stores.memory.tables import Tables


class MemorySlos:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def slos_due(self, limit: int) -> list[SloDue]:
        tables = self._tables
        with tables.transaction() as now:
            due = [JobId(job) for _, job in islice(tables.slo_checks.until(now), limit)]
            return [
                SloDue(
                    job=tables.jobs[job].job(with_payload=False),
                    state=tables.slos[job].state,
                    rev=tables.slos[job].rev,
                    last_success=self._find_last_success(job),
                )
                for job in due
            ]

    def _find_last_success(self, job: JobId) -> Instant | None:
        tables = self._tables
        newest = (
            next(
                (
                    row
                    for run in reversed(ended)
                    if _belongs_to_job(tables, run, job) and (row := tables.runs[run]).state is RunState.SUCCEEDED
                ),
                None,
            )
            for ended in (tables.succeeded, *tables.ended_by_class.values())
        )
        return max((row.finished_at for row in newest if row is not None and row.finished_at is not None), default=None)

    async def save_slos(self, results: Sequence[SloResult]) -> int:
        tables = self._tables
        with tables.transaction():
            accepted = 0
            for result in results:
                row = tables.slos.get(result.job)
                if row is None or row.rev != result.rev:
                    continue
                accepted += 1
                tables.slo_checks.remove(row.next_check, result.job)
                if result.next_check is None:
                    del tables.slos[result.job]
                else:
                    tables.slos[result.job] = SloRow(
                        state=result.state, rev=result.rev + 1, next_check=result.next_check
                    )
                    tables.slo_checks.add(result.next_check, result.job)
                for event in result.events:
                    tables.record_job_event(event, tables.jobs[result.job].tenant, result.job)
            return accepted

    async def slo_states(self, jobs: Collection[JobId]) -> dict[JobId, SloState]:
        return {job: self._tables.slos[job].state for job in jobs if job in self._tables.slos}

    async def slos_missed(self, tenant: str | None, limit: int) -> dict[JobId, SloState]:
        tables = self._tables
        missed = (
            (job, row.state)
            for job, row in sorted(tables.slos.items())
            if row.state.is_missed and tenant in (None, tables.jobs[job].tenant)
        )
        return dict(islice(missed, limit))


def watch_objectives(tables: Tables, job: JobRow, before: JobSpec | None) -> None:
    """Evaluate the objectives of a declared job from now on, if they or its schedule changed.

    ``before``: the spec that it replaces, if the job was neither new nor over.
    """
    known, state = tables.slos.get(job.id), begin(tables.now)
    if known is not None and before is not None and before.slo == job.spec.slo:
        if before.timing == job.spec.timing:
            return
        state = msgspec.structs.replace(known.state, rescheduled_at=tables.now)
    if known is not None:
        tables.slo_checks.remove(known.next_check, job.id)
        del tables.slos[job.id]
    if job.spec.slo is not None and job.ticking:
        rev = 1 if known is None else known.rev + 1
        tables.slos[job.id] = SloRow(state=state, rev=rev, next_check=tables.now)
        tables.slo_checks.add(tables.now, job.id)


def _belongs_to_job(tables: Tables, run: RunId, job: JobId) -> bool:
    return run in tables.runs and tables.runs[run].job_id == job
