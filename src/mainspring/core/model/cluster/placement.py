"""Placement groups of a sharded store. Work that must be consistent shares a group; each is on a single server."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import decode_shard, shard_for, stable_hash

#: The maximum number of groups; a store with fewer shards has one per shard. More servers than groups are of no use.
MOST_PLACES = 32


def count_placement_groups(shards: int) -> int:
    """Return the number of placement groups of a store with this many shards."""
    return min(shards, MOST_PLACES)


def find_placement_group(identifier: str, groups: int) -> int:
    """Return the placement group of an id, derived from its shard."""
    return decode_shard(identifier) % groups


@lru_cache(10_000)
def choose_placement_group(tenant: str, placement: str, groups: int) -> int:
    """Return the placement group of a tenant, or of its part with a placement key. PostgreSQL computes it, too."""
    words = f"{tenant}\x1f{placement}" if placement else tenant
    return int(hashlib.sha256(words.encode()).hexdigest()[:8], 16) % groups


def shard_in(group: int, shards: int, key: str, chance: int) -> int:
    """Return a shard of a placement group: the key's shard, or one chosen by ``chance``."""
    groups = count_placement_groups(shards)
    # With 100 shards in 32 groups, the first four groups have one more.
    slots = (shards - group + groups - 1) // groups
    return group + groups * ((stable_hash(key) if key else chance) % slots)


def shard_beside(run: str, key: str, shards: int, groups: int) -> int:
    """Return the shard for a run that another run creates: the key's shard, or the creator's.

    In a sharded store the shard is in the creator's placement group, since the runs may depend on each other.
    """
    if not key:
        return decode_shard(run)
    return shard_in(find_placement_group(run, groups), shards, key, 0) if groups else shard_for(key, shards)


def moves_for_balance(homes: Mapping[int, int], servers: Sequence[int]) -> list[tuple[int, int]]:
    """Return (placement group, target server) pairs: the fewest moves that balance the servers to within one group.

    ``homes``: the server of each group, by number. Servers that are not in ``servers`` lose all their groups.
    """
    if not servers:
        raise Invalid("servers", "there is none to move to")
    having: dict[int, list[int]] = {server: [] for server in sorted(servers)}
    homeless: list[int] = []
    for group, server in sorted(homes.items()):
        having.get(server, homeless).append(group)
    least, more = divmod(len(homes), len(having))
    moves: list[tuple[int, int]] = []
    # The fullest servers keep the remainder, which minimizes the moves.
    fullest = sorted(having, key=lambda server: (-len(having[server]), server))
    room = {server: least + (rank < more) for rank, server in enumerate(fullest)}
    for server in fullest:
        homeless += having[server][room[server] :]
        having[server] = having[server][: room[server]]
    for server in sorted(having, key=lambda server: (len(having[server]), server)):
        while homeless and len(having[server]) < room[server]:
            group = homeless.pop(0)
            having[server].append(group)
            moves.append((group, server))
    return moves
