"""Reports the outcomes of attempts to the store, in batches, until the store has accepted them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mainspring.core.model.base.errors import Invalid, StoreUnavailable
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Instant, Micros
from mainspring.core.model.runs.cause import FINAL, UNKNOWN
from mainspring.core.model.runs.completion import Completion, CompletionAnswer, complete_failure
from mainspring.core.model.runs.run import Outcome, RunState
from mainspring.core.ports.storage.answers import PartialCompletion
from mainspring.core.ports.wakeups import SCHEDULES, queue_topic
from mainspring.core.runtime.backoff import Backoff, jitter
from mainspring.core.runtime.log import get_logger
from mainspring.core.worker.attempt import Attempt
from mainspring.core.worker.runtime import WorkerRuntime

if TYPE_CHECKING:
    pass

_FIRST_PAUSE: Micros = 50 * MILLISECOND
_LONGEST_PAUSE: Micros = 2 * SECOND

_log = get_logger("mainspring.completer")


class Completer:
    """Flushes at once when idle, and gathers outcomes while a flush is in progress.

    An outcome is idempotent by its fence, so it is simply sent again if its answer was lost, without a time limit. A
    batch that is rejected as invalid is halved until the invalid outcome is alone, so that its neighbors do not fail
    with it.
    """

    def __init__(
        self,
        runtime: WorkerRuntime,
        progress: Callable[[], None],
    ) -> None:
        self._store = runtime.store
        self._clock = runtime.clock
        self._wakeups = runtime.wakeups
        self._jitter = runtime.jitter
        self._timeout = runtime.settings.lease / SECOND
        self._largest = runtime.settings.largest_completion
        self._most_in_flight = runtime.settings.completions_in_flight
        self._progress = progress
        self._metrics = runtime.metrics
        self._tracing = runtime.tracing
        self._waiting: list[tuple[Attempt, Completion]] = []
        #: The next outcome is to be flushed at once.
        self._idle = True
        self._sending: dict[asyncio.Task[None], None] = {}
        self._in_flight = 0
        self._batches: list[list[tuple[Attempt, Completion]]] = []
        #: Since when each failing batch has been failing.
        self._failing: dict[int, Micros] = {}

    @property
    def unflushed(self) -> int:
        return len(self._waiting) + self._in_flight

    @property
    def failing_since(self) -> Micros | None:
        """Since when a batch could not be flushed. Read by the heartbeat's thread."""
        return min(list(self._failing.values()), default=None)

    def add(self, attempt: Attempt, completion: Completion) -> None:
        self._waiting.append((attempt, completion))
        if self._idle:
            # Flush on the next turn of the loop, together with outcomes that arrive on this one.
            self._idle = False
            asyncio.get_running_loop().call_soon(self._pump)

    def was_completed(self, attempt: Attempt, completion: Completion) -> None:
        """Record that the handler completed the run in its own transaction."""
        self._heard([(attempt, completion)], [CompletionAnswer.ACCEPTED])

    async def close(self) -> None:
        """Stop retrying; unreported runs are found by the reaper."""
        self.drop()
        await asyncio.gather(*self._sending, return_exceptions=True)

    def drop(self) -> None:
        """Drop everything that was not flushed."""
        if self.unflushed:
            _log.warning("unflushed outcomes dropped", runs=self.unflushed)
        self._waiting.clear()
        self._failing.clear()
        for task in self._sending:
            task.cancel()

    def forget(self, attempt: Attempt) -> None:
        """Drop the outcome of an attempt whose run another worker has."""
        for batch in (self._waiting, *self._batches):
            batch[:] = [entry for entry in batch if entry[0] is not attempt]

    def reset_failure_timer(self) -> None:
        """Reset the failure timers: failures before the new lease are no reason to abandon that lease."""
        now = self._clock.monotonic()
        self._failing = dict.fromkeys(self._failing, now)

    def _pump(self) -> None:
        while self._waiting:
            # A failing batch is no reason to hold back the others.
            healthy = len(self._sending) > len(self._failing)
            if len(self._sending) >= self._most_in_flight or (healthy and len(self._waiting) < self._largest):
                break
            batch, self._waiting = self._waiting[: self._largest], self._waiting[self._largest :]
            self._in_flight += len(batch)
            task = asyncio.create_task(self._send(batch), name="complete")
            self._sending[task] = None
            task.add_done_callback(self._sent)
        sending = len(self._sending)
        self._idle = not self._waiting and sending <= len(self._failing) and sending < self._most_in_flight

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("flush failed", exc_info=error)
        self._pump()
        self._progress()

    async def _send(self, batch: list[tuple[Attempt, Completion]]) -> None:
        size = len(batch)
        self._batches.append(batch)
        try:
            await self._deliver(batch)
        finally:
            self._batches = [other for other in self._batches if other is not batch]
            self._in_flight -= size

    async def _deliver(self, batch: list[tuple[Attempt, Completion]], blamed: bool = False) -> None:
        try:
            await self._try_until_heard(batch, blamed)
        finally:
            self._failing.pop(id(batch), None)

    async def _try_until_heard(self, batch: list[tuple[Attempt, Completion]], blamed: bool) -> None:
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            if not batch:
                return
            sent, pause = list(batch), backoff.next()
            sent_at = self._clock.monotonic()
            try:
                async with asyncio.timeout(self._timeout):
                    answers = await self._store.complete([completion for _, completion in sent])
            except Invalid as error:
                if len(batch) > 1:
                    middle = len(batch) // 2
                    await self._deliver(batch[:middle])
                    await self._deliver(batch[middle:])
                    return
                if not blamed:
                    _log.warning("outcome rejected", run=batch[0][1].run, error=str(error))
                    await self._deliver([(batch[0][0], self._refused(*batch[0], error))], blamed=True)
                    return
                _log.error("outcome rejected twice", run=batch[0][1].run, error=str(error))
            except (StoreUnavailable, TimeoutError) as error:
                if self._metrics is not None:
                    self._metrics.failed("complete")
                if isinstance(error, PartialCompletion):
                    batch[:] = self._heard_of_some(sent, error.answers)
                _log.warning(
                    "cannot report outcomes", runs=len(batch), error=str(error), again_in_ms=pause // MILLISECOND
                )
            except Exception:
                _log.exception("cannot report outcomes", runs=len(batch), again_in_ms=pause // MILLISECOND)
            else:
                if self._metrics is not None:
                    self._metrics.called("complete", self._clock.monotonic() - sent_at, len(sent))
                self._heard(sent, answers)
                return
            if id(batch) not in self._failing:
                self._failing[id(batch)] = self._clock.monotonic()
                self._pump()
            await self._clock.sleep(jitter(pause, self._jitter))

    def _heard_of_some(
        self, batch: list[tuple[Attempt, Completion]], answers: Sequence[CompletionAnswer | None]
    ) -> list[tuple[Attempt, Completion]]:
        """Process the answers of one part of the store, and return the outcomes to retry."""
        answered = [(entry, answer) for entry, answer in zip(batch, answers, strict=True) if answer is not None]
        self._heard([entry for entry, _ in answered], [answer for _, answer in answered])
        return [entry for entry, answer in zip(batch, answers, strict=True) if answer is None]

    def _heard(self, batch: list[tuple[Attempt, Completion]], answers: list[CompletionAnswer]) -> None:
        topics: set[str] = set()
        for (attempt, completion), answer in zip(batch, answers, strict=True):
            if answer is CompletionAnswer.STALE:
                _log.warning(
                    "an outcome came too late: the run is somebody else's",
                    run=completion.run,
                    task=attempt.held.task,
                    fence=completion.fence,
                    outcome=completion.outcome,
                )
            held = attempt.holding.held
            # The same run may be held again under a newer fence; that one stays held.
            if held.get(completion.run) is attempt:
                del held[completion.run]
            if completion.state is RunState.SCHEDULED:
                topics.add(SCHEDULES)
            elif completion.unblocks_others or completion.state is RunState.QUEUED:
                topics.add(queue_topic(attempt.held.queue))
        if topics:
            self._wakeups.notify(topics)
        self._record_accepted(batch, answers)

    def _record_accepted(self, batch: list[tuple[Attempt, Completion]], answers: list[CompletionAnswer]) -> None:
        """Report outcomes that the store has accepted to metrics and tracing."""
        taken = batch
        if CompletionAnswer.STALE in answers:
            taken = [
                entry for entry, answer in zip(batch, answers, strict=True) if answer is not CompletionAnswer.STALE
            ]
        if self._metrics is not None:
            self._metrics.fenced += len(batch) - len(taken)
            self._metrics.completed(taken)
        if self._tracing is not None:
            self._tracing.completed(taken, self._clock)

    def _refused(self, attempt: Attempt, refused: Completion, error: Invalid) -> Completion:
        # If the work was done, another attempt would only repeat it.
        cause = FINAL if refused.outcome is Outcome.SUCCESS else UNKNOWN
        now: Instant = attempt.held.started_at + self._clock.monotonic() - attempt.came_at
        text = f"its outcome could not be stored: {error}"
        return complete_failure(attempt.held, text, self._jitter, now=now, cause=cause)
