"""Runs sync handlers on plain threads of the worker, for code that stops when it is asked to."""

import asyncio
import threading

from mainspring.core.runtime.masking import masks
from mainspring.core.worker.attempt import Attempt
from mainspring.core.worker.executors.cpu import read_thread
from mainspring.core.worker.executors.interruption import Call, Ending
from mainspring.core.worker.handler import SyncHandler
from mainspring.core.worker.outcomes import Outcomes
from mainspring.core.worker.reporting.attempt_reporter import AttemptReporter, ReportListener, current


class ThreadExecutor:
    """Starts a thread per attempt. A thread cannot be killed: one that does not stop keeps its slot until it ends."""

    def __init__(self, outcomes: Outcomes, listener: ReportListener[Attempt]) -> None:
        self._outcomes = outcomes
        self._listener = listener
        self._calls: dict[Attempt, Call] = {}

    def start(self, attempt: Attempt, handler: SyncHandler) -> None:
        attempt.executor = self
        attempt.begun = True
        attempt.reporter = AttemptReporter(attempt, self._listener, tenant=attempt.held.tenant)
        call = self._calls[attempt] = Call()
        thread = threading.Thread(
            target=self._run,
            args=(asyncio.get_running_loop(), attempt, call, handler),
            name=f"mainspring {handler.task}",
            daemon=True,
        )
        thread.start()

    def stop(self, attempt: Attempt) -> None:
        call = self._calls.get(attempt)
        if call is not None:
            call.interrupt()

    def kill(self, attempt: Attempt) -> None:
        self.stop(attempt)

    def _run(self, loop: asyncio.AbstractEventLoop, attempt: Attempt, call: Call, handler: SyncHandler) -> None:
        # A thread starts without context variables; these are its own.
        current.set(attempt.reporter)
        before = read_thread()
        ending = call.run(lambda: handler.invoke(attempt.held))
        if attempt.reporter is not None:
            attempt.reporter.used_cpu(read_thread() - before)
        try:
            loop.call_soon_threadsafe(self._ended, attempt, ending)
        except RuntimeError:
            # The loop is closed: the worker has left, and has released the run.
            return

    def _ended(self, attempt: Attempt, ending: Ending) -> None:
        del self._calls[attempt]
        result, error, cause = ending
        if error is None:
            if result and masks.any:
                result = masks.json(attempt.held.tenant, result)
            self._outcomes.succeeded(attempt, result)
        else:
            self._outcomes.failed(attempt, error, cause)
