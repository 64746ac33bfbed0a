"""The store's time: the clock's, but never going back."""

from threading import Lock

from mainspring.core.model.base.instant import Instant
from mainspring.core.ports.clock import Clock


class SteadyTime:
    """Follows the wall clock forward. When that is set back, time goes on at half its speed until both agree again.

    So no transaction is earlier than the one before it, ranks and leases keep their order, and nothing stands still for
    as long as the clock was wrong. Each process has its own: those that share a file share the machine's clock, and a
    difference between them costs lateness or order among equals, never a fence, which is counted.
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
