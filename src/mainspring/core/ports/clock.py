"""Time, injected."""

from typing import Protocol

from mainspring.core.model.base.instant import Instant, Micros


class Clock(Protocol):
    """This node's time. What is due is decided by the store's clock, never by this one."""

    def now(self) -> Instant:
        """The wall clock. It may jump; never subtract two of these to measure."""
        ...

    def monotonic(self) -> Micros:
        """Grows steadily from some start; for measuring and for leases."""
        ...

    async def sleep(self, duration: Micros) -> None:
        """Wait; at least one turn of the loop."""
        ...
