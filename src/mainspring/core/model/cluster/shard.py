"""Which member a shard belongs to: rendezvous hashing, so that a change of members moves as little as can be."""

from collections.abc import Collection, Mapping

from mainspring.core.model.base.ids import SessionId, stable_hash


def owner_of(shard: int, members: Collection[SessionId]) -> SessionId:
    """The member that scores highest for this shard. The order of ``members`` does not matter; there must be one.

    A member that leaves passes on its own shards only, one that joins takes its share evenly from all the others.
    """
    return max(members, key=lambda member: (stable_hash(f"{shard}\x1f{member}"), member))


def shards_of(member: SessionId, shards: int, members: Collection[SessionId]) -> frozenset[int]:
    """The shards of 0 … ``shards`` - 1 that belong to a member."""
    return frozenset(shard for shard in range(shards) if owner_of(shard, members) == member)


def taken(
    owners: Mapping[int, SessionId], live: Collection[SessionId], member: SessionId, shards: Collection[int]
) -> dict[int, SessionId]:
    """The owners after a member took those of ``shards`` that have no live one."""
    return dict(owners) | {shard: member for shard in shards if owners.get(shard) not in live}


def freed(owners: Mapping[int, SessionId], member: SessionId, shards: Collection[int]) -> dict[int, SessionId]:
    """The owners after a member gave up those of ``shards`` that were its own."""
    return {shard: owner for shard, owner in owners.items() if owner != member or shard not in shards}
