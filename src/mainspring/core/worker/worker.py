"""The worker: claims runs, executes their tasks, reports the outcomes and renews its lease meanwhile.

How the parts work together:

1. ``Claimer`` claims runs from the store for the free ``Slots``, woken by notifications or broker hints.
2. ``Worker._accept`` turns each claimed run into an ``Attempt`` and starts it: async tasks on the event loop
   (``LoopExecutor``); ``AttemptStarter`` starts sync tasks in child processes or threads (``SyncExecutors``).
3. ``Outcomes`` decides what follows from the end of an attempt; ``Completer`` writes the outcomes to the store in
   batches.
4. ``Reporter`` writes progress, logs and checkpoints of running attempts.
5. ``Lease`` holds the session. ``Heartbeat`` renews its lease. If it cannot be renewed in time, the worker stops all
   attempts before another worker may start them, and opens a new session.
6. ``Cancellation`` stops attempts that time out, are cancelled or show no sign of life.

Each part is a file of this folder. This file creates them, starts them, starts attempts, and stops the parts again.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import TypeAlias

from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.model.runs.run import ALONE_AFTER, HeldRun, Outcome
from mainspring.core.ports.wakeups import queue_topic
from mainspring.core.runtime.brokers import GuardedBroker
from mainspring.core.runtime.log import get_logger
from mainspring.core.worker.attempt import NEVER, Attempt, Holding, Stop
from mainspring.core.worker.cancellation import Cancellation, CancelListener
from mainspring.core.worker.claimer import Claimer
from mainspring.core.worker.completer import Completer
from mainspring.core.worker.executors.loop import LoopExecutor
from mainspring.core.worker.executors.memory import resident_bytes
from mainspring.core.worker.executors.sync_executors import SyncExecutors
from mainspring.core.worker.handler import AsyncHandler, HandlerSource
from mainspring.core.worker.heartbeat import OpenWorkforce
from mainspring.core.worker.hosting import Hosting
from mainspring.core.worker.lease import Lease
from mainspring.core.worker.outcomes import Outcomes
from mainspring.core.worker.reporting.attempt_log import AttemptLog
from mainspring.core.worker.reporting.reporter import Reporter
from mainspring.core.worker.reporting.tracing import standing_in
from mainspring.core.worker.runtime import WorkerRuntime
from mainspring.core.worker.slots import Slots
from mainspring.core.worker.starting import AttemptStarter
from mainspring.core.worker.waiting import wait_until

_MEMORY_CHECK: Micros = 5 * SECOND
_GLANCE: Micros = 50 * MILLISECOND
#: The time limits of shutting down after the grace period: stop attempts, report outcomes.
_STOPPING: Micros = SECOND
_FLUSHING: Micros = 2 * SECOND
#: Claiming pauses when more outcomes than this are unreported: ten times the slots, but at least this many.
_FEWEST_UNFLUSHED = 2_000

_Invoke: TypeAlias = Callable[[HeldRun], Coroutine[None, None, bytes | None]]


class Worker:
    """A service that claims and executes runs.

    ``start`` opens a session and begins to claim; ``stop`` drains. Use it once.
    """

    def __init__(
        self,
        runtime: WorkerRuntime,
        handlers: HandlerSource,
        *,
        source: str | None = None,
        open_workforce: OpenWorkforce | None = None,
        brokers: Mapping[str, GuardedBroker] | None = None,
        attempt_log: AttemptLog | None = None,
    ) -> None:
        """Create a worker.

        ``source``: where child processes find the handlers, as ``module:attribute``; without it sync tasks run on plain
        threads. ``open_workforce``: opens a store for the heartbeat's thread; without it heartbeats are sent from the
        worker's event loop. ``brokers``: the brokers that hint at runs, by queue. ``attempt_log``: logs failed
        attempts, or all of them.
        """
        self.runtime = runtime
        self.settings = settings = runtime.settings
        settings.check()
        #: The worker leaves, or has left, in order to be recycled; its supervisor should start a new process.
        self.wants_recycling = False
        self._clock = clock = runtime.clock
        self._log = get_logger("mainspring.worker", worker=settings.name)
        self._held_back = False
        self._accepted = 0
        self._look_again = False
        self._memory_check_at: Micros = 0
        self._leaving: asyncio.Task[None] | None = None
        self._leave_by: Micros = NEVER

        self._handlers = handlers
        self._on_loop: dict[str, _Invoke] = {}
        #: Notified when attempts have ended, or when their outcomes have reached the store.
        self._ended = runtime.wakeups.listen(())
        self._work_wakeup = runtime.wakeups.listen([queue_topic(queue) for queue in settings.queues])
        self.slots = Slots(settings.queues, clock, self._work_wakeup, settings.gather, settings.priorities)
        self._most_unflushed = max(10 * self.slots.total, _FEWEST_UNFLUSHED)
        self._completer = Completer(runtime, self._flushed)
        self._reporter = Reporter(runtime, self._completer.add)
        self._outcomes = Outcomes(
            clock, runtime.jitter, self.slots, self._completer, self._reporter, self._ended.notify, attempt_log
        )
        self._running = self._outcomes.running
        self._cancellation = Cancellation(runtime, self._running, self._look_after)
        self._loop_executor = LoopExecutor(self._outcomes, self._reporter)
        self._sync_executors = SyncExecutors(
            runtime, self._outcomes, self._cancellation.watch, lambda: self.lease.check(), self._reporter, source
        )
        self._starter = AttemptStarter(
            clock, self._log, self._outcomes, self._cancellation, self._loop_executor, self._sync_executors
        )
        self._hosting = Hosting(handlers, capture_logs=settings.capture_logs)
        self._claimer = Claimer(runtime, self._work_wakeup, self.slots, self._accept, self._overloaded, brokers)
        self.lease = Lease(
            runtime,
            self._outcomes,
            self._cancellation,
            self._sync_executors,
            self._claimer,
            self._ended,
            self._leave_within,
            open_workforce,
        )
        self._listener = CancelListener(clock, runtime.wakeups, self.look_for_cancels)

    # Lifecycle.

    async def start(self) -> None:
        self._starter.handlers = dict(self._handlers.handlers())
        if self.runtime.metrics is not None:
            self.runtime.metrics.offers(self._starter.handlers)
        if self.runtime.tracing is not None:
            self.runtime.tracing.lend()
            self._starter.handlers = standing_in(self._starter.handlers, self.runtime.tracing)
        self._on_loop = {
            task: handler.invoke
            for task, handler in self._starter.handlers.items()
            if isinstance(handler, AsyncHandler) and handler.heartbeat is None
        }
        self._reporter.start()
        await self._hosting.open()
        try:
            await self.lease.start(self._starter.handlers, self.slots.total)
        except BaseException:
            await self._hosting.close()
            raise
        await self._cancellation.start()
        await self._listener.start()
        await self._claimer.start()

    async def stop(self, grace: Micros | None = None) -> None:
        """Drain: claim no more runs, let running attempts finish, and release the rest after the grace period.

        Nothing is reported for attempts that do not stop. Their runs are found lost when the lease has expired; the
        process should have exited by then.
        """
        if self.lease.holding is None and self.lease.reopening is None and self._leaving is None:
            return
        self._leave_within(self.settings.grace if grace is None else grace)
        await self.left()

    def stop_now(self) -> None:
        """Release all runs at once. Also cuts short a ``stop`` in progress."""
        self._leave_within(0)

    async def left(self) -> None:
        """Return when a worker that was asked to leave has left."""
        if self._leaving is not None:
            await asyncio.shield(self._leaving)

    def _leave_within(self, grace: Micros) -> None:
        self._leave_by = min(self._leave_by, self._clock.monotonic() + grace)
        if self._leaving is None:
            self._leaving = asyncio.create_task(self._leave(), name="leaving")
        self._ended.notify()

    async def _leave(self) -> None:
        self._claimer.halted = True
        self._work_wakeup.notify()
        self._log.info("worker leaving", running=len(self._running))
        await self._drain()
        await self.lease.stop()
        await self._listener.stop()
        await self._cancellation.stop()
        await self._reporter.close()
        await self._completer.close()
        await self.lease.release()
        await self._sync_executors.close()
        await self._hosting.close()
        self._work_wakeup.close()
        self._log.info("worker left")

    async def _drain(self) -> None:
        """Let attempts end within the grace period, release the others, and wait for the store to have the outcomes."""
        while (self._running or self._claimer.claiming) and self._clock.monotonic() < self._leave_by:
            left = self._leave_by - self._clock.monotonic()
            await self._ended.wait(max(min(left, _GLANCE if self._claimer.claiming else SECOND), 1))
        await self._claimer.abort()
        for attempt in list(self._running):
            self._cancellation.force(attempt, Stop.RELEASE)
        await wait_until(lambda: not self._running, _STOPPING, self._ended, self._clock)
        for attempt in list(self._running):
            self._log.warning("attempt still running after shutdown", run=attempt.held.id, task=attempt.held.task)
            self._outcomes.drop(attempt)
        await wait_until(lambda: not self.unflushed, _FLUSHING, self._ended, self._clock)

    def _recycle(self, why: str) -> None:
        if not self.wants_recycling:
            self._log.info("worker recycling", why=why)
            self.wants_recycling = True
            # There is no hurry: every attempt has its own time limit.
            self._leave_within(NEVER - self._clock.monotonic())

    # State.

    @property
    def running(self) -> int:
        """The number of attempts that occupy a slot."""
        return len(self._running)

    @property
    def counts(self) -> dict[Outcome, int]:
        """The number of ended attempts by outcome, since the start."""
        return dict(self._outcomes.counts)

    @property
    def unflushed(self) -> int:
        """The number of outcomes that the store has not received."""
        return self._outcomes.unflushed

    @property
    def next_silence(self) -> Micros | None:
        """When the next attempt is stopped if it sends no sign of life until then, by the monotonic clock."""
        return self._cancellation.next_silence

    @property
    def processes(self) -> list[int]:
        """The ids of its child processes."""
        return self._sync_executors.processes

    # Execution.

    def _accept(self, holding: Holding, runs: list[HeldRun]) -> None:
        """Start the runs of a claim. This is the hot path: nothing here may fail halfway or wait."""
        now = self._clock.monotonic()
        held, running, groups = holding.held, self._running, self.slots.groups
        on_loop, start, cancellation = self._on_loop, self._loop_executor.start, self._cancellation
        halted, pooled = self._claimer.halted, self.slots.pooled
        for run in runs:
            group = groups[(run.queue, run.priority) if pooled else run.queue]
            group.take(run.policy.weight)
            if run.limited:
                self.slots.limited = True
            until = now + run.attempt_until - run.started_at
            attempt = Attempt(run, holding, group, now, until)
            held[run.id] = attempt
            running[attempt] = None
            invoke = on_loop.get(run.task)
            if invoke is None or run.lost >= ALONE_AFTER or halted:
                self._starter.start(attempt, halted=halted)
            else:
                if until < cancellation.earliest:
                    cancellation.watch(until)
                start(attempt, invoke)
        self._accepted += len(runs)
        if self._look_again:
            self._look_again = False
            if runs:
                self.lease.hurry()
        if self.settings.recycle_after_runs is not None and self._accepted >= self.settings.recycle_after_runs:
            self._recycle(f"{self._accepted} runs")

    def look_for_cancels(self) -> None:
        """Send a heartbeat soon if attempts are running.

        Every heartbeat is a write. If every change of the store sends notifications, an idle worker would trigger
        itself forever.
        """
        if self.running:
            self.lease.hurry()
        else:
            # The run to stop may be among those that the claim is about to bring.
            self._look_again = self._claimer.claiming

    def _overloaded(self) -> bool:
        self._held_back = self.unflushed > self._most_unflushed
        return self._held_back

    def _flushed(self) -> None:
        if self._held_back or self.slots.limited:
            self._work_wakeup.notify()
        self._ended.notify()

    def _look_after(self, now: Micros) -> Micros:
        """Run the periodic checks other than attempt timeouts: the lease, the child processes and the memory limit."""
        self.lease.check()
        self._sync_executors.sweep(now)
        limit = self.settings.recycle_memory_bytes
        if limit is not None and now >= self._memory_check_at:
            self._memory_check_at = now + _MEMORY_CHECK
            if (used := resident_bytes()) >= limit:
                self._recycle(f"{used} bytes of memory")
        return SECOND
