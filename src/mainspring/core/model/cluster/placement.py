"""Where work lies in a store over several servers. What must be exact together has one place, a place one server."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import shard_for, shard_of, stable_hash

#: A store is made of so many places, or of as many as it has shards. More servers than places would be of no use.
MOST_PLACES = 32


def places_of(shards: int) -> int:
    """How many places a store with so many shards has."""
    return min(shards, MOST_PLACES)


def place_of(identifier: str, places: int) -> int:
    """The place that an id carries, in its shard."""
    return shard_of(identifier) % places


@lru_cache(10_000)
def place_for(tenant: str, placement: str, places: int) -> int:
    """The place of a tenant's work, or of that part of it which has a placement key. PostgreSQL computes it, too."""
    words = f"{tenant}\x1f{placement}" if placement else tenant
    return int(hashlib.sha256(words.encode()).hexdigest()[:8], 16) % places


def shard_in(place: int, shards: int, key: str, chance: int) -> int:
    """A shard of a place: the key's, or any."""
    places = places_of(shards)
    # Of 100 shards in 32 places the first four have one more.
    slots = (shards - place + places - 1) // places
    return place + places * ((stable_hash(key) if key else chance) % slots)


def shard_beside(run: str, key: str, shards: int, places: int) -> int:
    """The shard for what a run makes: the key's, or its own. Of a store over several servers one in its place: they may
    wait for each other."""
    if not key:
        return shard_of(run)
    return shard_in(place_of(run, places), shards, key, 0) if places else shard_for(key, shards)


def moves_for_balance(homes: Mapping[int, int], servers: Sequence[int]) -> list[tuple[int, int]]:
    """(place, server to move to): the fewest moves after which no two servers differ by more than one place.

    ``homes``: the server of each place, by number. Who is not among ``servers`` gives up all.
    """
    if not servers:
        raise Invalid("servers", "there is none to move to")
    having: dict[int, list[int]] = {server: [] for server in sorted(servers)}
    homeless: list[int] = []
    for place, server in sorted(homes.items()):
        having.get(server, homeless).append(place)
    least, more = divmod(len(homes), len(having))
    moves: list[tuple[int, int]] = []
    # Those that have most keep the one more that some must have.
    fullest = sorted(having, key=lambda server: (-len(having[server]), server))
    room = {server: least + (rank < more) for rank, server in enumerate(fullest)}
    for server in fullest:
        homeless += having[server][room[server] :]
        having[server] = having[server][: room[server]]
    for server in sorted(having, key=lambda server: (len(having[server]), server)):
        while homeless and len(having[server]) < room[server]:
            place = homeless.pop(0)
            having[server].append(place)
            moves.append((place, server))
    return moves
