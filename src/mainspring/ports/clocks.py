"""Whose clock is how far from the store's."""

from collections.abc import Collection
from typing import Protocol

from mainspring.domain.clock_guard import ClockReading
from mainspring.domain.ids import SessionId
from mainspring.domain.instant import Instant


class Clocks(Protocol):
    async def now(self) -> Instant: ...

    async def tell_clock(self, sessions: Collection[SessionId], reading: ClockReading) -> None:
        """Keep with these sessions how far the clock of their node was when it last looked, for people to see.
        Unknown ones are passed over."""
        ...
