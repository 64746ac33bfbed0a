"""Forms one store of several servers: the first deals out the placement groups, later servers join with none."""

import uuid
from collections.abc import Sequence

from mainspring.core.model.base.errors import Conflict, Invalid, StoreUnavailable
from mainspring.core.model.cluster.placement import moves_for_balance, places_of
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.work.placement_groups import MOST_SERVERS, PlacementStatus
from mainspring.stores.sharded.server import Server


async def join(servers: Sequence[Server]) -> int:
    """Make all servers part of one store; return its number of shards.

    Any number of processes may do this at once: the first server is locked meanwhile. New servers join only when all
    servers are available: otherwise a server number could be used twice.
    """
    there = [server for server in servers if not server.away]
    standings = await _look(there)
    if any(standing.set_id is None for standing in standings.values()):
        if len(there) < len(servers):
            away = ", ".join(server.name for server in servers if server.away)
            raise StoreUnavailable(f"a new server joins when all of them are there, and {away} is away")
        first = min(there, key=lambda server: (_number(standings[server]), servers.index(server)))

        async def meanwhile() -> None:
            await _join_all(first, await _look(there))

        await first.store.while_alone("servers", meanwhile)
        standings = await _look(there)
    _check(standings)
    for server, standing in standings.items():
        server.number = _number(standing)
    return next(iter(standings.values())).shards


async def _look(servers: Sequence[Server]) -> dict[Server, PlacementStatus]:
    return {server: await server.ask(PostgresStore.standing) for server in servers}


def _number(standing: PlacementStatus) -> int:
    return MOST_SERVERS if standing.number is None else standing.number


async def _join_all(first: Server, standings: dict[Server, PlacementStatus]) -> None:
    """Add the new servers. The caller holds the lock."""
    _check(standings)
    places = places_of(standings[first].shards)
    newcomers = [server for server, standing in standings.items() if standing.set_id is None]
    for server in newcomers:
        if standings[server].used:
            raise Conflict(
                f"{server.name} holds a store of its own, whose ids say nothing of places: it cannot be one of several"
            )
    set_id = standings[first].set_id
    if set_id is None:
        await _make(first, [server for server in newcomers if server is not first], places)
        return
    last = max(standing.number for standing in standings.values() if standing.number is not None)
    for number, server in enumerate(newcomers, last + 1):
        if number >= MOST_SERVERS:
            raise Invalid("store", "has had too many servers", f"at most {MOST_SERVERS}")
        await server.store.join_set(set_id, number, places)


async def _make(first: Server, others: Sequence[Server], places: int) -> None:
    """Create a new store: the first server keeps its share of the placement groups, and the others receive theirs.

    If the process dies in between, the next ``rebalance`` finishes the moves.
    """
    set_id = uuid.uuid4().hex
    numbers = range(len(others) + 1)
    homes = dict.fromkeys(range(places), 0) | dict(moves_for_balance(dict.fromkeys(range(places), 0), numbers))
    departing = {place: number for place, number in homes.items() if number}
    here = [place for place, number in homes.items() if not number]
    await first.store.join_set(set_id, 0, places, here, departing)
    for number, server in enumerate(others, 1):
        mine = [place for place, home in homes.items() if home == number]
        await server.store.join_set(set_id, number, places, mine)
        await first.store.forget_departures(mine)


async def move(place: int, source: Server, target: Server) -> None:
    """Move a placement group with all its rows to another server. Any process may repeat this at any point."""
    await source.ask(lambda store: store.depart(place, target.number))
    baggage = await source.ask(lambda store: store.baggage(place))
    if baggage is not None:
        if baggage.target != target.number:
            # The group may have arrived there already: two servers would own it.
            raise Conflict(f"place {place} is on its way to server {baggage.target}")
        await target.ask(lambda store: store.arrive(place, baggage))
        await source.ask(lambda store: store.forget_departures([place]))


def _check(standings: dict[Server, PlacementStatus]) -> None:
    if len({standing.store_id for standing in standings.values()}) < len(standings):
        raise Invalid("store", "names a server twice")
    if len({standing.shards for standing in standings.values()}) > 1:
        raise Conflict("the servers were made with different numbers of shards: ids would not fit")
    sets = {standing.set_id for standing in standings.values() if standing.set_id is not None}
    if len(sets) > 1:
        names = ", ".join(server.name for server in standings)
        raise Conflict(f"these are servers of different stores: {names}")
