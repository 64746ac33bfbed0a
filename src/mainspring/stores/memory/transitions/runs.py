"""The transitions of runs."""

from collections import deque
from collections.abc import Collection, Iterable

from mainspring.core.model.base.ids import RunId, SessionId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.limits.limits import Ending
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.rank import HEAD_START, IDLE, compute_rank
from mainspring.core.model.runs.restored import KnownOutcome
from mainspring.core.model.runs.retention import STANDARD
from mainspring.core.model.runs.run import RunState
from mainspring.stores.key_locks import compute_run_key_lock
from mainspring.stores.memory.rows import RunRow
from mainspring.stores.memory.transitions.keys import KeyTransitions
from mainspring.stores.memory.transitions.metrics import MetricTransitions
from mainspring.stores.memory.transitions.placement import RunPlacement
from mainspring.stores.memory.transitions.schedules import ScheduleTransitions


class RunTransitions(RunPlacement, KeyTransitions, MetricTransitions, ScheduleTransitions):
    """Every transition of a run, from its submission to the end of its retention."""

    def insert_run(self, run: RunRow) -> None:
        """Add a new run: queued or blocked if it is due, scheduled if its time is ahead."""
        self.runs[run.id] = run
        if run.job_id is not None:
            self.active_by_job[run.job_id][run.id] = None
        if run.target is not None:
            self.by_target[run.target][run.id] = None
        self.record_run_event("run.submitted", run)
        self._kept_ranks[run.id] = None
        if run.rule is not None:
            self._block(run)
            run.waits_for_parents = True
            self.dependencies.waiting[run.id] = None
            self.decide_child(run.id, new=True)
        else:
            self._index_time_limits(run)
            self._admit_or_schedule(run)

    def decide_child(self, child: RunId, *, new: bool = False) -> None:
        """Decide a run whose parents have ended: release it, skip it, or keep it blocked.

        ``new``: the run was just submitted, so no ``dependency.resolved`` is emitted.
        """
        run = self.runs.get(child)
        if run is None or not run.waits_for_parents:
            return
        what, why = self.dependencies.decide(run)
        if what == "skip":
            self.end(run, RunState.SKIPPED, why)
        elif what == "go":
            self._leave_index(run)
            if not new:
                self.record_run_event("dependency.resolved", run)
            run.due = max(run.due, self.now)
            run.set_time_limits()
            self._index_time_limits(run)
            self._admit_or_schedule(run)

    def decide_children(self, limit: int) -> int:
        """Decide up to ``limit`` children of ended runs; return how many were decided."""
        children = self.dependencies.pop_children(limit)
        for child in children:
            self.decide_child(child)
        return len(children)

    def stage(self, run: RunRow) -> None:
        """Admit a scheduled run that has become due."""
        self._leave_index(run)
        self._admit(run)

    def start(self, run: RunRow, session: SessionId, claim: int, fence: int) -> None:
        self._leave_index(run)
        self.limiters.count_start(run, self.now)
        run.state = RunState.RUNNING
        run.attempt += 1
        run.fence = fence
        run.session = run.last_session = session
        run.executor = self.sessions[session].name
        run.claim = claim
        run.started_at = self.now
        run.attempt_until = self.now + run.policy.timeout
        if run.deadline is not None:
            run.attempt_until = min(run.attempt_until, run.deadline)
        self.running_by_session[session][run.id] = None
        self.running_by_tenant[run.tenant] += 1
        self.record_run_event("run.started", run)

    def schedule_retry(self, run: RunRow, due: Instant, kind: str, ending: Ending) -> None:
        """Schedule the next attempt after a backoff. The run keeps its ordering key."""
        self._release_limiters(run, ending)
        self._leave_index(run)
        run.ready_at = 0
        self._schedule(run, due)
        self.record_run_event(kind, run)

    def requeue(self, run: RunRow, rank: int, kind: str, ending: Ending) -> None:
        """Requeue a run for its next attempt at once, if its limits allow it. The run keeps its ordering key."""
        self._release_limiters(run, ending)
        self._leave_index(run)
        self._kept_ranks[run.id] = rank, self.now
        run.ready_at = self.now
        self._queue_or_limit(run, rank)
        self.record_run_event(kind, run)

    def end(
        self,
        run: RunRow,
        state: RunState,
        reason: str,
        *,
        ended_by: int | None = None,
        result: bytes | None = None,
        error: str | None = None,
        fingerprint: str = "",
        ending: Ending = "other",
        ran: bool = True,
    ) -> None:
        """End a run and release its dependents, key and limits.

        ``ran``: if the run is running, this is the end of its attempt.
        """
        self._count_end(run, state, ran=ran)
        self._release_limiters(run, ending)
        self._leave_index(run)
        run.state = state
        run.reason = reason
        run.ended_by = ended_by
        run.result = result
        run.error = error
        run.fingerprint = fingerprint
        run.finished_at = self.now
        self._index_time_limits(run, add=False)
        if run.target is not None:
            self.by_target[run.target].pop(run.id)
            if not self.by_target[run.target]:
                del self.by_target[run.target]
        known = self.tenants.get(run.tenant)
        run.kept_as = run.policy.retention or ("" if known is None else known.quotas.retention) or STANDARD
        self._get_ended_runs(run).append(run.id)
        self.record_run_event(f"run.{state.value}", run)
        if run.job_id is not None:
            self.active_by_job[run.job_id].pop(run.id, None)
            # A job may be purged while one of its runs is still active.
            if run.job_id in self.jobs:
                self._start_fixed_delay(self.jobs[run.job_id], run)
        if run.key_lock is not None:
            lock = self.key_locks.get(run.key_lock)
            if lock is not None and lock.holder == run.id:
                lock.holder = None
                self.promote(run.key_lock)
        self.dependencies.enqueue_children(run)
        if run.unique is not None and run.unique.period is None:
            self._free_unique_key(run)

    def end_as_known(self, run: RunRow, end: KnownOutcome) -> None:
        """End a run whose outcome is known only from elsewhere, so that its start time is unknown."""
        self.end(
            run,
            end.state,
            end.reason,
            ended_by=run.fence if run.state is RunState.RUNNING else None,
            result=end.result,
            error=end.error,
            fingerprint=end.fingerprint,
            ran=False,
        )
        run.started_at = None

    def lower_priority(self, run: RunRow) -> None:
        """Give a queued run the lowest priority, but keep its age."""
        queued_at, rank = run.queued_at, run.rank + (IDLE - run.priority) * HEAD_START
        self._leave_index(run)
        run.priority = IDLE
        self._queue(run, rank)
        run.queued_at = queued_at

    def request_cancel(self, runs: Collection[RunRow]) -> None:
        """Request cancellation of running runs; cancel the runs that have not started at once."""
        for run in sort_blocked_first(runs):
            if run.state.ended:
                continue
            requested_before = run.cancel_at is not None
            if not requested_before:
                run.cancel_at = self.now
            if run.state is not RunState.RUNNING:
                self.end(run, RunState.CANCELLED, "cancelled")
            elif not requested_before:
                self.record_run_event("run.cancel_requested", run)

    def edit(self, run: RunRow, new: NewRun) -> None:
        """Edit a run that was never started: its due time, key, queue, and the position that goes with them.

        A run that stays queued keeps its age. A run that holds its key keeps it as long as it is first in line.
        """
        was, queued_at, old_lock = run.state, run.queued_at, run.key_lock
        held_lock = None if old_lock is None else self.key_locks.get(old_lock)
        if held_lock is not None and held_lock.holder != run.id:
            held_lock = None
        self._release_limiters(run, "other")
        if not run.waits_for_parents:
            self._leave_index(run)
            self._index_time_limits(run, add=False)
        run.task, run.payload, run.policy, run.about = new.task, new.payload, new.policy, new.about
        run.queue, run.priority = new.queue, new.priority
        run.due = new.at if new.at is not None else self.now + new.delay
        run.start_within, run.end_within = new.start_within, new.deadline
        run.key_lock = compute_run_key_lock(run.tenant, run.policy)
        run.limits = run.policy.limiters(run.tenant, run.task)
        if run.waits_for_parents:
            return
        run.set_time_limits()
        self._index_time_limits(run)
        is_due = run.due <= self.now
        first = held_lock is not None and not any(entry < (run.due, run.id) for entry in held_lock.line.entries[:1])
        if held_lock is not None and not (is_due and first and run.key_lock == old_lock):
            held_lock.holder = None
        if not is_due:
            self._schedule(run, run.due)
            run.queued_at, run.ready_at = None, 0
        else:
            if was is RunState.QUEUED:
                assert queued_at is not None
                self._kept_ranks[run.id] = compute_rank(queued_at, run.priority), queued_at
            else:
                run.ready_at = self.now
            run.queued_at = None
            self._admit(run)
        if held_lock is not None and held_lock.holder is None:
            assert old_lock is not None
            self.promote(old_lock)
        # The next edit of a batch must find the run queued, or blocked without its old age.
        self.admit_runs()
        self._kept_ranks.pop(run.id, None)

    def purge_run(self, run: RunRow) -> None:
        """Delete an ended run before its retention is over."""
        self._get_ended_runs(run).remove(run.id)
        self.delete_run(run.id)

    def outlives_tick(self, run: RunId | None) -> bool:
        """Report whether the run exists and is kept longer than its tick has to be."""
        row = None if run is None else self.runs.get(run)
        return row is not None and row.kept_as in ("long", "audit")

    def _get_ended_runs(self, run: RunRow) -> deque[RunId]:
        if run.kept_as != STANDARD:
            return self.ended_by_class[run.kept_as]
        return self.succeeded if run.state is RunState.SUCCEEDED else self.unsuccessful

    def delete_run(self, run: RunId) -> None:
        row = self.runs.pop(run)
        self._free_unique_key(row)
        self.dependencies.forget(run)
        self.attempts.pop(run, None)
        self.logs.pop(run, None)


def sort_blocked_first(runs: Iterable[RunRow]) -> list[RunRow]:
    """Sort runs that end together, blocked ones first: otherwise ending one would queue another that ends next."""
    return sorted(runs, key=lambda run: (run.state is not RunState.BLOCKED, not run.in_line))
