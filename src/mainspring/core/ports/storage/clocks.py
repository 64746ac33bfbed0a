"""The port for recording the clock offsets and time zone databases of nodes."""

from collections.abc import Collection
from typing import Protocol

from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.cluster.clock_guard import ClockReading


class Clocks(Protocol):
    async def now(self) -> Instant: ...

    async def record_clock(self, sessions: Collection[SessionId], reading: ClockReading, tzdata: str) -> None:
        """Store the clock reading of these sessions' node, and the version of their process's time zone database.

        Unknown sessions are ignored.
        """
        ...
