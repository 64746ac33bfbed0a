"""Stops attempts that are out of time, were asked to stop or lost their lease, and insists until they have ended."""

from collections.abc import Callable

from mainspring.core.model.base.instant import MILLISECOND, Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.wakeups import Bell
from mainspring.core.runtime.service import TickingService
from mainspring.core.worker.attempt import NEVER, Attempt, Stop

_SWEEP: Micros = 50 * MILLISECOND
_LONGEST_WAIT: Micros = 500 * MILLISECOND


class Cancellation(TickingService):
    """One sweep for all attempts instead of a timer for each: at 20,000 runs a second a timer costs as much as the run.

    An attempt's time is counted from when it really begins here, not from when its claim was sent: a slow claim or a
    starting child must not eat a short timeout. That is later than the store counts by at most the claim timeout, the
    start timeout and the patience for a thread, which together are less than the grace the reaper gives
    (``OVERDUE_GRACE``), so the store does not take a run away that is still within its time here.
    """

    def __init__(
        self,
        clock: Clock,
        bell: Bell,
        kill_grace: Micros,
        running: dict[Attempt, None],
        also: Callable[[Micros], Micros],
    ) -> None:
        super().__init__("cancellation", clock, bell)
        self._kill_grace = kill_grace
        self._running = running
        #: What else has to be looked at now and then; returns how long that can wait.
        self._also = also
        self._stopping_attempts: dict[Attempt, None] = {}
        #: Attempts that must show life: how often, and when they last did.
        self._beating: dict[Attempt, tuple[Micros, Micros]] = {}
        #: Nothing has to be done before this.
        self.earliest = NEVER
        self._next_sweep = NEVER

    def watch(self, until: Micros) -> None:
        """Sweep then: an attempt's time ends, or something else has to be looked at."""
        if until < self.earliest:
            self.earliest = until
            if until < self._next_sweep:
                self._next_sweep = until
                self.bell.ring()

    def expect_life(self, attempt: Attempt, every: Micros) -> None:
        """Stop an attempt that shows no life for so long, counted from when user code is called."""
        now = self.clock.monotonic()
        self._beating[attempt] = (every, now)
        self.watch(now + every)

    @property
    def next_silence(self) -> Micros | None:
        """When an attempt is next to be stopped if it shows no life until then, by the monotonic clock."""
        self._see_life(self.clock.monotonic())
        return min((since + every for every, since in self._beating.values()), default=None)

    def request(self, attempt: Attempt, reason: Stop) -> None:
        """Ask an attempt to stop. The first reason stays; asking again changes nothing."""
        if attempt.stop is not None or attempt.executor is None:
            return
        attempt.stop = reason
        if attempt.telling is not None:
            attempt.telling.stop = reason.value
        if reason is Stop.CANCEL:
            # Code that looks at its context sees it, and a process that dies of it was cancelled all the same.
            attempt.held.cancel_requested = True
        attempt.kill_at = self.clock.monotonic() + self._kill_grace
        self._stopping_attempts[attempt] = None
        attempt.executor.stop(attempt)
        self.bell.ring()

    def force(self, attempt: Attempt, reason: Stop) -> None:
        """Stop an attempt with all means, now."""
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
            # A few looks within the time, so that a sign of life is seen not long after it was given.
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
            telling = attempt.telling
            if attempt not in self._running or attempt.stop is not None:
                del self._beating[attempt]
            elif telling is None:
                # It has not begun.
                self._beating[attempt] = (every, now)
            elif telling.alive:
                telling.alive = False
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
