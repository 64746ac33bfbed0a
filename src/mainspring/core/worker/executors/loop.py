"""Runs async handlers on the worker's own event loop, one task each."""

import asyncio
from collections.abc import Callable, Coroutine

from mainspring.core.model.runs.cause import build_cause
from mainspring.core.model.runs.handler_errors import Snooze
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.runtime.masking import masks
from mainspring.core.worker.attempt import Attempt
from mainspring.core.worker.outcomes import Outcomes
from mainspring.core.worker.reporting.attempt_reporter import AttemptReporter, ReportListener, current
from mainspring.core.worker.reporting.trace import describe


class LoopExecutor:
    """Creates one task per attempt, which provides its context variables and a handle for cancellation."""

    def __init__(self, outcomes: Outcomes, listener: ReportListener[Attempt]) -> None:
        self._outcomes = outcomes
        self._listener = listener

    def start(self, attempt: Attempt, invoke: Callable[[HeldRun], Coroutine[None, None, bytes | None]]) -> None:
        attempt.executor = self
        # A blocked event loop is reported with the name of the task.
        attempt.task = asyncio.get_running_loop().create_task(self._attend(attempt, invoke), name=attempt.held.task)

    def stop(self, attempt: Attempt) -> None:
        """Cancel its task: the handler may catch that and clean up."""
        # A cancelled task that has not begun would never run this code; it checks ``stop`` itself when it begins.
        if attempt.begun and attempt.task is not None:
            attempt.task.cancel()

    def kill(self, attempt: Attempt) -> None:
        """Cancel it again: there is no stronger means."""
        self.stop(attempt)

    async def _attend(self, attempt: Attempt, invoke: Callable[[HeldRun], Coroutine[None, None, bytes | None]]) -> None:
        if attempt.stop is not None:
            self._outcomes.failed(attempt, "stopped before it began")
            return
        attempt.begun = True
        attempt.reporter = reporter = AttemptReporter(attempt, self._listener, tenant=attempt.held.tenant)
        current.set(reporter)
        try:
            result = await invoke(attempt.held)
        except Snooze as wait:
            # Its work so far may be repeated, even for at-most-once runs.
            attempt.begun = False
            self._outcomes.released(attempt, str(wait), wait.delay)
        except BaseException as error:
            # Every exception of user code is its own failure: passed on, it would end the worker or be lost.
            self._outcomes.failed(attempt, describe(error), build_cause(error))
        else:
            if result and masks.any:
                result = masks.json(attempt.held.tenant, result)
            self._outcomes.succeeded(attempt, result)
