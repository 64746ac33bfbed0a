"""Who owns which shard."""

from collections.abc import Collection
from typing import Protocol

import msgspec

from mainspring.domain.ids import SessionId
from mainspring.domain.instant import Instant, Micros


class Membership(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a renewal."""

    now: Instant
    #: Every member whose lease is live, this one included, in ascending order.
    members: tuple[SessionId, ...]
    #: The shards this member owns, with their epochs.
    owned: dict[int, int]


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
        that ran out unnoticed is extended; shards that others took meanwhile are theirs.
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
