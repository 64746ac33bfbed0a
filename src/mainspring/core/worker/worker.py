"""The worker: claims runs, executes their tasks, reports the outcomes and renews its lease meanwhile.

How the parts work together:

1. ``Claimer`` claims runs from the store for the free ``Slots``, woken by notifications or broker hints.
2. ``Worker._accept`` turns each claimed run into an ``Attempt`` and starts it: async tasks on the event loop
   (``LoopExecutor``); ``AttemptStarter`` starts sync tasks in child processes or threads (``SyncExecutors``).
3. ``Outcomes`` decides what follows from the end of an attempt; ``Completer`` writes the outcomes to the store in
   batches.
4. ``Reporter`` writes progress, logs and checkpoints of running attempts.
5. ``Heartbeat`` renews the lease of the session. If the lease cannot be renewed in time, the worker stops all attempts
   before another worker may start them, and opens a new session.
6. ``Cancellation`` stops attempts that time out, are cancelled or show no sign of life.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, suppress
from random import Random
from typing import TYPE_CHECKING, TypeAlias

from mainspring.core.model.base.errors import MainspringError, StoreUnavailable
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.model.cluster.datacenters import at_home
from mainspring.core.model.runs.run import ALONE_AFTER, HeldRun, Outcome
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.answers import HeartbeatAnswer
from mainspring.core.ports.storage.catalog import WorkerStore
from mainspring.core.ports.wakeups import Wakeups, queue_topic
from mainspring.core.runtime.backoff import Backoff, jitter
from mainspring.core.runtime.brokers import GuardedBroker
from mainspring.core.runtime.log import get_logger
from mainspring.core.runtime.log_lines import shows_output
from mainspring.core.runtime.metrics.run_metrics import RunMetrics
from mainspring.core.runtime.tasks import cancel_and_wait
from mainspring.core.store import NewSession
from mainspring.core.worker.attempt import NEVER, Attempt, Holding, Stop
from mainspring.core.worker.cancellation import Cancellation, CancelListener
from mainspring.core.worker.claimer import Claimer
from mainspring.core.worker.completer import Completer
from mainspring.core.worker.executors.loop import LoopExecutor
from mainspring.core.worker.executors.memory import resident_bytes
from mainspring.core.worker.executors.sync_executors import SyncExecutors
from mainspring.core.worker.handler import AsyncHandler, HandlerSource, Host
from mainspring.core.worker.heartbeat import Heartbeat, OpenWorkforce
from mainspring.core.worker.outcomes import Outcomes
from mainspring.core.worker.reporting.attempt_log import AttemptLog
from mainspring.core.worker.reporting.capture import capture
from mainspring.core.worker.reporting.reporter import Reporter
from mainspring.core.worker.reporting.tracing import standing_in
from mainspring.core.worker.settings import WorkerSettings
from mainspring.core.worker.slots import Slots
from mainspring.core.worker.starting import AttemptStarter

if TYPE_CHECKING:
    from mainspring.core.runtime.tracing.spans import Tracing

_MEMORY_CHECK: Micros = 5 * SECOND
_FIRST_PAUSE: Micros = 100 * MILLISECOND
_LONGEST_PAUSE: Micros = 2 * SECOND
_GLANCE: Micros = 50 * MILLISECOND
#: The time limits of shutting down after the grace period: stop attempts, report outcomes, close the session.
_STOPPING: Micros = SECOND
_FLUSHING: Micros = 2 * SECOND
_GOODBYE: Micros = SECOND
#: Claiming pauses when more outcomes than this are unreported: ten times the slots, but at least this many.
_FEWEST_UNFLUSHED = 2_000

_Invoke: TypeAlias = Callable[[HeldRun], Coroutine[None, None, bytes | None]]


class Worker:
    """A service that claims and executes runs.

    ``start`` opens a session and begins to claim; ``stop`` drains. Use it once.

    It holds one lease for all its runs. If the lease cannot be renewed in time, the worker stops every attempt before
    the lease ends and reports nothing more about them. It then continues under a new session.
    """

    def __init__(
        self,
        store: WorkerStore,
        wakeups: Wakeups,
        clock: Clock,
        handlers: HandlerSource,
        settings: WorkerSettings | None = None,
        *,
        source: str | None = None,
        open_workforce: OpenWorkforce | None = None,
        jitter: Random | None = None,
        brokers: Mapping[str, GuardedBroker] | None = None,
        metrics: RunMetrics | None = None,
        tracing: "Tracing | None" = None,
        attempt_log: AttemptLog | None = None,
    ) -> None:
        """Create a worker.

        ``source``: where child processes find the handlers, as ``module:attribute``; without it sync tasks run on plain
        threads. ``open_workforce``: opens a store for the heartbeat's thread; without it heartbeats are sent from the
        worker's event loop. ``brokers``: the brokers that hint at runs, by queue. ``metrics``: counts what happens.
        ``tracing``: records spans. ``attempt_log``: logs failed attempts, or all of them.
        """
        self.settings = settings = settings if settings is not None else WorkerSettings()
        settings.check()
        self.jitter = jitter if jitter is not None else Random()
        #: The worker leaves, or has left, in order to be recycled; its supervisor should start a new process.
        self.wants_recycling = False
        #: The worker was asked over the store to drain.
        self.drained = False
        #: How often the lease was lost.
        self.lost_leases = 0
        self.holding: Holding | None = None
        self._store = store
        self._clock = clock
        self._log = get_logger("mainspring.worker", worker=settings.name)
        self._held_back = False
        self._accepted = 0
        self._look_again = False
        self._memory_check_at: Micros = 0
        self._leaving: asyncio.Task[None] | None = None
        self._leave_by: Micros = NEVER
        self._reopening: asyncio.Task[None] | None = None

        self._source_of_handlers = handlers
        self._tracing = tracing
        self._metrics = metrics
        self._on_loop: dict[str, _Invoke] = {}
        #: Notified when code that waits for progress should check again.
        self._progress = wakeups.listen(())
        self._work_wakeup = wakeups.listen([queue_topic(queue) for queue in settings.queues])
        self.slots = Slots(settings.queues, clock, self._work_wakeup, settings.gather, settings.priorities)
        self._most_unflushed = max(10 * self.slots.total, _FEWEST_UNFLUSHED)
        self._completer = Completer(store, clock, wakeups, self.jitter, settings, self._flushed, metrics, tracing)
        self._reporter = Reporter(store, clock, wakeups.listen(()), self.jitter, settings, self._completer.add)
        self._outcomes = Outcomes(
            clock, self.jitter, self.slots, self._completer, self._reporter, self._none_left, attempt_log
        )
        self._running = self._outcomes.running
        self._cancellation = Cancellation(
            clock, wakeups.listen(()), settings.kill_grace, self._running, self._look_after
        )
        self._loop_executor = LoopExecutor(self._outcomes, self._reporter)
        self._sync_executors = SyncExecutors(
            clock,
            settings,
            self._outcomes,
            self._cancellation.watch,
            self._check_lease,
            self._reporter,
            source,
            tracing,
        )
        self._starter = AttemptStarter(
            clock, self._log, self._outcomes, self._cancellation, self._loop_executor, self._sync_executors
        )
        #: Resources that the handlers need, and the capture of their output.
        self._hosting = AsyncExitStack()
        self._claimer = Claimer(
            store,
            clock,
            self._work_wakeup,
            self.jitter,
            settings,
            self.slots,
            self._accept,
            self._overloaded,
            brokers,
            metrics,
        )
        self._heartbeat = Heartbeat(self, store, clock, settings, open_workforce)
        self._listener = CancelListener(clock, wakeups, self.look_for_cancels)

    # Lifecycle.

    async def start(self) -> None:
        self._starter.handlers = dict(self._source_of_handlers.handlers())
        if self._metrics is not None:
            self._metrics.offers(self._starter.handlers)
        if self._tracing is not None:
            self._tracing.lend()
            self._starter.handlers = standing_in(self._starter.handlers, self._tracing)
        self._on_loop = {
            task: handler.invoke
            for task, handler in self._starter.handlers.items()
            if isinstance(handler, AsyncHandler) and handler.heartbeat is None
        }
        self._reporter.start()
        await self._open_host()
        try:
            await self._open_session()
        except BaseException:
            await self._close_host()
            raise
        self._heartbeat.start()
        await self._cancellation.start()
        await self._listener.start()
        await self._claimer.start()

    async def _open_host(self) -> None:
        hosting = self._source_of_handlers.hosting() if isinstance(self._source_of_handlers, Host) else None
        if hosting is not None:
            await self._hosting.enter_async_context(hosting)
        if self.settings.capture_logs or shows_output():
            capture.begin()
            self._hosting.callback(capture.end)

    async def _close_host(self) -> None:
        try:
            await self._hosting.aclose()
        except Exception:
            self._log.exception("cannot close the application's resources")

    async def stop(self, grace: Micros | None = None) -> None:
        """Drain: claim no more runs, let running attempts finish, and release the rest after the grace period.

        Nothing is reported for attempts that do not stop. Their runs are found lost when the lease has expired; the
        process should have exited by then.
        """
        if self.holding is None and self._leaving is None and self._reopening is None:
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

    @property
    def running(self) -> int:
        """The number of attempts that occupy a slot."""
        return len(self._running)

    @property
    def counts(self) -> dict[Outcome, int]:
        """The number of ended attempts by outcome, since the start."""
        return dict(self._outcomes.counts)

    @property
    def lease_margin(self) -> Micros:
        """How long the lease remains valid if no heartbeat is answered from now on."""
        holding = self.holding
        if holding is None:
            return 0
        good = self.settings.lease - self.settings.lease_margin
        return max(holding.renewed_at + good - self._clock.monotonic(), 0)

    @property
    def unflushed(self) -> int:
        """The number of outcomes that the store has not received."""
        return self._completer.unflushed + self._reporter.unflushed

    @property
    def next_silence(self) -> Micros | None:
        """When the next attempt is stopped if it sends no sign of life until then, by the monotonic clock."""
        return self._cancellation.next_silence

    @property
    def processes(self) -> list[int]:
        """The ids of its child processes."""
        return self._sync_executors.processes

    def _leave_within(self, grace: Micros) -> None:
        self._leave_by = min(self._leave_by, self._clock.monotonic() + grace)
        if self._leaving is None:
            self._leaving = asyncio.create_task(self._leave(), name="leaving")
        self._progress.notify()

    async def _leave(self) -> None:
        self._claimer.halted = True
        self._work_wakeup.notify()
        self._log.info("worker leaving", running=len(self._running))
        while (self._running or self._claimer.claiming) and self._clock.monotonic() < self._leave_by:
            left = self._leave_by - self._clock.monotonic()
            await self._progress.wait(max(min(left, _GLANCE if self._claimer.claiming else SECOND), 1))
        await self._claimer.abort()
        for attempt in list(self._running):
            self._cancellation.force(attempt, Stop.RELEASE)
        await self._wait_until(lambda: not self._running, _STOPPING)
        for attempt in list(self._running):
            self._log.warning("attempt still running after shutdown", run=attempt.held.id, task=attempt.held.task)
            self._outcomes.drop(attempt)
        await self._wait_until(lambda: not self.unflushed, _FLUSHING)
        if self._reopening is not None:
            await cancel_and_wait(self._reopening)
        await self._heartbeat.stop()
        await self._listener.stop()
        await self._cancellation.stop()
        await self._reporter.close()
        await self._completer.close()
        await self._say_goodbye()
        await self._sync_executors.close()
        await self._close_host()
        self._work_wakeup.close()
        self._log.info("worker left")

    async def _say_goodbye(self) -> None:
        holding, self.holding = self.holding, None
        if holding is None:
            return
        with suppress(MainspringError, TimeoutError):
            async with asyncio.timeout(_GOODBYE / SECOND):
                # A claim without an answer may have started runs: this heartbeat requeues them uncharged, not as lost.
                held = list(holding.held)
                await self._store.heartbeat(holding.session, self.settings.lease, held, (), holding.last_claim)
                if not any(attempt.holding is holding for attempt in self._running):
                    await self._store.close_session(holding.session)
                # Otherwise an attempt has not stopped. It ends with this process, and the lease expires after that:
                # only then is the run lost, and may start elsewhere or count as cancelled.

    async def _wait_until(self, done: Callable[[], bool], at_most: Micros) -> None:
        give_up = self._clock.monotonic() + at_most
        while not done() and (left := give_up - self._clock.monotonic()) > 0:
            await self._progress.wait(left)

    def _recycle(self, why: str) -> None:
        if not self.wants_recycling:
            self._log.info("worker recycling", why=why)
            self.wants_recycling = True
            # There is no hurry: every attempt has its own time limit.
            self._leave_within(NEVER - self._clock.monotonic())

    # Lease.

    async def _open_session(self) -> None:
        settings = self.settings
        sent = self._clock.monotonic()
        labels, datacenter = at_home(settings.labels, settings.datacenter)
        session = NewSession(
            name=settings.name,
            kind="worker",
            ttl=settings.lease,
            version=settings.version,
            datacenter=datacenter,
            queues=tuple(settings.queues),
            tasks=tuple(sorted(self._starter.handlers)),
            labels=labels,
            priorities=tuple(sorted(settings.priorities)),
            slots=self.slots.total,
        )
        try:
            async with asyncio.timeout(settings.claim_timeout / SECOND):
                number = await self._store.open_session(session)
        except TimeoutError:
            raise StoreUnavailable("no session was opened in time") from None
        self.holding = self._claimer.holding = Holding(number, sent)
        self._log.debug("session opened", session=number)

    @property
    def failing_since(self) -> Micros | None:
        since = (self._completer.failing_since, self._reporter.failing_since)
        return min((moment for moment in since if moment is not None), default=None)

    def lease_renewed(self) -> None:
        self._sync_executors.record_renewal()

    def heartbeat_answered(self, holding: Holding, answer: HeartbeatAnswer) -> None:
        if answer.draining and holding is self.holding:
            self.drained = True
            self._leave_within(self.settings.grace)
        for run in answer.cancels:
            attempt = holding.held.get(run)
            if attempt is not None and attempt in self._running:
                self._cancellation.request(attempt, Stop.CANCEL)
        for run in answer.lost:
            self._lose(holding, run)

    def _lose(self, holding: Holding, run: RunId) -> None:
        """Stop a run before another worker starts it, and report nothing about it."""
        attempt = holding.held.pop(run, None)
        if attempt is None:
            return
        self._log.error("run lost, its store server did not answer for a lease", run=run)
        self._completer.forget(attempt)
        if attempt in self._running:
            self._outcomes.drop(attempt)
            self._cancellation.force(attempt, Stop.FENCED)

    def lease_over(self, holding: Holding, why: str) -> None:
        """Stop everything before another worker starts it, and report nothing about it.

        Outcomes of attempts that ended earlier are still reported: the store accepts them if no other worker has the
        run yet, and rejects them by their fence otherwise. They are dropped if reporting itself is what fails.
        """
        if holding is not self.holding:
            return
        holding.lost = True
        self.lost_leases += 1
        self.holding = self._claimer.holding = None
        self._log.error("lease lost", session=holding.session, why=why, running=len(self._running))
        if self._heartbeat.withholding:
            self._reporter.drop()
            self._completer.drop()
        for attempt in list(self._running):
            self._outcomes.drop(attempt)
            self._cancellation.force(attempt, Stop.FENCED)
        self._sync_executors.kill_all()
        if self._leaving is None:
            self._reopening = asyncio.create_task(self._reopen(), name="reopening")

    def _check_lease(self) -> None:
        holding = self.holding
        over = self.settings.lease - self.settings.lease_margin
        if holding is not None and self._clock.monotonic() - holding.renewed_at >= over:
            self.lease_over(holding, "no heartbeat was answered in time")

    async def _reopen(self) -> None:
        # The old attempts should end before the same runs can be claimed again.
        await self._wait_until(lambda: not self._running, 2 * self.settings.kill_grace)
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while self.holding is None:
            try:
                await self._open_session()
            except Exception as error:
                pause = backoff.next()
                self._log.warning("cannot open a session", error=repr(error), again_in_ms=pause // MILLISECOND)
                await self._clock.sleep(jitter(pause, self.jitter))
        self._completer.reset_failure_timer()
        self._reporter.reset_failure_timer()
        self._reopening = None
        self._work_wakeup.notify()

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
                self._heartbeat.hurry()
        if self.settings.recycle_after_runs is not None and self._accepted >= self.settings.recycle_after_runs:
            self._recycle(f"{self._accepted} runs")

    def look_for_cancels(self) -> None:
        """Send a heartbeat soon if attempts are running.

        Every heartbeat is a write. If every change of the store sends notifications, an idle worker would trigger
        itself forever.
        """
        if self.running:
            self._heartbeat.hurry()
        else:
            # The run to stop may be among those that the claim is about to bring.
            self._look_again = self._claimer.claiming

    def _overloaded(self) -> bool:
        self._held_back = self.unflushed > self._most_unflushed
        return self._held_back

    def _flushed(self) -> None:
        if self._held_back or self.slots.limited:
            self._work_wakeup.notify()
        if self._leaving is not None:
            self._progress.notify()

    def _none_left(self) -> None:
        if self._leaving is not None or self._reopening is not None:
            self._progress.notify()

    def _look_after(self, now: Micros) -> Micros:
        """Run the periodic checks other than attempt timeouts: the lease, the child processes and the memory limit."""
        self._check_lease()
        self._sync_executors.sweep(now)
        limit = self.settings.recycle_memory_bytes
        if limit is not None and now >= self._memory_check_at:
            self._memory_check_at = now + _MEMORY_CHECK
            if (used := resident_bytes()) >= limit:
                self._recycle(f"{used} bytes of memory")
        return SECOND
