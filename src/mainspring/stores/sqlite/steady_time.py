"""The store's time: follows the wall clock, but never goes back."""

from threading import Lock

from mainspring.core.model.base.instant import Instant
from mainspring.core.ports.clock import Clock


class SteadyTime:
    """Follows the wall clock forward. When that is set back, time runs at half speed until both agree again.

    So no transaction is earlier than the one before it, and ranks and leases keep their order. Time does not stand
    still for as long as the clock was wrong. Each process has its own steady time. Processes that share a file share
    the machine's clock. A difference between them can delay runs or reorder equal ones, but never affects a fence,
    which is counted.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._latest: Instant = 0
        self._measured = clock.monotonic()

    def now(self) -> Instant:
        with self._lock:
            measured = self._clock.monotonic()
            passed = max(0, measured - self._measured)
            self._latest = max(self._clock.now(), self._latest + passed // 2)
            self._measured = measured
            return self._latest
