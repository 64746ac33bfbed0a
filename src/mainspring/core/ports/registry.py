"""The port of external coordinators: they know which members are alive, and keep one table of shard owners."""

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import Micros


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a registry at one moment."""

    #: Members with a live lease.
    members: frozenset[SessionId]
    #: The owner of each shard; an owner that is no longer a member counts for nothing.
    owners: dict[int, SessionId]
    #: The version of the table.
    version: int
    #: How long the caller's lease was granted for, counted from before the call.
    lease: Micros


class Registry(Protocol):
    """Members by lease, and the table of owners by compare-and-swap.

    1. Every method raises ``StoreUnavailable`` if the coordinator does not answer in time: the call may have taken
       effect.
    2. A member's lease ends by itself if it does not call ``look`` for that long, even if its process is alive.
    """

    async def open(self, namespace: str) -> None:
        """Prepare to connect. Processes with the same namespace see each other."""
        ...

    async def close(self) -> None:
        """Disconnect. Leases of remaining members expire by themselves."""
        ...

    async def enter(self, member: SessionId, ttl: Micros) -> None:
        """Become a member. The coordinator may grant a different lease; the view has the granted one."""
        ...

    async def look(self, member: SessionId) -> View:
        """Renew and confirm the lease, and return the current view.

        Raises ``Fenced`` if the lease has expired or was ended.
        """
        ...

    async def write(self, member: SessionId, owners: Mapping[int, SessionId], version: int) -> bool:
        """Replace the table if its version is still ``version`` and the member is live.

        Otherwise nothing happens: False.
        """
        ...

    async def exit(self, member: SessionId) -> None:
        """End the membership at once. Idempotent."""
        ...

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call the listener, on the loop, when a member joined, left or died, or the table changed.

        Calls may be lost.
        """
        ...
