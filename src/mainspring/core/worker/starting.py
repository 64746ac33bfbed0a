"""Starts the attempts that do not run directly on the worker's event loop, and releases runs of unknown tasks."""

from structlog.typing import FilteringBoundLogger

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import MINUTE, Micros
from mainspring.core.model.runs.obstacles import suggest_task
from mainspring.core.model.runs.run import UNKNOWN_TASK_DELAY
from mainspring.core.ports.clock import Clock
from mainspring.core.worker.attempt import Attempt
from mainspring.core.worker.cancellation import Cancellation
from mainspring.core.worker.executors.loop import LoopExecutor
from mainspring.core.worker.executors.sync_executors import SyncExecutors
from mainspring.core.worker.handler import AsyncHandler, Handler
from mainspring.core.worker.outcomes import Outcomes
from mainspring.core.worker.reporting.trace import describe

#: Runs of an unknown task that a warning counts at most.
_MOST_COUNTED = 10_000


class _UnknownTask:
    """The runs of a task without a handler that came since its last warning."""

    def __init__(self, next_warning: Micros) -> None:
        self.next_warning = next_warning
        self.runs: set[RunId] = set()


class AttemptStarter:
    """Chooses where an attempt runs: on the event loop, in a thread of a child process, or alone in a child process."""

    def __init__(
        self,
        clock: Clock,
        log: FilteringBoundLogger,
        outcomes: Outcomes,
        cancellation: Cancellation,
        loop: LoopExecutor,
        sync_executors: SyncExecutors,
    ) -> None:
        self.handlers: dict[str, Handler] = {}
        self._clock = clock
        self._log = log
        self._outcomes = outcomes
        self._cancellation = cancellation
        self._loop = loop
        self._sync_executors = sync_executors
        self._unknown: dict[str, _UnknownTask] = {}

    def start(self, attempt: Attempt, *, halted: bool) -> None:
        """Start an attempt, or release its run. ``halted``: the worker is leaving."""
        handler = self.handlers.get(attempt.held.task)
        try:
            if halted:
                self._outcomes.released(attempt, "the worker left")
            elif handler is None:
                self.release_unknown(attempt)
            else:
                self._start_known(attempt, handler)
        except Exception as error:
            self._log.exception("cannot start an attempt", run=attempt.held.id, task=attempt.held.task)
            self._outcomes.failed(attempt, describe(error))

    def _start_known(self, attempt: Attempt, handler: Handler) -> None:
        if handler.heartbeat is not None:
            self._cancellation.expect_life(attempt, handler.heartbeat)
        if attempt.held.alone and self._sync_executors.source is not None and not _harmless(handler):
            self._sync_executors.start_alone(attempt)
        elif isinstance(handler, AsyncHandler):
            self._cancellation.watch(attempt.until)
            self._loop.start(attempt, handler.invoke)
        else:
            self._sync_executors.start(attempt, handler)

    def release_unknown(self, attempt: Attempt) -> None:
        """Release a run without a handler: another worker, perhaps a newer version, may know the task."""
        task, now = attempt.held.task, self._clock.monotonic()
        unknown = self._unknown.get(task)
        if unknown is None:
            if len(self._unknown) > 1_000:
                self._unknown.clear()
            self._unknown[task] = _UnknownTask(now + MINUTE)
            self._log.warning(
                "no handler for task, run released",
                task=task,
                run=attempt.held.id,
                hint=suggest_task(task, self.handlers),
            )
        else:
            if len(unknown.runs) < _MOST_COUNTED:
                unknown.runs.add(attempt.held.id)
            if now >= unknown.next_warning:
                # A run comes back every few seconds: each counts once.
                self._log.warning("no handler for task, run released", task=task, runs=len(unknown.runs), within="1m")
                self._unknown[task] = _UnknownTask(now + MINUTE)
        self._outcomes.released(attempt, f"no handler for task {task!r}", UNKNOWN_TASK_DELAY, reported=True)


def _harmless(handler: Handler) -> bool:
    return isinstance(handler, AsyncHandler) and handler.harmless
