"""The reaper: requeues runs of expired workers, and ends runs that waited or ran too long. Needs no leader."""

from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Protocol

from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.model.runs.completion import Completion, CompletionAnswer, complete_failure, complete_loss
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.model.runs.view import OVERDUE_GRACE
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.reads import StoreReads
from mainspring.core.ports.storage.upkeep import Upkeep
from mainspring.core.ports.wakeups import SCHEDULES, Wakeups, queue_topic
from mainspring.core.runtime.metrics.run_metrics import RunMetrics
from mainspring.core.runtime.service import TickingService
from mainspring.core.scheduler.loader import HORIZON
from mainspring.core.store import Workforce

_EVERY: Micros = SECOND
_LIMIT = 500


class ReaperStore(Upkeep, StoreReads, Workforce, Protocol):
    """The part of the store that a reaper uses."""


class Reaper(TickingService):
    """Works by state, not by event: each problem is found again until it is fixed.

    Any number of reapers may run. Concurrent ones meet in ``complete``, where the fence accepts only one of them.
    """

    def __init__(
        self, store: ReaperStore, wakeups: Wakeups, clock: Clock, random: Random, metrics: RunMetrics | None = None
    ) -> None:
        super().__init__("reaper", clock, wakeups.listen([]))
        self._store = store
        self._wakeups = wakeups
        self._random = random
        self._metrics = metrics

    async def tick(self) -> Micros:
        await self._while_full(self._return_lost)
        await self._while_full(self._end_overdue)
        await self._while_full(self._expire)
        await self._resolve()
        await self._while_full(self._sweep)
        # Several reapers should not run at the same moment.
        return round(_EVERY * (0.75 + self._random.random() / 2))

    async def _while_full(self, step: Callable[[], Awaitable[int]]) -> None:
        """Repeat a step while its batches are full.

        A step that achieved nothing is not repeated: other reapers are at work.
        """
        while not self.stopping and await step() >= _LIMIT:
            await self.clock.sleep(0)

    async def _return_lost(self) -> int:
        lost = await self._store.lost_runs(_LIMIT)
        if not lost:
            return 0
        # A worker knows which run killed its child process. For a worker that is gone, the culprit is unknown.
        completions = [complete_loss(held, blamed=False) for held in lost]
        return await self._complete("runs of dead workers", "lost", lost, completions)

    async def _end_overdue(self) -> int:
        overdue = await self._store.overdue_runs(OVERDUE_GRACE, _LIMIT)
        if not overdue:
            return 0
        now = await self._store.now()
        error = "the attempt ran over its time, and its worker did not stop it"
        completions = [complete_failure(held, error, self._random, now=now, timed_out=True) for held in overdue]
        return await self._complete("runs over their time", "overdue", overdue, completions)

    async def _complete(self, what: str, why: str, held: Sequence[HeldRun], completions: Sequence[Completion]) -> int:
        answers = await self._store.complete(completions)
        applied = [
            (run, completion)
            for run, completion, answer in zip(held, completions, answers, strict=True)
            if answer is CompletionAnswer.ACCEPTED
        ]
        if not applied:
            return 0
        failed = sum(completion.state is RunState.FAILED for _, completion in applied)
        self.log.warning(what, runs=len(applied), failed=failed)
        if self._metrics is not None:
            self._metrics.reaped(why, applied)
        # The end of a run can also release another run, most likely of the same queue.
        topics = dict.fromkeys(queue_topic(run.queue) for run, _ in applied)
        if any(move.state is RunState.SCHEDULED and move.delay <= HORIZON for _, move in applied):
            topics[SCHEDULES] = None
        self._wakeups.notify(list(topics))
        return len(held)

    async def _expire(self) -> int:
        expired = await self._store.expire(_LIMIT)
        if expired:
            self.log.info("runs expired", runs=expired)
            if self._metrics is not None:
                self._metrics.expired(expired)
        return expired

    async def _resolve(self) -> None:
        """Decide remaining children: completing a run handles a few of its children, and this handles the rest."""
        while not self.stopping and await self._store.resolve(_LIMIT):
            await self.clock.sleep(0)

    async def _sweep(self) -> int:
        found = await self._store.sweep(_LIMIT)
        if found:
            self.log.warning("stuck work repaired", found=found)
        return found
