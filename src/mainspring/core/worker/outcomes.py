"""Turns the end of an attempt into the outcome that is reported to the store."""

from collections.abc import Callable
from random import Random
from typing import assert_never

import msgspec

from mainspring.core.model.base.instant import Instant, Micros, format_duration
from mainspring.core.model.runs.cause import FINAL, UNKNOWN, Cause
from mainspring.core.model.runs.completion import (
    Completion,
    complete_cancel,
    complete_failure,
    complete_loss,
    complete_release,
    complete_success,
)
from mainspring.core.model.runs.run import Outcome
from mainspring.core.ports.clock import Clock
from mainspring.core.worker.attempt import Attempt, Stop
from mainspring.core.worker.completer import Completer
from mainspring.core.worker.executors.results import result_problem
from mainspring.core.worker.handler import COMPLETED_BY_HANDLER
from mainspring.core.worker.reporting.attempt_log import AttemptLog
from mainspring.core.worker.reporting.reporter import Reporter
from mainspring.core.worker.slots import Slots


class Outcomes:
    """Called by executors when user code has really ended: frees the slot and passes the outcome on."""

    def __init__(
        self,
        clock: Clock,
        jitter: Random,
        slots: Slots,
        completer: Completer,
        reporter: Reporter,
        none_left: Callable[[], None],
        log: AttemptLog | None = None,
    ) -> None:
        #: Attempts that occupy a slot, in the order of their claims: a simulation must be reproducible.
        self.running: dict[Attempt, None] = {}
        #: The number of ended attempts by outcome, since the start.
        self.counts = dict.fromkeys(Outcome, 0)
        self._clock = clock
        self._jitter = jitter
        self._slots = slots
        self._completer = completer
        self._reporter = reporter
        self._none_left = none_left
        self._log = log

    @property
    def unflushed(self) -> int:
        """The number of outcomes that the store has not received."""
        return self._completer.unflushed + self._reporter.unflushed

    @property
    def failing_since(self) -> Micros | None:
        """Since when outcomes or reports could not be flushed. Read by the heartbeat's thread."""
        since = (self._completer.failing_since, self._reporter.failing_since)
        return min((moment for moment in since if moment is not None), default=None)

    def reset_failure_timer(self) -> None:
        """Failures before a new lease are no reason to abandon that lease."""
        self._completer.reset_failure_timer()
        self._reporter.reset_failure_timer()

    def drop_unflushed(self) -> None:
        """Drop all outcomes and reports that the store has not received."""
        self._reporter.drop()
        self._completer.drop()

    def forget(self, attempt: Attempt) -> None:
        """Drop the outcome of an attempt whose run another worker has."""
        self._completer.forget(attempt)

    def succeeded(self, attempt: Attempt, result: bytes | None) -> None:
        """The attempt returned. That counts even if it was asked to stop: the work is done."""
        if result == COMPLETED_BY_HANDLER:
            self._end(attempt, complete_success(attempt.held, None), completed=True)
        elif result is not None and (problem := result_problem(result)) is not None:
            attempt.stop = None
            # The work was done: another attempt would only repeat it.
            self.failed(attempt, problem, FINAL)
        else:
            self._end(attempt, complete_success(attempt.held, result))

    def failed(self, attempt: Attempt, error: str, cause: Cause = UNKNOWN) -> None:
        """The attempt raised an error, or stopped on request."""
        match attempt.stop:
            case None:
                completion = complete_failure(
                    attempt.held, error, self._jitter, now=self._store_time(attempt), cause=cause
                )
            case Stop.TIMEOUT:
                reason = f"TimeoutError: it may take {format_duration(attempt.duration)} and took longer"
                completion = complete_failure(
                    attempt.held, f"{error}\n{reason}", self._jitter, now=self._store_time(attempt), timed_out=True
                )
            case Stop.SILENT:
                completion = complete_failure(
                    attempt.held,
                    f"{error}\nTimeoutError: it has shown no life for longer than its task allows",
                    self._jitter,
                    now=self._store_time(attempt),
                    timed_out=True,
                    reason=Stop.SILENT.value,
                )
            case Stop.CANCEL:
                completion = complete_cancel(attempt.held)
            case Stop.RELEASE | Stop.FENCED:
                completion = self._give_back(attempt, "the worker left")
            case _:
                assert_never(attempt.stop)
        self._end(attempt, completion)

    def lost(self, attempt: Attempt, *, blamed: bool, how: str) -> None:
        """The attempt's process died by itself. ``how``: the exit code or signal."""
        self._end(attempt, complete_loss(attempt.held, blamed=blamed, how=how))

    def released(self, attempt: Attempt, reason: str, delay: Micros = 0, *, reported: bool = False) -> None:
        """The attempt stopped, or never began, through no fault of its own.

        ``reported``: a warning covers it, so its own log line is for debugging only.
        """
        self._end(attempt, self._give_back(attempt, reason, delay), reported=reported)

    def drop(self, attempt: Attempt) -> None:
        """Report nothing about the attempt, however it ends; its slot stays taken until it does."""
        attempt.dropped = True

    def _end(
        self, attempt: Attempt, completion: Completion, *, completed: bool = False, reported: bool = False
    ) -> None:
        running = self.running
        running.pop(attempt, None)
        attempt.task = None
        attempt.ended_at = self._clock.monotonic()
        self._slots.give(attempt.group, attempt.held.policy.weight)
        self.counts[completion.outcome] += 1
        log = self._log
        if log is not None and (log.every_attempt or completion.outcome is not Outcome.SUCCESS):
            log.ended(attempt, completion, reported=reported)
        if completed:
            # Also for a dropped attempt: the store has accepted it, even if the lease was lost.
            self._completer.was_completed(attempt, completion)
        elif not attempt.dropped:
            reporter = attempt.reporter
            if reporter is not None and reporter.costs:
                completion = msgspec.structs.replace(completion, spent=reporter.spent())
            if reporter is not None and reporter.ever and reporter.close():
                self._reporter.complete_after(attempt, completion)
            else:
                # They reference each other: unlinked, they need no garbage collection.
                attempt.reporter = None
                self._completer.add(attempt, completion)
        if not running:
            self._none_left()

    def _give_back(self, attempt: Attempt, reason: str, delay: Micros = 0) -> Completion:
        held = attempt.held
        if attempt.begun and held.policy.guarantee == "at-most-once":
            error = f"stopped before it ended ({reason}); at-most-once is never repeated"
            return complete_failure(held, error, self._jitter, now=self._store_time(attempt))
        return complete_release(held, reason, delay)

    def _store_time(self, attempt: Attempt) -> Instant:
        """Return the store's time as far as this worker knows it: deadlines refer to that clock."""
        return attempt.held.started_at + self._clock.monotonic() - attempt.came_at
