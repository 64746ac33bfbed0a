"""Forms one store of several servers: the first deals out the placement groups, later servers join with none."""

import uuid
from collections.abc import Sequence

from mainspring.core.model.base.errors import Conflict, Invalid, StoreUnavailable
from mainspring.core.model.cluster.placement import count_placement_groups, moves_for_balance
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.work.placement_groups import MOST_SERVERS, PlacementStatus
from mainspring.stores.sharded.server import Server


async def join(servers: Sequence[Server]) -> int:
    """Make all servers part of one store; return its number of shards.

    Any number of processes may do this at once: the first server is locked meanwhile. New servers join only when all
    servers are available: otherwise a server number could be used twice.
    """
    there = [server for server in servers if not server.away]
    statuses = await _look(there)
    if any(status.set_id is None for status in statuses.values()):
        if len(there) < len(servers):
            away = ", ".join(server.name for server in servers if server.away)
            raise StoreUnavailable(f"a new server can join only while all servers are available; unavailable: {away}")
        first = min(there, key=lambda server: (_number(statuses[server]), servers.index(server)))

        async def meanwhile() -> None:
            await _join_all(first, await _look(there))

        await first.store.while_alone("servers", meanwhile)
        statuses = await _look(there)
    _check(statuses)
    for server, status in statuses.items():
        server.number = _number(status)
    return next(iter(statuses.values())).shards


async def _look(servers: Sequence[Server]) -> dict[Server, PlacementStatus]:
    return {server: await server.ask(PostgresStore.status) for server in servers}


def _number(status: PlacementStatus) -> int:
    return MOST_SERVERS if status.number is None else status.number


async def _join_all(first: Server, statuses: dict[Server, PlacementStatus]) -> None:
    """Add the new servers. The caller holds the lock."""
    _check(statuses)
    groups = count_placement_groups(statuses[first].shards)
    newcomers = [server for server, status in statuses.items() if status.set_id is None]
    for server in newcomers:
        if statuses[server].used:
            raise Conflict(
                f"{server.name} holds a store of its own, whose ids name no placement group: "
                "it cannot join a sharded store"
            )
    set_id = statuses[first].set_id
    if set_id is None:
        await _make(first, [server for server in newcomers if server is not first], groups)
        return
    last = max(status.number for status in statuses.values() if status.number is not None)
    for number, server in enumerate(newcomers, last + 1):
        if number >= MOST_SERVERS:
            raise Invalid("store", "has had too many servers", f"at most {MOST_SERVERS}")
        await server.store.join_set(set_id, number, groups)


async def _make(first: Server, others: Sequence[Server], groups: int) -> None:
    """Create a new store: the first server keeps its share of the placement groups, and the others receive theirs.

    If the process dies in between, the next ``rebalance`` finishes the moves.
    """
    set_id = uuid.uuid4().hex
    numbers = range(len(others) + 1)
    homes = dict.fromkeys(range(groups), 0) | dict(moves_for_balance(dict.fromkeys(range(groups), 0), numbers))
    departing = {group: number for group, number in homes.items() if number}
    here = [group for group, number in homes.items() if not number]
    await first.store.join_set(set_id, 0, groups, here, departing)
    for number, server in enumerate(others, 1):
        mine = [group for group, home in homes.items() if home == number]
        await server.store.join_set(set_id, number, groups, mine)
        await first.store.forget_departures(mine)


async def move(group: int, source: Server, target: Server) -> None:
    """Move a placement group with all its rows to another server. Any process may repeat this at any point."""
    await source.ask(lambda store: store.depart(group, target.number))
    transfer = await source.ask(lambda store: store.transfer(group))
    if transfer is not None:
        if transfer.target != target.number:
            # The group may have arrived there already: two servers would own it.
            raise Conflict(f"placement group {group} is moving to server {transfer.target}")
        await target.ask(lambda store: store.arrive(group, transfer))
        await source.ask(lambda store: store.forget_departures([group]))


def _check(statuses: dict[Server, PlacementStatus]) -> None:
    if len({status.store_id for status in statuses.values()}) < len(statuses):
        raise Invalid("store", "names a server twice")
    if len({status.shards for status in statuses.values()}) > 1:
        raise Conflict("the servers were made with different numbers of shards: ids would not fit")
    sets = {status.set_id for status in statuses.values() if status.set_id is not None}
    if len(sets) > 1:
        names = ", ".join(server.name for server in statuses)
        raise Conflict(f"these are servers of different stores: {names}")
