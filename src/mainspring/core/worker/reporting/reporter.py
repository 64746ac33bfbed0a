"""Sends the reports of attempts to the store: in batches, at most every 250 ms, and before their outcomes."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.model.runs.completion import Completion
from mainspring.core.ports.storage.catalog import Checkpoint, LogReport, ProgressReport
from mainspring.core.runtime.backoff import Backoff, jitter
from mainspring.core.runtime.log import get_logger
from mainspring.core.worker.attempt import Attempt
from mainspring.core.worker.reporting.attempt_reporter import AttemptReporter, current
from mainspring.core.worker.runtime import WorkerRuntime

EVERY: Micros = 250 * MILLISECOND
_FIRST_PAUSE: Micros = 50 * MILLISECOND
_LONGEST_PAUSE: Micros = 2 * SECOND
#: One flush takes about this much text.
_LARGEST = 2 * 1024 * 1024

_log = get_logger("mainspring.reporter")


class Reporter:
    """Batches and sends reports. No task runs while there is nothing to report.

    Only one flush runs at a time. It is retried until the store has accepted it, as outcomes are: an outcome must not
    overtake the checkpoint that belongs to it. If an answer is lost, reports may be stored twice, which shows only in
    logs.
    """

    def __init__(
        self,
        runtime: WorkerRuntime,
        complete: Callable[[Attempt, Completion], None],
    ) -> None:
        self.captures = runtime.settings.capture_logs
        self._store = runtime.store
        self._clock = runtime.clock
        self._wakeup = runtime.wakeups.listen(())
        self._jitter = runtime.jitter
        self._timeout = runtime.settings.lease / SECOND
        self._most = runtime.settings.largest_completion
        self._complete = complete
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._waiting: dict[AttemptReporter[Attempt], None] = {}
        #: Outcomes that are held back until the last reports of their attempts have arrived.
        self._ended: list[tuple[Attempt, Completion]] = []
        #: Callers that wait until the reports of an attempt have arrived.
        self._listeners: list[tuple[AttemptReporter[Attempt], asyncio.Future[None]]] = []
        self._pumping: asyncio.Task[None] | None = None
        #: This object cancelled the flush; reports that came since are still to be sent.
        self._dropping = False
        self._flushed_at: Micros = -EVERY
        self.failing_since: Micros | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    @property
    def unflushed(self) -> int:
        """The number of outcomes held back here."""
        return len(self._ended)

    def wake(self, reporter: AttemptReporter[Attempt]) -> None:
        """Schedule the reports of an attempt. May be called from any thread."""
        if threading.get_ident() == self._thread:
            self._add(reporter)
        elif self._loop is not None:
            with suppress(RuntimeError):  # The loop is closed: the worker has left.
                self._loop.call_soon_threadsafe(self._add, reporter)

    async def flush(self, reporter: AttemptReporter[Attempt]) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listeners.append((reporter, waiter))
        self._wakeup.notify()
        self._pump()
        await waiter

    def complete_after(self, attempt: Attempt, completion: Completion) -> None:
        """Pass an outcome on once the store has the reports of its attempt."""
        self._ended.append((attempt, completion))
        self._wakeup.notify()
        self._pump()

    def reset_failure_timer(self) -> None:
        """Reset the failure timer: failures before the new lease are no reason to abandon that lease."""
        if self.failing_since is not None:
            self.failing_since = self._clock.monotonic()

    def drop(self) -> None:
        """Drop everything that the store has not received."""
        self._waiting.clear()
        self._ended.clear()
        for _, waiter in self._listeners:
            waiter.cancel()
        self._listeners.clear()
        self.failing_since = None
        if self._pumping is not None:
            self._dropping = True
            self._pumping.cancel()

    async def close(self) -> None:
        self.drop()
        if self._pumping is not None:
            await asyncio.gather(self._pumping, return_exceptions=True)

    def _add(self, reporter: AttemptReporter[Attempt]) -> None:
        self._waiting[reporter] = None
        self._pump()

    def _pump(self) -> None:
        if self._pumping is None:
            self._pumping = asyncio.create_task(self._flush_all(), name="reports")
            self._pumping.add_done_callback(self._stopped)

    def _stopped(self, task: asyncio.Task[None]) -> None:
        self._pumping = None
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("reporting failed", exc_info=error)
        # If any other code cancelled the task, the event loop is ending.
        if self._has_work and (self._dropping or not task.cancelled()):
            self._pump()
        self._dropping = False

    @property
    def _has_work(self) -> bool:
        return bool(self._waiting or self._ended or self._listeners)

    async def _flush_all(self) -> None:
        # This task starts in the context of the first reporting attempt, but does not belong to it.
        current.set(None)
        while self._has_work:
            left = self._flushed_at + EVERY - self._clock.monotonic()
            if left > 0 and not self._ended and not self._listeners:
                await self._wakeup.wait(left)
            else:
                await self._flush()
                self._flushed_at = self._clock.monotonic()

    async def _flush(self) -> None:
        progress: list[ProgressReport] = []
        lines: list[LogReport] = []
        checkpoints: list[Checkpoint] = []
        taken: list[AttemptReporter[Attempt]] = []
        # Attempts that have ended go first: their outcomes are held back.
        urgent = [attempt.reporter for attempt, _ in self._ended] + [reporter for reporter, _ in self._listeners]
        order = dict.fromkeys([*(one for one in urgent if one in self._waiting), *self._waiting])
        size = 0
        for reporter in order:
            if reporter is None or len(taken) >= self._most or size >= _LARGEST:
                break
            del self._waiting[reporter]
            reporter.undelivered = True
            taken.append(reporter)
            batch = reporter.take()
            held = reporter.owner.held
            if reporter.owner.dropped:
                continue
            if batch.progress is not None:
                done, total, note = batch.progress
                progress.append(ProgressReport(run=held.id, fence=held.fence, done=done, total=total, note=note))
            if batch.state is not None:
                checkpoints.append(Checkpoint(run=held.id, fence=held.fence, state=batch.state))
                size += len(batch.state)
            for piece in batch.log:
                lines.append(LogReport(run=held.id, fence=held.fence, text=piece))
                size += len(piece)
        if checkpoints:
            await self._until_heard(lambda: self._store.save_checkpoints(checkpoints))
        if progress:
            await self._until_heard(lambda: self._store.report_progress(progress))
        if lines:
            await self._until_heard(lambda: self._store.append_log(lines))
        for reporter in taken:
            reporter.undelivered = False
        ended, self._ended = self._ended, []
        for attempt, completion in ended:
            if _all_heard(attempt.reporter):
                attempt.reporter = None
                self._complete(attempt, completion)
            else:
                self._ended.append((attempt, completion))
        listeners, self._listeners = self._listeners, []
        for listened, waiter in listeners:
            if not _all_heard(listened):
                self._listeners.append((listened, waiter))
            elif not waiter.done():
                waiter.set_result(None)

    async def _until_heard(self, send: Callable[[], Awaitable[list[bool]]]) -> None:
        """Send reports until the store has answered.

        If the store rejects a report by its fence, another worker has the run by now; the answer to the outcome will
        say so.
        """
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        try:
            while True:
                pause = backoff.next()
                try:
                    async with asyncio.timeout(self._timeout):
                        await send()
                        return
                except (StoreUnavailable, TimeoutError) as error:
                    _log.warning("cannot report", error=str(error), again_in_ms=pause // MILLISECOND)
                except Exception:
                    # The store would reject them again. The reports are lost; the outcome is not.
                    _log.exception("reports rejected")
                    return
                if self.failing_since is None:
                    self.failing_since = self._clock.monotonic()
                await self._clock.sleep(jitter(pause, self._jitter))
        finally:
            self.failing_since = None


def _all_heard(reporter: AttemptReporter[Attempt] | None) -> bool:
    return reporter is None or not (reporter.waiting or reporter.undelivered)
