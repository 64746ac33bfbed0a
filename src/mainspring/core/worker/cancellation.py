"""Stops attempts that time out, are cancelled or lose their lease, and repeats this until they have ended."""

from collections.abc import Callable

from mainspring.core.model.base.instant import MILLISECOND, MINUTE, Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.wakeups import CANCELS, Wakeups
from mainspring.core.runtime.service import TickingService
from mainspring.core.worker.attempt import NEVER, Attempt, Stop
from mainspring.core.worker.runtime import WorkerRuntime

_SWEEP: Micros = 50 * MILLISECOND
_LONGEST_WAIT: Micros = 500 * MILLISECOND


class Cancellation(TickingService):
    """Stops attempts with one sweep for all of them.

    At 20,000 runs per second, a timer for each attempt would cost as much as the run.

    An attempt's time runs from its real start here, not from when its claim was sent: a slow claim or a starting child
    must not shorten a short timeout. This start is later than the store's by at most the claim timeout, the start
    timeout and the patience for a thread. Together they are less than the reaper's grace (``OVERDUE_GRACE``), so the
    store does not end a run that is still within its time here.
    """

    def __init__(
        self,
        runtime: WorkerRuntime,
        running: dict[Attempt, None],
        also: Callable[[Micros], Micros],
    ) -> None:
        super().__init__("cancellation", runtime.clock, runtime.wakeups.listen(()))
        self._kill_grace = runtime.settings.kill_grace
        self._running = running
        #: Other periodic checks; returns how long the next one can wait.
        self._also = also
        self._stopping_attempts: dict[Attempt, None] = {}
        #: Attempts that must send signs of life: how often, and when they last did.
        self._beating: dict[Attempt, tuple[Micros, Micros]] = {}
        #: Nothing has to be done before this.
        self.earliest = NEVER
        self._next_sweep = NEVER

    def watch(self, until: Micros) -> None:
        """Sweep at this time: an attempt times out, or another check is due."""
        if until < self.earliest:
            self.earliest = until
            if until < self._next_sweep:
                self._next_sweep = until
                self.wakeup.notify()

    def expect_life(self, attempt: Attempt, every: Micros) -> None:
        """Stop an attempt that sends no sign of life for this long, counted from when user code is called."""
        now = self.clock.monotonic()
        self._beating[attempt] = (every, now)
        self.watch(now + every)

    @property
    def next_silence(self) -> Micros | None:
        """When the next attempt is stopped if it sends no sign of life until then, by the monotonic clock."""
        self._see_life(self.clock.monotonic())
        return min((since + every for every, since in self._beating.values()), default=None)

    def request(self, attempt: Attempt, reason: Stop) -> None:
        """Ask an attempt to stop. The first reason is kept; repeated requests have no effect."""
        if attempt.stop is not None or attempt.executor is None:
            return
        attempt.stop = reason
        if attempt.reporter is not None:
            attempt.reporter.stop = reason.value
        if reason is Stop.CANCEL:
            # Code that checks its context sees it, and a process that dies of it still counts as cancelled.
            attempt.held.cancel_requested = True
        attempt.kill_at = self.clock.monotonic() + self._kill_grace
        self._stopping_attempts[attempt] = None
        attempt.executor.stop(attempt)
        self.wakeup.notify()

    def force(self, attempt: Attempt, reason: Stop) -> None:
        """Stop an attempt by all means, now."""
        self.request(attempt, reason)
        if attempt in self._running and attempt.executor is not None:
            attempt.kill_at = self.clock.monotonic() + self._kill_grace
            attempt.executor.kill(attempt)

    async def tick(self) -> Micros:
        now = self.clock.monotonic()
        if now >= self.earliest:
            self._stop_overdue(now)
        if self._beating:
            self._see_life(now)
            self._stop_silent(now)
        self._insist(now)
        wait = min(self._also(now), _LONGEST_WAIT, self.earliest - now)
        for every, since in self._beating.values():
            # Check several times within the interval, so that a sign of life is noticed soon.
            wait = min(wait, since + every - now, every // 8)
        for attempt in self._stopping_attempts:
            wait = min(wait, attempt.kill_at - now)
        wait = max(wait, _SWEEP)
        self._next_sweep = now + wait
        return wait

    def _stop_overdue(self, now: Micros) -> None:
        earliest = NEVER
        for attempt in list(self._running):
            if attempt.stop is None:
                if attempt.until <= now:
                    self.request(attempt, Stop.TIMEOUT)
                elif attempt.until < earliest:
                    earliest = attempt.until
        self.earliest = earliest

    def _see_life(self, now: Micros) -> None:
        for attempt, (every, _) in list(self._beating.items()):
            reporter = attempt.reporter
            if attempt not in self._running or attempt.stop is not None:
                del self._beating[attempt]
            elif reporter is None:
                # The attempt has not begun.
                self._beating[attempt] = (every, now)
            elif reporter.alive:
                reporter.alive = False
                self._beating[attempt] = (every, now)

    def _stop_silent(self, now: Micros) -> None:
        for attempt, (every, since) in list(self._beating.items()):
            if now - since >= every:
                del self._beating[attempt]
                self.request(attempt, Stop.SILENT)

    def _insist(self, now: Micros) -> None:
        for attempt in list(self._stopping_attempts):
            if attempt not in self._running:
                del self._stopping_attempts[attempt]
            elif attempt.kill_at <= now and attempt.executor is not None:
                self.log.warning(
                    "an attempt does not stop",
                    run=attempt.held.id,
                    task=attempt.held.task,
                    why=attempt.stop.value if attempt.stop is not None else "",
                )
                attempt.kill_at = now + self._kill_grace
                attempt.executor.kill(attempt)


class CancelListener(TickingService):
    """Sends a heartbeat at once when a run was asked to stop: the answer says whether this worker holds it."""

    def __init__(self, clock: Clock, wakeups: Wakeups, look: Callable[[], None]) -> None:
        super().__init__("worker.cancels", clock, wakeups.listen([CANCELS]))
        self._look = look

    async def tick(self) -> Micros:
        self._look()
        return MINUTE
