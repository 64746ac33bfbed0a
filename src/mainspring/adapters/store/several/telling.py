"""Events of all servers as one stream."""

import heapq
from functools import partial

import msgspec

from mainspring.adapters.store.postgres import PostgresStore
from mainspring.adapters.store.several.part import Part
from mainspring.domain.errors import NotFound
from mainspring.domain.instant import Micros
from mainspring.domain.positions import join_position, split_position
from mainspring.ports.store import EventBatch


class Telling(Part):
    async def attach_reader(self, name: str, ttl: Micros | None = None) -> None:
        await self._servers.those_there(lambda store: store.attach_reader(name, ttl))

    async def detach_reader(self, name: str) -> None:
        await self._servers.those_there(lambda store: store.detach_reader(name))

    async def events(self, name: str, limit: int) -> list[EventBatch]:
        """The order is that of each server; between them it is about that of time."""
        found = await self._servers.those_there(lambda store: store.events(name, limit))
        return _merged({server.number: batches for server, batches in found.items()}, limit)

    async def acknowledge(self, name: str, position: str) -> None:
        parts = split_position(position)
        if parts is None:
            raise NotFound(f"{position!r:.60} is no position")
        for server in self._servers.all:
            if server.number in parts:
                await server.ask(partial(PostgresStore.acknowledge, name=name, position=parts[server.number]))

    async def events_after(self, position: str | None, limit: int) -> tuple[list[EventBatch], str]:
        if position is None:
            newest = await self._servers.those_there(lambda store: store.events_after(None, limit))
            return [], join_position({server.number: place for server, (_, place) in newest.items()})
        parts = split_position(position)
        if parts is None or not {server.number for server in self._servers.all if not server.away} <= parts.keys():
            raise NotFound("the position says nothing of one of the servers")
        places = parts
        numbers = {server.store: server.number for server in self._servers.all}
        found = await self._servers.those_there(lambda store: store.events_after(places[numbers[store]], limit))
        batches = _merged({server.number: batches for server, (batches, _) in found.items()}, limit)
        places = dict(parts)
        for batch in batches:
            # Of one server they come in order.
            places |= split_position(batch.position) or {}
        return batches, join_position(places)


def _merged(found: dict[int, list[EventBatch]], limit: int) -> list[EventBatch]:
    parts = [
        [msgspec.structs.replace(batch, position=join_position({number: batch.position})) for batch in batches]
        for number, batches in sorted(found.items())
    ]
    return list(heapq.merge(*parts, key=lambda batch: batch.at))[:limit]
