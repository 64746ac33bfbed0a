"""Moves runs between the indexes of their states."""

from collections.abc import Mapping

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.cluster.datacenters import find_preference
from mainspring.core.model.limits.limits import Ending
from mainspring.core.model.runs.rank import compute_rank
from mainspring.core.model.runs.run import RunState
from mainspring.core.ports.storage.datacenters import PreferenceOrder
from mainspring.core.rules import limits
from mainspring.core.rules.driving import run_at_once
from mainspring.stores.memory.rows import KeyLock, RunRow
from mainspring.stores.memory.transitions.events import EventTransitions
from mainspring.stores.memory.transitions.queues import QueueRules
from mainspring.stores.memory.work.limiters import MemoryLimiterRows


class RunPlacement(EventTransitions, QueueRules):
    """Puts a run where its due time, its ordering key and its limits allow: scheduled, blocked or queued."""

    def promote(self, key: int) -> bool:
        """Give a free key lock to the first waiting run; report whether there was one."""
        lock = self.key_locks[key]
        if lock.holder is not None:
            return False
        if not lock.line.entries:
            del self.key_locks[key]
            return False
        run = self.runs[RunId(lock.line.entries[0][1])]
        self._leave_index(run)
        lock.holder = run.id
        run.ready_at = self.now
        if self._queue_or_limit(run, self.compute_rank(run)):
            self.record_run_event("run.queued", run)
        return True

    def compute_rank(self, run: RunRow) -> int:
        """Return the rank of a run that becomes eligible in this transaction."""
        return compute_rank(self.now, run.priority, late=run.late or run.attempt > 0)

    def _admit_or_schedule(self, run: RunRow) -> None:
        """Admit a run that is due, or schedule it. It waits only for its time, its ordering key and its limits."""
        if run.due <= self.now:
            self._admit(run)
        else:
            self._schedule(run, run.due)

    def _admit(self, run: RunRow) -> None:
        """Queue a run that is due, or block it by its ordering key or its limits."""
        if run.key_lock is not None:
            lock = self.key_locks.setdefault(run.key_lock, KeyLock())
            if lock.holder is None and not lock.line.entries:
                lock.holder = run.id
            elif lock.holder != run.id:
                self._block(run)
                lock.line.add(run.due, run.id)
                return
        kept = self._kept_ranks.get(run.id)
        self._arrived.add(run.id)
        if self._queue_or_limit(run, self.compute_rank(run) if kept is None else kept[0]):
            if kept is not None:
                run.queued_at = kept[1]
            if run.id not in self._kept_ranks:
                self.record_run_event("run.queued", run)

    def _queue_or_limit(self, run: RunRow, rank: int) -> bool:
        """Queue the run, or block it until its limiters are checked. Report whether it was queued."""
        if run.limits:
            self._block(run)
            self.limiters.enqueue(run)
            return False
        self._queue(run, rank)
        return True

    def admit_runs(self) -> list[RunRow]:
        """Apply the releases of this transaction, and queue the runs that their limiters admit now."""
        releases, arriving, left = self.limiters.take_changes()
        if not releases and not arriving and not left:
            return []
        rows = self._get_limiter_rows()
        run_at_once(limits.admit(rows, releases=releases, arriving=arriving, left=left))
        return rows.queued

    def check_limiters(self, kinds: Mapping[int, int], most_recalled: int = limits.MOST_RECALLED) -> MemoryLimiterRows:
        """Check limiters that time may have given room, and continue recalls."""
        rows = self._get_limiter_rows()
        if kinds:
            run_at_once(limits.check(rows, kinds, most_recalled))
        return rows

    def repair_limiters(self) -> int:
        """Recount the limiters; return how many counts were wrong and how many runs were queued."""
        suspects = self.limiters.find_suspects(self.now)
        rows = self._get_limiter_rows()
        return run_at_once(limits.repair(rows, suspects)).corrected + len(rows.queued) if suspects else 0

    def _get_limiter_rows(self) -> MemoryLimiterRows:
        return MemoryLimiterRows(self.limiters, self.now, self._queue_admitted, self._recall)

    def _queue_admitted(self, run: RunRow) -> None:
        kept = self._kept_ranks.get(run.id)
        self._queue(run, self.compute_rank(run) if kept is None else kept[0])
        if kept is not None:
            run.queued_at = kept[1]
        if run.id not in self._arrived:
            run.ready_at = self.now
        if run.id not in self._kept_ranks:
            self.record_run_event("run.queued", run)

    def _recall(self, run: RunRow) -> None:
        self._leave_index(run)
        self._block(run)

    def _queue(self, run: RunRow, rank: int) -> None:
        run.state = RunState.QUEUED
        run.rank = rank
        run.queued_at = self.now
        self.ready[run.queue][run.label_set].add(rank, run.id)
        if run.policy.requires:
            self._add_preference(run.policy.requires)
        if run.policy.weight > 1:
            self.weighted.add(run.queue)

    def _add_preference(self, requires: tuple[str, ...]) -> None:
        preference = find_preference(requires)
        if preference is not None and preference.word not in self.preferences:
            self.preferences[preference.word] = PreferenceOrder(
                word=preference.word, serving=preference.order[0], since=self.now
            )

    def _block(self, run: RunRow) -> None:
        run.state = RunState.BLOCKED

    def _schedule(self, run: RunRow, due: Instant) -> None:
        run.state = RunState.SCHEDULED
        run.due = due
        self.scheduled[run.shard].add(due, run.id)

    def _leave_index(self, run: RunRow) -> None:
        """Remove the run from the index of its state."""
        match run.state:
            case RunState.SCHEDULED:
                self.scheduled[run.shard].remove(run.due, run.id)
            case RunState.BLOCKED if run.blocked_by is not None:
                self.limiters.dequeue(run)
            case RunState.BLOCKED if run.waits_for_parents:
                run.waits_for_parents = False
                del self.dependencies.waiting[run.id]
            case RunState.BLOCKED:
                assert run.key_lock is not None
                self.key_locks[run.key_lock].line.remove(run.due, run.id)
            case RunState.QUEUED:
                label_sets = self.ready[run.queue]
                label_sets[run.label_set].remove(run.rank, run.id)
                if not label_sets[run.label_set]:
                    del label_sets[run.label_set]
            case RunState.RUNNING:
                assert run.session is not None
                self.running_by_session[run.session].pop(run.id, None)
                self.running_by_tenant[run.tenant] -= 1
                run.session = None
            case _:
                raise AssertionError(f"{run.id} has ended")

    def _release_limiters(self, run: RunRow, ending: Ending) -> None:
        if run.holds_limits:
            self.limiters.release(run, ending)

    def _index_time_limits(self, run: RunRow, *, add: bool = True) -> None:
        for index, limit in ((self.start_bys, run.start_by), (self.deadlines, run.deadline)):
            if limit is not None:
                (index.add if add else index.remove)(limit, run.id)
