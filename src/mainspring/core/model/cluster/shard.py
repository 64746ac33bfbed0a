"""Assignment of shards to members by rendezvous hashing, so that a change of members moves few shards."""

from collections.abc import Collection, Mapping

from mainspring.core.model.base.ids import SessionId, stable_hash


def choose_owner(shard: int, members: Collection[SessionId]) -> SessionId:
    """Return the member with the highest score for this shard. There must be at least one; their order does not matter.

    A member that leaves passes on only its own shards. A member that joins takes its share evenly from all others.
    """
    return max(members, key=lambda member: (stable_hash(f"{shard}\x1f{member}"), member))


def choose_shards(member: SessionId, shards: int, members: Collection[SessionId]) -> frozenset[int]:
    """Return the shards of 0 … ``shards`` - 1 that belong to a member."""
    return frozenset(shard for shard in range(shards) if choose_owner(shard, members) == member)


def taken(
    owners: Mapping[int, SessionId], live: Collection[SessionId], member: SessionId, shards: Collection[int]
) -> dict[int, SessionId]:
    """Return the owners after a member took those of ``shards`` that have no live owner."""
    return dict(owners) | {shard: member for shard in shards if owners.get(shard) not in live}


def freed(owners: Mapping[int, SessionId], member: SessionId, shards: Collection[int]) -> dict[int, SessionId]:
    """Return the owners after a member released those of ``shards`` that it owned."""
    return {shard: owner for shard, owner in owners.items() if owner != member or shard not in shards}
