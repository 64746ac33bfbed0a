"""The sharded store: moves placement groups to other servers while the store is in use."""

import msgspec

from mainspring.core.model.base.errors import Invalid, StoreUnavailable
from mainspring.core.model.cluster.placement import moves_for_balance
from mainspring.stores.sharded.joining import move
from mainspring.stores.sharded.mixin import ShardedMixin
from mainspring.stores.sharded.server import Server


class ServerView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A server as shown to users."""

    number: int
    address: str
    away: bool
    places: tuple[int, ...]
    #: Placement groups that have left it and have not arrived yet.
    leaving: tuple[int, ...] = ()


class ShardedPlacementMixin(ShardedMixin):
    async def servers(self) -> list[ServerView]:
        await self._servers.read_map()
        return [
            ServerView(
                number=server.number,
                address=server.name,
                away=server.away,
                places=tuple(sorted(place for place, home in self._servers.homes.items() if home is server)),
                leaving=tuple(server.standing.departing) if server.standing is not None else (),
            )
            for server in self._servers.all
        ]

    async def planned_moves(self, without: int | None = None) -> list[tuple[int, int, int]]:
        """Return the moves in progress, and the moves that would balance the servers or empty server ``without``.

        Each is (placement group, from, to).
        """
        by_number = self._all_there()
        if without is not None and without not in by_number:
            raise Invalid("without", f"there is no server {without}")
        await self._servers.read_map()
        moves: list[tuple[int, int, int]] = []
        homes = {place: home.number for place, home in self._servers.homes.items()}
        for server in by_number.values():
            if server.standing is not None:
                for place, target in server.standing.departing.items():
                    moves.append((place, server.number, target))
                    homes[place] = target
        if len(homes) < self._servers.places:
            raise StoreUnavailable("some places are on servers that are not named in store")
        targets = [number for number in sorted(by_number) if number != without]
        return moves + [(place, homes[place], number) for place, number in moves_for_balance(homes, targets)]

    async def move_place(self, place: int, source: int, target: int) -> None:
        """Move a placement group to another server. Any process may repeat this at any point, also at the same time."""
        by_number = self._all_there()
        await move(place, by_number[source], by_number[target])
        await self._servers.read_map()

    def _all_there(self) -> dict[int, Server]:
        away = [str(server) for server in self._servers.all if server.away]
        if away:
            raise StoreUnavailable(f"places move when every server is there, and {', '.join(away)} is away")
        return {server.number: server for server in self._servers.all}
