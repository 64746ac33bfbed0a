"""The service that checks service level objectives: late starts and missing successes. It reports each change once."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import SECOND, Instant, Micros
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules import slo as slos
from mainspring.core.model.schedules.job import Job, JobState, LedgerEntry
from mainspring.core.model.schedules.schedule import compute_due, next_after, ticks_between
from mainspring.core.model.schedules.slo import SloEvaluation, TickFact
from mainspring.core.model.schedules.spread import MOST_OF_A_TICK
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.reads import StoreReads
from mainspring.core.ports.storage.slos import SloDue, SloResult, Slos
from mainspring.core.ports.wakeups import Wakeups
from mainspring.core.runtime.metrics.run_metrics import RunMetrics
from mainspring.core.runtime.service import TickingService

_INTERVAL: Micros = 2 * SECOND
_LIMIT = 100
#: Reasons of ticks without a run that do not count against an objective.
_EXCUSED_REASONS = ("paused", "schedule changed", "cancelled", "calendar: ")


class SloStore(Slos, StoreReads, Protocol):
    """The part of the store that the keeper uses."""


class SloKeeper(TickingService):
    """Judges the objectives of jobs that are due for a check.

    It works from state and not from events, and needs no leader: if several keepers judge the same job, the store
    accepts one of them.
    """

    def __init__(self, store: SloStore, wakeups: Wakeups, clock: Clock, metrics: RunMetrics | None = None) -> None:
        super().__init__("slos", clock, wakeups.listen([]))
        self._store = store
        self._metrics = metrics

    async def tick(self) -> Micros:
        due = await self._store.slos_due(_LIMIT)
        if not due:
            return _INTERVAL
        now = await self._store.now()
        results = await asyncio.gather(*(self._check_job(one, now) for one in due))
        await self._store.save_slos(results)
        for one, result in zip(due, results, strict=True):
            for event in result.events:
                self.log.warning(event, job=one.job.id, job_name=one.job.spec.name)
                if self._metrics is not None:
                    self._metrics.slo_changed(event)
        return 0 if len(due) == _LIMIT else _INTERVAL

    async def _check_job(self, due: SloDue, now: Instant) -> SloResult:
        job, slo = due.job, due.job.spec.slo
        if slo is None or job.state is JobState.CANCELLED:
            judged = slos.close(due.state)
        elif job.state is JobState.PAUSED:
            judged = slos.rest(due.state, now)
        else:
            judged = await self._judge_job(due, slo, now)
        return SloResult(
            job=job.id, rev=due.rev, state=judged.state, next_check=judged.next_check, events=judged.events
        )

    async def _judge_job(self, due: SloDue, slo: slos.Slo, now: Instant) -> SloEvaluation:
        job, state = due.job, due.state
        ticks: list[Instant] = []
        following: Instant | None = None
        facts: dict[Instant, TickFact] = {}
        if slo.start_within is not None:
            schedule, until = job.spec.schedule, now - slo.start_within - 1
            changed = max(state.judged, state.rescheduled_at or 0)
            ticks = await self._read_former_ticks(job, state.judged, min(changed, until))
            ticks += ticks_between(schedule, changed, until, job.id, slos.MOST_TICKS)
            following = next_after(schedule, max(until, changed), job.id)
        if ticks:
            entries = await self._store.ledger(job.id, ticks[0], ticks[-1] + 1, slos.MOST_TICKS * MOST_OF_A_TICK)
            # A tick that no scheduler has fired yet is delayed by its jitter as well.
            facts = {tick: TickFact(None, compute_due(job.spec.schedule, tick, job.id)) for tick in ticks}
            facts |= await self._read_facts(job, entries)
        # A finished schedule ended when its last tick fired.
        ended_at = job.updated_at if job.state is JobState.FINISHED else None
        return slos.judge(slo, state, ticks, following, facts, due.last_success, now, ended_at)

    async def _read_former_ticks(self, job: Job, after: Instant, until: Instant) -> list[Instant]:
        """Return the ticks of former schedules. The ledger has them all: changing a schedule records due ticks."""
        if until <= after:
            return []
        entries = await self._store.ledger(job.id, after + 1, until + 1, slos.MOST_TICKS * MOST_OF_A_TICK)
        return sorted({entry.scheduled_at for entry in entries})

    async def _read_facts(self, job: Job, entries: Sequence[LedgerEntry]) -> dict[Instant, TickFact]:
        runs = await self._store.runs([entry.run_id for entry in entries if entry.run_id is not None])
        by_id = {run.id: run for run in runs if run is not None}
        facts: dict[Instant, TickFact] = {}
        for entry in entries:
            if entry.decision == "run" and entry.run_id is not None:
                fact = await self._read_fact(job, entry, by_id.get(entry.run_id))
            elif entry.reason.startswith(_EXCUSED_REASONS):
                fact = TickFact(None, entry.scheduled_at, excused=True)
            else:
                continue
            # A tick in several data centers counts as the worst of them.
            facts[entry.scheduled_at] = slos.worse(facts.get(entry.scheduled_at), fact)
        return facts

    async def _read_fact(self, job: Job, entry: LedgerEntry, run: RunView | None) -> TickFact:
        if run is None:
            # Retention has deleted the run: it is too old to be judged.
            return TickFact(None, entry.scheduled_at, excused=True)
        # Jitter and calendars delay the expected start. Catch-up delays the run as well, but not the objective.
        due = compute_due(job.spec.schedule, entry.scheduled_at, job.id)
        moved = entry.reason.startswith("moved after")
        cancelled = run.state is RunState.CANCELLED
        # A run whose due time is after its start waits for its next attempt.
        if run.attempt == 0 or (run.attempt == 1 and run.started_at is not None and run.started_at >= run.due):
            changed = entry.job_version != job.version
            return TickFact(run.started_at, run.due if moved or changed else due, excused=cancelled)
        # The store does not keep the time at which a calendar allowed the first attempt.
        return TickFact(await self._read_first_start(run.id), due, excused=moved or cancelled)

    async def _read_first_start(self, run: RunId) -> Instant | None:
        starts = [attempt.started_at for attempt in await self._store.attempts(run) if attempt.started_at is not None]
        return min(starts, default=None)
