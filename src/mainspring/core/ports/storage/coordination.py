"""The ports that decide which scheduler owns which shard."""

from collections.abc import Collection, Mapping
from typing import Protocol

import msgspec

from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import Instant, Micros


class Membership(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a renewal."""

    now: Instant
    #: Every member with a live lease, including this one, in ascending order.
    members: tuple[SessionId, ...]
    #: The shards this member owns, with their epochs.
    owned: dict[int, int]
    #: How long until the first lease of another member expires, unless it is renewed. None: there is no other member.
    first_end: Micros | None = None
    #: How long the lease was granted for, if an external coordinator decides that. None: as requested.
    lease: Micros | None = None


class Coordinator(Protocol):
    """Grants shards to members. A shard has at most one live owner at any time; its epoch grows with every new owner.

    A member's lease is trusted from *before* the request for it was sent, on the monotonic clock, minus a margin.
    """

    async def join(self, name: str, ttl: Micros) -> SessionId:
        """Become a member under a new id, with a lease of ``ttl``."""
        ...

    async def renew(self, member: SessionId, ttl: Micros) -> Membership:
        """Extend the lease, remove members whose lease has expired, and return the remaining ones.

        1. ``Fenced`` is raised if this member was removed itself, or has left: it must stop acting and join again.
        2. A lease that expired unnoticed is either extended, or the member is fenced.
        3. Shards that other members took meanwhile stay theirs.
        """
        ...

    async def take(self, member: SessionId, shards: Collection[int]) -> dict[int, int]:
        """Take those of ``shards`` that have no live owner, and raise their epochs. Returns the newly taken shards.

        A member whose own lease has expired takes nothing.
        """
        ...

    async def give_up(self, member: SessionId, shards: Collection[int]) -> None:
        """Give shards back, so that another member may take them at once. Shards it does not own are ignored."""
        ...

    async def leave(self, member: SessionId) -> None:
        """Give all shards back and end the membership. Idempotent."""
        ...


class EpochCoordinator(Coordinator, Protocol):
    """A store that coordinates by itself, and that also accepts the grants of an external coordinator.

    1. The store has the last word, with any coordinator: it lets only the owner in its own rows stage and fire.
    2. Its epochs only grow.
    3. A member that was granted a shard elsewhere records it here (``seal``) before it acts.
    """

    async def identity(self) -> str:
        """Return the identity of the store: the same in all processes that share it, and unique to the store."""
        ...

    async def epochs(self, shards: Collection[int]) -> dict[int, int]:
        """Return the epochs of shards, for ``seal``."""
        ...

    async def seal(self, member: SessionId, epochs: Mapping[int, int]) -> dict[int, int]:
        """Own those shards whose epoch is still the given one, regardless of their previous owner, and raise the epoch.

        1. Returns the newly owned shards.
        2. Read the epochs first, then confirm the grant, and seal last. A member that was frozen in between then cannot
           undo what the next owner has sealed.
        3. A member whose own lease has expired seals nothing.
        """
        ...
