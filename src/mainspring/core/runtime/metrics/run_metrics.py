"""Counts the runs that pass through a process: submitted, claimed, ended, staged, fired, reaped."""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.model.runs.completion import Completion
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import HeldRun, Outcome, RunState
from mainspring.core.model.schedules.job import Fire
from mainspring.core.ports.storage.upkeep import UnattemptedRuns
from mainspring.core.runtime.metrics import declared
from mainspring.core.runtime.metrics.counters import BoundedNames, Histogram, LabelCounts

if TYPE_CHECKING:
    from mainspring.core.runtime.metrics.exposition import Exposition

_TRIED_AGAIN = (Outcome.ERROR, Outcome.TIMEOUT, Outcome.LOST)


class EndedAttempt(Protocol):
    """An ended attempt, with its start and end by the same clock."""

    @property
    def held(self) -> HeldRun: ...

    @property
    def came_at(self) -> Micros: ...

    @property
    def ended_at(self) -> Micros: ...


class RunMetrics:
    """The run metrics of one process. Callers report whole batches, after the store has answered."""

    def __init__(self, most_names: int = 100, *, tenants: bool = False) -> None:
        """``most_names``: how many tasks, queues and tenants are counted separately; the others are combined."""
        self._tasks = BoundedNames(most_names)
        self._queues = BoundedNames(most_names)
        self._tenants = BoundedNames(most_names)
        self._by_tenant = tenants
        self._submitted = LabelCounts()
        self._attempts = LabelCounts()
        self._ended = LabelCounts()
        self._retries = LabelCounts()
        self._failures = LabelCounts()
        self._reaped = LabelCounts()
        self._slo_changes = LabelCounts()
        self._tenant_submitted = LabelCounts()
        self._tenant_attempts = LabelCounts()
        self._lateness: dict[str, Histogram] = {}
        self._durations: dict[str, Histogram] = {}
        self._call_seconds: dict[str, Histogram] = {}
        self._call_runs: dict[str, Histogram] = {}
        self._fire_lateness = Histogram(declared.FIRE_LATENESS.buckets, SECOND)
        self.known = 0
        self.fenced = 0
        self.staged = 0
        self.fired = 0
        self.schedules = False

    def offers(self, tasks: Collection[str]) -> None:
        """Start the counters of these tasks at 0: a series that begins with 1 would hide the first failure."""
        for task in tasks:
            for state in (RunState.SUCCEEDED, RunState.FAILED):
                self._ended[self._tasks[task], state.value] += 0

    def called(self, call: str, took: Micros, runs: int) -> None:
        """Count a store call that was answered."""
        spread = self._call_seconds.get(call)
        if spread is None:
            spread = self._call_seconds[call] = Histogram(declared.CALL_SECONDS.buckets, SECOND)
            self._call_runs[call] = Histogram(declared.CALL_RUNS.buckets)
        spread.add(took)
        if runs:
            self._call_runs[call].add(runs)

    def failed(self, call: str) -> None:
        """Count a store call that was not answered, or not in time."""
        self._failures[(call,)] += 1

    def submitted(self, runs: Sequence[NewRun]) -> None:
        """Count new runs."""
        by_task: dict[str, int] = {}
        for run in runs:
            by_task[run.task] = by_task.get(run.task, 0) + 1
        for task, count in by_task.items():
            self._submitted[(self._tasks[task],)] += count
        if self._by_tenant:
            for run in runs:
                self._tenant_submitted[(self._tenants[run.tenant],)] += 1

    def claimed(self, runs: Sequence[HeldRun]) -> None:
        by_queue: dict[str, list[int]] = {}
        # Neighbors usually have the same queue, which saves a lookup.
        last, values = None, list[int]()
        for run in runs:
            if run.queue != last:
                last = run.queue
                values = by_queue.setdefault(last, [])
            values.append(run.started_at - (run.due if run.due > run.ready_at else run.ready_at))
        for queue, values in by_queue.items():
            _add(self._lateness, self._queues[queue], values, declared.LATENESS.buckets)

    def completed(self, ended: Sequence[tuple[EndedAttempt, Completion]]) -> None:
        """Count attempts whose outcome the store has accepted. The hot path: the usual case is handled per batch."""
        success = Outcome.SUCCESS
        by_task: dict[str, list[int]] = {}
        others: list[tuple[str, Completion]] = []
        last, values = None, list[int]()
        for attempt, completion in ended:
            task = attempt.held.task
            if task != last:
                last = task
                values = by_task.setdefault(self._tasks[task], [])
            values.append(attempt.ended_at - attempt.came_at)
            if completion.outcome is not success:
                others.append((self._tasks[task], completion))
        succeeded = {task: len(took) for task, took in by_task.items()}
        for task, completion in others:
            succeeded[task] -= 1
            self._count_other(task, completion)
        for task, count in succeeded.items():
            if count:
                self._attempts[task, success.value] += count
                self._ended[task, RunState.SUCCEEDED.value] += count
        for task, took in by_task.items():
            _add(self._durations, task, took, declared.DURATION.buckets)
        if self._by_tenant:
            for attempt, completion in ended:
                self._tenant_attempts[self._tenants[attempt.held.tenant], completion.outcome.value] += 1

    def reaped(self, why: str, completed: Iterable[tuple[HeldRun, Completion]]) -> None:
        """Count attempts that were ended by the reaper: their duration is unknown."""
        count = 0
        for held, completion in completed:
            count += 1
            self._count_other(self._tasks[held.task], completion)
        self._reaped[(why,)] += count

    def expired(self, runs: int) -> None:
        if runs:
            self._reaped[("expired",)] += runs

    def unattempted(self, ended: Iterable[UnattemptedRuns]) -> None:
        """Count runs that ended without an attempt, in any process."""
        for one in ended:
            self._ended[self._tasks[one.task], one.state.value] += one.runs

    def fire(self, fires: Iterable[Fire], now: Micros) -> None:
        """Count recurring jobs whose ticks the store has accepted; ``now`` is the store's time."""
        late = []
        for fire in fires:
            self.fired += len(fire.ticks)
            if fire.job.next_fire is not None:
                late.append(max(now - fire.job.next_fire, 0))
        self._fire_lateness.add_all(late)

    def slo_changed(self, event: str) -> None:
        """Count a change of an SLO by the name of its event."""
        self._slo_changes[(event.rpartition("_")[2],)] += 1

    def export(self, exposition: "Exposition") -> None:
        exposition.counts(declared.SUBMITTED, self._submitted)
        exposition.put(declared.DUPLICATES, self.known)
        exposition.spreads(declared.CALL_SECONDS, self._call_seconds)
        exposition.spreads(declared.CALL_RUNS, self._call_runs)
        exposition.counts(declared.CALL_FAILURES, self._failures)
        exposition.counts(declared.ATTEMPTS, self._attempts)
        exposition.counts(declared.ENDED, self._ended)
        exposition.counts(declared.RETRIES, self._retries)
        exposition.put(declared.STALE, self.fenced)
        exposition.spreads(declared.LATENESS, self._lateness)
        exposition.spreads(declared.DURATION, self._durations)
        if self._by_tenant:
            exposition.counts(declared.TENANT_SUBMITTED, self._tenant_submitted)
            exposition.counts(declared.TENANT_ATTEMPTS, self._tenant_attempts)
        if self.schedules:
            self._tell_of_scheduling(exposition)

    def _tell_of_scheduling(self, exposition: "Exposition") -> None:
        exposition.put(declared.STAGED, self.staged)
        exposition.put(declared.FIRED, self.fired)
        exposition.spread(declared.FIRE_LATENESS, self._fire_lateness)
        exposition.counts(declared.REAPED, self._reaped)
        exposition.counts(declared.SLO_CHANGES, self._slo_changes)

    def _count_other(self, task: str, completion: Completion) -> None:
        self._attempts[task, completion.outcome.value] += 1
        if completion.state.ended:
            self._ended[task, completion.state.value] += 1
        elif completion.outcome in _TRIED_AGAIN:
            self._retries[(task,)] += 1


def _add(spreads: dict[str, Histogram], label: str, values: list[int], bounds: Sequence[float]) -> None:
    spread = spreads.get(label)
    if spread is None:
        spread = spreads[label] = Histogram(bounds, SECOND)
    spread.add_all(values)
