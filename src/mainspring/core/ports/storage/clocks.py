"""How far the clocks of nodes are from the store's, and which time zone database they go by."""

from collections.abc import Collection
from typing import Protocol

from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.cluster.clock_guard import ClockReading


class Clocks(Protocol):
    async def now(self) -> Instant: ...

    async def tell_clock(self, sessions: Collection[SessionId], reading: ClockReading, tzdata: str) -> None:
        """Store with these sessions how far their node's clock is from the store's, and the version of the time zone
        database that their process goes by. Unknown sessions are ignored."""
        ...
