"""The tables of a memory store, and its transactions."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.runs.run import RunState
from mainspring.core.ports.wakeups import queue_topic
from mainspring.stores.memory.transitions.runs import RunTransitions


class Tables(RunTransitions):
    """The rows of a memory store with all their transitions."""

    @contextmanager
    def transaction(self) -> Iterator[Instant]:
        """Run a transaction at one point in time; its events are written at its end.

        It never awaits, so transactions cannot interleave.
        """
        # The store's time never goes back, even if its clock does.
        self.now = max(self.now, self._clock.now())
        self._run_events.clear()
        self._job_events.clear()
        self._kept_ranks.clear()
        self._arrived.clear()
        yield self.now
        self.admit_runs()
        if self.wakeups is not None and self._queues_with_work:
            self.wakeups.notify([queue_topic(queue) for queue in self._queues_with_work])
        self._queues_with_work.clear()
        self.write_events()

    def next_change(self) -> Instant | None:
        """Return the earliest time at which a scheduler pass has work to do even if nothing else changes."""
        moments = [index.entries[0][0] for index in (*self.scheduled, *self.due_jobs, self.slo_checks) if index.entries]
        room = self.limiters.find_next_wake_up()
        if room is not None:
            moments.append(room)
        if self.dependencies.ended:
            moments.append(self.now)
        limited = ((limit, self.runs[RunId(row)]) for limit, row in self.start_bys.entries)
        moments += islice((limit + 1 for limit, run in limited if run.attempt == 0), 1)
        limited = ((limit, self.runs[RunId(row)]) for limit, row in self.deadlines.entries)
        moments += islice((limit for limit, run in limited if run.state is not RunState.RUNNING), 1)
        for session, runs in self.running_by_session.items():
            if runs:
                row = self.sessions[session]
                moments.append(row.lease_until if row.live else self.now)
                for run in map(self.runs.__getitem__, runs):
                    moments.append(run.attempt_until if run.cancel_at is None else run.cancel_at)
        return min(moments, default=None)
