"""The sharded store: implements the store port over several servers, each operation where its data is."""

from collections.abc import Callable, Sequence

from mainspring.core.ports.clock import Clock
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.sharded.catalog import ShardedCatalogMixin
from mainspring.stores.sharded.datacenters import ShardedDataCenterMixin
from mainspring.stores.sharded.events import ShardedEventMixin
from mainspring.stores.sharded.placement import ShardedPlacementMixin
from mainspring.stores.sharded.scheduling import ShardedSchedulerMixin
from mainspring.stores.sharded.server import Server
from mainspring.stores.sharded.servers import ServerSet
from mainspring.stores.sharded.submit import ShardedSubmitMixin
from mainspring.stores.sharded.user_changes import ShardedUserChangeMixin
from mainspring.stores.sharded.workers import ShardedWorkerMixin


class ShardedStore(
    ShardedSubmitMixin,
    ShardedWorkerMixin,
    ShardedSchedulerMixin,
    ShardedCatalogMixin,
    ShardedUserChangeMixin,
    ShardedEventMixin,
    ShardedPlacementMixin,
    ShardedDataCenterMixin,
):
    shards: int
    #: Number of placement groups. Ids of a tenant are created within one of them.
    place_count: int

    def __init__(
        self, addresses: Sequence[tuple[str, str]], clock: Clock, make: Callable[[str, int], PostgresStore]
    ) -> None:
        """``addresses``: the address of each server, and the form of it that may be shown.

        ``make``: creates the store of one server from its address and its index, with ``one_of_several``.
        """
        self._clock = clock
        self._servers = ServerSet(
            [Server(make(address, number), shown, clock) for number, (address, shown) in enumerate(addresses)]
        )
        self._heard = {}
        self._had_nothing = {}
        self.shards = self.place_count = 0

    async def open(self) -> None:
        await self._servers.open()
        self.shards, self.place_count = self._servers.shards, self._servers.groups

    async def close(self) -> None:
        await self._servers.close()

    @property
    def stores(self) -> list[tuple[str, PostgresStore]]:
        """Return the stores of all servers, with their names. Schedulers work on each one separately."""
        return [(str(server), server.store) for server in self._servers.all]
