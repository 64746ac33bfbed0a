"""What time it is at the store, without asking."""

from mainspring.core.model.base.instant import Instant, Micros
from mainspring.core.ports.clock import Clock

#: Clocks run apart by less than one part in this many.
_DRIFT = 5_000


class StoreTime:
    """An estimate from the ``now`` in the store's answers and this node's monotonic clock. Its wall clock is not used.

    An answer was given after its request was sent and before it arrived, so the distance between the two clocks lies
    between two bounds, and a quick answer among slow ones narrows them for all. The lower bound is the estimate: late
    by no more than the quickest answer travelled, and never early, so that no look for what is due comes in vain.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: The bounds. There are none before the first answer.
        self._low: Micros
        self._high: Micros
        self._learnt_at: Micros | None = None

    def learn(self, sent: Micros, now: Instant) -> None:
        """An answer has arrived, to a request that was sent at ``sent`` by the monotonic clock."""
        arrived = self._clock.monotonic()
        low, high = now - arrived, now - sent
        if self._learnt_at is not None:
            slack = (arrived - self._learnt_at) // _DRIFT + 1
            before_low, before_high = self._low - slack, self._high + slack
            if before_low <= high and low <= before_high:
                low, high = max(low, before_low), min(high, before_high)
            # Otherwise the store's clock was set, or it is another server now: only the new answer counts.
        self._low, self._high = low, high
        self._learnt_at = arrived

    def ahead(self) -> tuple[Micros, Micros]:
        """The least and the most that the store's clock can be ahead of this node's monotonic one by now."""
        assert self._learnt_at is not None
        slack = (self._clock.monotonic() - self._learnt_at) // _DRIFT
        return self._low - slack, self._high + slack

    @property
    def known(self) -> bool:
        return self._learnt_at is not None

    def now(self) -> Instant:
        assert self._learnt_at is not None
        now = self._clock.monotonic()
        # Behind by what this node's clock may have gained since the last answer.
        return now + self._low - (now - self._learnt_at) // _DRIFT
