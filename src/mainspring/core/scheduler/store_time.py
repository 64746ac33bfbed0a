"""Estimates the store's time without a request."""

from mainspring.core.model.base.instant import Instant, Micros
from mainspring.core.ports.clock import Clock

#: The greatest assumed drift between clocks: one part in this many.
_DRIFT = 5_000


class StoreTime:
    """An estimate from the ``now`` in the store's answers and this node's monotonic clock. Its wall clock is not used.

    An answer was created after its request was sent and before it arrived. The offset between the two clocks therefore
    lies between two bounds, and each quick answer narrows them. The lower bound is the estimate. It is late by no more
    than the duration of the quickest answer, and never early, so that no look for due work comes too soon.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: The bounds. There are none before the first answer.
        self._low: Micros
        self._high: Micros
        self._learnt_at: Micros | None = None

    def learn(self, sent: Micros, now: Instant) -> None:
        """Process an answer to a request that was sent at ``sent`` by the monotonic clock."""
        arrived = self._clock.monotonic()
        low, high = now - arrived, now - sent
        if self._learnt_at is not None:
            slack = (arrived - self._learnt_at) // _DRIFT + 1
            before_low, before_high = self._low - slack, self._high + slack
            if before_low <= high and low <= before_high:
                low, high = max(low, before_low), min(high, before_high)
            # Otherwise the store's clock was set, or it is a different server: only the new answer counts.
        self._low, self._high = low, high
        self._learnt_at = arrived

    def ahead(self) -> tuple[Micros, Micros]:
        """Return the bounds of how far the store's clock is ahead of this node's monotonic clock now."""
        assert self._learnt_at is not None
        slack = (self._clock.monotonic() - self._learnt_at) // _DRIFT
        return self._low - slack, self._high + slack

    @property
    def known(self) -> bool:
        return self._learnt_at is not None

    def now(self) -> Instant:
        assert self._learnt_at is not None
        now = self._clock.monotonic()
        # Subtract what this node's clock may have gained since the last answer.
        return now + self._low - (now - self._learnt_at) // _DRIFT
