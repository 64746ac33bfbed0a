"""Who owns which shard."""

from collections.abc import Collection, Mapping
from typing import Protocol

import msgspec

from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import Instant, Micros


class Membership(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a renewal."""

    now: Instant
    #: Every member whose lease is live, this one included, in ascending order.
    members: tuple[SessionId, ...]
    #: The shards this member owns, with their epochs.
    owned: dict[int, int]
    #: How long until the first lease of another member runs out, unless that one renews it; None: there is no other.
    first_end: Micros | None = None
    #: How long the lease was really granted for, where an engine of its own has a say in that; None: as was asked.
    lease: Micros | None = None


class Coordinator(Protocol):
    """Grants shards to members. At most one live owner of a shard at any time; its epoch grows with every new owner.

    A member's lease is trusted from *before* the request for it was sent, on the monotonic clock, less a margin.
    """

    async def join(self, name: str, ttl: Micros) -> SessionId:
        """Become a member under a fresh id, alive for ``ttl``."""
        ...

    async def renew(self, member: SessionId, ttl: Micros) -> Membership:
        """Extend the lease, bury members whose lease has run out, and say who is left.

        Raises ``Fenced`` when this member was buried itself, or has left: it must stop acting and join again. A lease
        that ran out unnoticed is extended, or the member is fenced; shards that others took meanwhile are theirs.
        """
        ...

    async def take(self, member: SessionId, shards: Collection[int]) -> dict[int, int]:
        """Take those of ``shards`` that have no live owner, raising their epochs. Returns what was newly taken.

        A member whose own lease has run out takes nothing.
        """
        ...

    async def give_up(self, member: SessionId, shards: Collection[int]) -> None:
        """Give shards back, so that another may take them at once. What it does not own is ignored."""
        ...

    async def leave(self, member: SessionId) -> None:
        """Give everything back and end the membership. Idempotent."""
        ...


class Sealing(Coordinator, Protocol):
    """A store that coordinates by itself, and that takes another engine's word for who owns what.

    Whatever grants a shard, the store has the last word: it lets only the owner in its own rows stage and fire, and
    its epochs only grow. Whoever was granted a shard elsewhere seals it here before it acts.
    """

    async def identity(self) -> str:
        """Which store this is: the same for all who share it, and for nobody else."""
        ...

    async def epochs(self, shards: Collection[int]) -> dict[int, int]:
        """The epochs of shards, to seal them with."""
        ...

    async def seal(self, member: SessionId, epochs: Mapping[int, int]) -> dict[int, int]:
        """Own shards, whoever else did before, where the epoch is still the given one; it is raised. Returns what is
        newly sealed.

        Read the epochs first, make sure of the grant then, seal last: so a member that was frozen in between does not
        undo what the next owner has sealed. A member whose own lease has run out seals nothing.
        """
        ...
