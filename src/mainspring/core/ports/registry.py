"""An engine outside the store that knows who is alive, and keeps one table for all of them."""

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import Micros


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What there is in a registry at one moment."""

    #: Whose lease is live.
    members: frozenset[SessionId]
    #: Who was granted which shard; an owner that is no member any more counts for nothing.
    owners: dict[int, SessionId]
    #: Which state of the table this is.
    version: int
    #: How long the lease of whoever looked was granted for, from before it looked.
    lease: Micros


class Registry(Protocol):
    """Members by lease, and the table of owners by compare-and-swap.

    Every method raises ``StoreUnavailable`` when the engine does not answer in time: what was asked may have happened.
    A member's lease ends by itself when it does not look for that long, whatever else its process does.
    """

    async def open(self, namespace: str) -> None:
        """Get ready to connect. Those who share a namespace see each other."""
        ...

    async def close(self) -> None:
        """Leave the leases of members that are still there to run out."""
        ...

    async def enter(self, member: SessionId, ttl: Micros) -> None:
        """Become a member. The engine may grant another lease than was asked for: the view says which."""
        ...

    async def look(self, member: SessionId) -> View:
        """Renew the lease, prove it, and say what there is. Raises ``Fenced`` when it has run out, or was ended."""
        ...

    async def write(self, member: SessionId, owners: Mapping[int, SessionId], version: int) -> bool:
        """Replace the table, if it is still the one of ``version`` and the member is live; else nothing, and False."""
        ...

    async def exit(self, member: SessionId) -> None:
        """End the membership at once. Idempotent."""
        ...

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call this, on the loop, when a member came, went or died, or the table changed. A hint: some may be lost."""
        ...
