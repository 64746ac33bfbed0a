"""The port for the time of this node."""

from typing import Protocol

from mainspring.core.model.base.instant import Instant, Micros


class Clock(Protocol):
    """This node's clocks. Due times are decided by the store's clock, never by this one."""

    def now(self) -> Instant:
        """Return the wall-clock time. It may jump; never subtract two of these to measure."""
        ...

    def monotonic(self) -> Micros:
        """Return a steadily growing time; for measurements and leases."""
        ...

    async def sleep(self, duration: Micros) -> None:
        """Wait for at least one turn of the loop."""
        ...
