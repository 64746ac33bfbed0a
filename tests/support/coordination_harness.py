"""The coordinators behind one surface for tests, which can end leases."""

from abc import ABC, abstractmethod

import redis.asyncio as redis

from mainspring.config.servers import coordinators as coordination
from mainspring.core.cluster.epoch_check import EpochCheckedCoordinator
from mainspring.core.model.base.errors import Fenced
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import MINUTE, SECOND
from mainspring.core.model.cluster.coordination import read_coordination
from mainspring.core.ports.registry import Registry
from mainspring.core.ports.storage.coordination import Coordinator
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.integrations.etcd.coordination import EtcdRegistry
from mainspring.integrations.redis.coordination import RedisRegistry
from mainspring.integrations.zookeeper import wire
from mainspring.integrations.zookeeper.coordination import ZooKeeperRegistry
from mainspring.integrations.zookeeper.session import Session
from tests.support.memory_registry import MemoryRegistry
from tests.support.store_harness import SHORT_LEASE, CoordinatedStore, Harness, MemoryHarness

#: Servers that can be a coordinator.
OUTSIDE = ("redis", "etcd", "zookeeper")
#: The address of a registry in memory, which needs no server.
IN_MEMORY = "memory"


class Coordination(ABC):
    """A coordinator, the store that checks its epochs, and a way to end a lease."""

    harness: Harness
    coordinator: Coordinator

    @property
    def store(self) -> CoordinatedStore:
        return self.harness.store

    async def open(self) -> None:
        await self.harness.open()

    async def close(self) -> None:
        await self.harness.close()

    @abstractmethod
    async def expire(self, member: SessionId) -> None:
        """Let the lease of a member that joined for ``SHORT_LEASE`` run out."""

    async def owned(self, member: SessionId) -> dict[int, int]:
        """The shards of a member by its renewal; none if the lease has expired."""
        try:
            return (await self.coordinator.renew(member, MINUTE)).owned
        except Fenced:
            return {}


class InTheStore(Coordination):
    def __init__(self, harness: Harness) -> None:
        self.harness = harness

    async def open(self) -> None:
        await super().open()
        self.coordinator = self.store

    async def expire(self, member: SessionId) -> None:
        await self.harness.advance(SHORT_LEASE + SECOND)


class OutsideTheStore(Coordination):
    """A coordinator with a store in memory. The contract tests check what it needs from other stores."""

    def __init__(self, address: str, harness: Harness | None = None) -> None:
        self.harness = MemoryHarness() if harness is None else harness
        self.address = address
        self.registry = make_registry(address)
        self.sealed = EpochCheckedCoordinator(self.harness.store, self.registry)
        self.coordinator = self.sealed

    async def open(self) -> None:
        await super().open()
        await self.sealed.start()

    async def close(self) -> None:
        await self.sealed.stop()
        await super().close()

    async def expire(self, member: SessionId) -> None:
        await expire(self.registry, self.address, member)


def make_registry(address: str) -> Registry:
    if address == IN_MEMORY:
        return MemoryRegistry()
    coordinator = read_coordination(address)
    assert coordinator is not None
    return coordination.make_registry(coordinator, SystemClock())


async def expire(registry: Registry, address: str, member: SessionId) -> None:
    """End the lease of a member in the coordinator, as if it had expired."""
    match registry:
        case MemoryRegistry():
            await registry.exit(member)
        case RedisRegistry():
            client = redis.Redis.from_url(address)
            await client.zadd(registry._keys[0], {str(member): 1})
            await client.aclose()
        case EtcdRegistry():
            await registry._ask("lease/revoke", {"ID": registry._leases[member].id})
        case ZooKeeperRegistry():
            # With its password another client can take over a session and close it.
            mine = registry._sessions[member]
            other = Session(mine._nodes, SHORT_LEASE, lambda: None, mine._access)
            other.id, other._password = mine.id, mine._password
            await other.ask((wire.CLOSE, b""))
            other.abandon()
        case _:
            raise AssertionError(registry)
