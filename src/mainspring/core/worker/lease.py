"""The worker's session and its lease.

A worker holds one lease for all its runs. ``Heartbeat`` renews it from a thread of its own and brings the store's
answers here. If the lease cannot be renewed in time, ``Lease`` stops every attempt before the lease ends, so that no
other worker can start the same runs meanwhile. Then it opens a new session.
"""

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress

from mainspring.core.model.base.errors import MainspringError, StoreDamaged, StoreUnavailable
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.model.cluster.datacenters import at_home
from mainspring.core.ports.storage.answers import HeartbeatAnswer
from mainspring.core.ports.wakeups import Wakeup
from mainspring.core.runtime.backoff import Backoff, jitter
from mainspring.core.runtime.log import get_logger
from mainspring.core.runtime.tasks import cancel_and_wait
from mainspring.core.store import NewSession
from mainspring.core.worker.attempt import Holding, Stop
from mainspring.core.worker.cancellation import Cancellation
from mainspring.core.worker.claimer import Claimer
from mainspring.core.worker.executors.sync_executors import SyncExecutors
from mainspring.core.worker.heartbeat import Heartbeat, OpenWorkforce
from mainspring.core.worker.outcomes import Outcomes
from mainspring.core.worker.runtime import WorkerRuntime
from mainspring.core.worker.waiting import wait_until

_FIRST_PAUSE: Micros = 100 * MILLISECOND
_LONGEST_PAUSE: Micros = 2 * SECOND
#: How long a start waits for its first session.
_PATIENCE: Micros = 90 * SECOND
#: The time limit for closing the session.
_GOODBYE: Micros = SECOND


class Lease:
    def __init__(
        self,
        runtime: WorkerRuntime,
        outcomes: Outcomes,
        cancellation: Cancellation,
        sync_executors: SyncExecutors,
        claimer: Claimer,
        ended: Wakeup,
        leave: Callable[[Micros], None],
        open_workforce: OpenWorkforce | None = None,
    ) -> None:
        """``ended``: notified when attempts end. ``leave``: makes the worker leave within a grace period.

        ``open_workforce``: opens a store for the heartbeat's thread.
        """
        #: The current session and its runs; None without a session.
        self.holding: Holding | None = None
        #: How often the lease was lost.
        self.losses = 0
        #: The worker was asked over the store to drain.
        self.drained = False
        self.reopening: asyncio.Task[None] | None = None
        self._runtime = runtime
        self._clock = runtime.clock
        self._settings = runtime.settings
        #: How long the lease is trusted after the last answered heartbeat was sent.
        self._trusted = runtime.settings.lease - runtime.settings.lease_margin
        self._outcomes = outcomes
        self._running = outcomes.running
        self._cancellation = cancellation
        self._sync_executors = sync_executors
        self._claimer = claimer
        self._ended = ended
        self._leave = leave
        self._heartbeat = Heartbeat(self, runtime.store, runtime.clock, runtime.settings, open_workforce)
        self._tasks: tuple[str, ...] = ()
        self._slots = 0
        self._log = get_logger("mainspring.worker", worker=runtime.settings.name)

    async def start(self, tasks: Collection[str], slots: int) -> None:
        """Open a session for a worker with handlers for these tasks, and start the heartbeats.

        Waits for a store that does not answer, as on a busy machine, but not for ever.
        """
        self._tasks, self._slots = tuple(sorted(tasks)), slots
        until = self._clock.monotonic() + _PATIENCE
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while self.holding is None:
            try:
                await self._open_session()
            except StoreDamaged:
                raise
            except StoreUnavailable as error:
                if self._clock.monotonic() >= until:
                    raise
                await self._pause(backoff, error)
        self._heartbeat.start()

    async def stop(self) -> None:
        """Stop the heartbeats, and open no other session."""
        if self.reopening is not None:
            await cancel_and_wait(self.reopening)
        await self._heartbeat.stop()

    async def release(self) -> None:
        """Close the session, unless an attempt has not stopped."""
        holding, self.holding = self.holding, None
        if holding is None:
            return
        with suppress(MainspringError, TimeoutError):
            async with asyncio.timeout(_GOODBYE / SECOND):
                # A claim without an answer may have started runs: this heartbeat requeues them uncharged, not as lost.
                held = list(holding.held)
                await self._runtime.store.heartbeat(holding.session, self._settings.lease, held, (), holding.last_claim)
                if not any(attempt.holding is holding for attempt in self._running):
                    await self._runtime.store.close_session(holding.session)
                # Otherwise an attempt has not stopped. It ends with this process, and the lease expires after that:
                # only then is the run lost, and may start elsewhere or count as cancelled.

    @property
    def margin(self) -> Micros:
        """How long the lease remains valid if no heartbeat is answered from now on."""
        holding = self.holding
        if holding is None:
            return 0
        return max(holding.renewed_at + self._trusted - self._clock.monotonic(), 0)

    def hurry(self) -> None:
        """Send a heartbeat soon."""
        self._heartbeat.hurry()

    def check(self) -> None:
        """End the lease if it was not renewed in time."""
        holding = self.holding
        if holding is not None and self._clock.monotonic() - holding.renewed_at >= self._trusted:
            self.lease_over(holding, "no heartbeat was answered in time")

    # Called by the heartbeat.

    @property
    def failing_since(self) -> Micros | None:
        return self._outcomes.failing_since

    def lease_renewed(self) -> None:
        self._sync_executors.record_renewal()

    def heartbeat_answered(self, holding: Holding, answer: HeartbeatAnswer) -> None:
        if answer.draining and holding is self.holding:
            self.drained = True
            self._leave(self._settings.grace)
        for run in answer.cancels:
            attempt = holding.held.get(run)
            if attempt is not None and attempt in self._running:
                self._cancellation.request(attempt, Stop.CANCEL)
        for run in answer.lost:
            self._lose(holding, run)

    def lease_over(self, holding: Holding, why: str) -> None:
        """Stop everything before another worker starts it, and report nothing about it.

        Outcomes of attempts that ended earlier are still reported: the store accepts them if no other worker has the
        run yet, and rejects them by their fence otherwise. They are dropped if reporting itself is what fails.
        """
        if holding is not self.holding:
            return
        holding.lost = True
        self.losses += 1
        self.holding = self._claimer.holding = None
        self._log.error("lease lost", session=holding.session, why=why, running=len(self._running))
        if self._heartbeat.withholding:
            self._outcomes.drop_unflushed()
        for attempt in list(self._running):
            self._outcomes.drop(attempt)
            self._cancellation.force(attempt, Stop.FENCED)
        self._sync_executors.kill_all()
        if not self._claimer.halted:
            self.reopening = asyncio.create_task(self._reopen(), name="reopening")

    def _lose(self, holding: Holding, run: RunId) -> None:
        """Stop a run before another worker starts it, and report nothing about it."""
        attempt = holding.held.pop(run, None)
        if attempt is None:
            return
        self._log.error("run lost, its store server did not answer for a lease", run=run)
        self._outcomes.forget(attempt)
        if attempt in self._running:
            self._outcomes.drop(attempt)
            self._cancellation.force(attempt, Stop.FENCED)

    async def _reopen(self) -> None:
        # The old attempts should end before the same runs can be claimed again.
        await wait_until(lambda: not self._running, 2 * self._settings.kill_grace, self._ended, self._clock)
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while self.holding is None:
            try:
                await self._open_session()
            except Exception as error:
                await self._pause(backoff, error)
        self._outcomes.reset_failure_timer()
        self.reopening = None
        self._claimer.wakeup.notify()

    async def _pause(self, backoff: Backoff, error: Exception) -> None:
        pause = backoff.next()
        self._log.warning("cannot open a session", error=repr(error), again_in_ms=pause // MILLISECOND)
        await self._clock.sleep(jitter(pause, self._runtime.jitter))

    async def _open_session(self) -> None:
        settings = self._settings
        sent = self._clock.monotonic()
        labels, datacenter = at_home(settings.labels, settings.datacenter)
        session = NewSession(
            name=settings.name,
            kind="worker",
            ttl=settings.lease,
            version=settings.version,
            datacenter=datacenter,
            queues=tuple(settings.queues),
            tasks=self._tasks,
            labels=labels,
            priorities=tuple(sorted(settings.priorities)),
            slots=self._slots,
        )
        try:
            async with asyncio.timeout(settings.claim_timeout / SECOND):
                number = await self._runtime.store.open_session(session)
        except TimeoutError:
            raise StoreUnavailable("no session was opened in time") from None
        self.holding = self._claimer.holding = Holding(number, sent)
        self._log.debug("session opened", session=number)
