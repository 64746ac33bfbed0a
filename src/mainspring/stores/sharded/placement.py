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
    placement_groups: tuple[int, ...]
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
                placement_groups=tuple(sorted(group for group, home in self._servers.homes.items() if home is server)),
                leaving=tuple(server.status.departing) if server.status is not None else (),
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
        homes = {group: home.number for group, home in self._servers.homes.items()}
        for server in by_number.values():
            if server.status is not None:
                for group, target in server.status.departing.items():
                    moves.append((group, server.number, target))
                    homes[group] = target
        if len(homes) < self._servers.groups:
            raise StoreUnavailable("some placement groups are on servers that are not named in the setting store")
        targets = [number for number in sorted(by_number) if number != without]
        return moves + [(group, homes[group], number) for group, number in moves_for_balance(homes, targets)]

    async def move_placement_group(self, group: int, source: int, target: int) -> None:
        """Move a placement group to another server. Any process may repeat this at any point, also at the same time."""
        by_number = self._all_there()
        await move(group, by_number[source], by_number[target])
        await self._servers.read_map()

    def _all_there(self) -> dict[int, Server]:
        away = [str(server) for server in self._servers.all if server.away]
        if away:
            raise StoreUnavailable(
                f"placement groups can move only while every server is available; unavailable: {', '.join(away)}"
            )
        return {server.number: server for server in self._servers.all}
