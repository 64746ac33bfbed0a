"""Connections to Redis: one server, the master of a Sentinel group, or a cluster."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec
import redis.asyncio as redis
from redis.asyncio.client import PubSub
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException, RedisError

from mainspring.core.model.base.errors import BrokerUnavailable
from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.integrations.redis.address import RedisAddress

Client: TypeAlias = redis.Redis | RedisCluster

#: The time limit of a call, besides the time that the call itself waits.
PATIENCE: Micros = 2 * SECOND
#: The time limit of a Sentinel in seconds. It is short, because there are others.
_SENTINEL_PATIENCE = 0.5
#: The client's own retries would use the same address and take longer than the time limit of a call.
_AT_ONCE = Retry(NoBackoff(), 0)
_SAFE_POLICY = "noeviction"


class RedisServers:
    """A client that connects on first use and reconnects automatically."""

    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._client: Client | None = None
        self._sentinel: Sentinel | None = None
        #: Cluster only: a connection to each node that was used for subscriptions.
        self._nodes: dict[tuple[str, int], redis.Redis] = {}
        self._turn = 0

    def open(self) -> Client:
        self._client = self._connect()
        return self._client

    async def close(self) -> None:
        client, self._client = self._client, None
        sentinel, self._sentinel = self._sentinel, None
        if client is not None:
            await client.aclose()
        for one in [] if sentinel is None else sentinel.sentinels:
            await one.aclose()
        while self._nodes:
            await self._nodes.popitem()[1].aclose()

    @property
    def client(self) -> Client:
        if self._client is None:
            raise BrokerUnavailable("the connection to Redis is not open")
        return self._client

    async def ask(self, call: Callable[..., Awaitable[object]], *arguments: object, wait: Micros = 0) -> object:
        """Make a call. ``wait``: how long the call itself waits for something."""
        _ = self.client
        try:
            async with asyncio.timeout((wait + PATIENCE) / SECOND):
                return await call(*arguments)
        except (RedisError, RedisClusterException, OSError, TimeoutError) as error:
            # A replica that refuses writes, or a server that loads its data, counts as unavailable.
            raise BrokerUnavailable(f"Redis does not answer: {str(error) or 'timeout'}") from error

    def listener(self) -> PubSub:
        """Return a subscription. In a cluster the nodes take turns, because each receives all messages."""
        client = self.client
        if isinstance(client, RedisCluster):
            host, port = node = self._address.nodes[self._turn % len(self._address.nodes)]
            self._turn += 1
            if node not in self._nodes:
                self._nodes[node] = redis.Redis(host=host, port=port, **self._options)
            client = self._nodes[node]
        return client.pubsub()

    async def warnings(self) -> list[str]:
        # Many hosting providers refuse CONFIG, so INFO is used.
        policies = sorted({str(memory.get("maxmemory_policy", _SAFE_POLICY)) for memory in await self._memories()})
        return [
            f"Redis drops what it holds when its memory is full (maxmemory-policy {policy}): set {_SAFE_POLICY}"
            for policy in policies
            if policy != _SAFE_POLICY
        ]

    async def _memories(self) -> list[dict[str, object]]:
        client = self.client
        if not isinstance(client, RedisCluster):
            return [msgspec.convert(await self.ask(client.info, "memory"), dict[str, object])]

        async def of_each_master() -> object:
            await client.initialize()
            return [await client.info("memory", target_nodes=node) for node in client.get_primaries()]

        return msgspec.convert(await self.ask(of_each_master), list[dict[str, object]])

    @property
    def _options(self) -> dict[str, Any]:
        return self._safety | {
            "username": self._address.username,
            "password": self._address.password,
            "socket_connect_timeout": PATIENCE / SECOND,
            # Blocking calls have their own time limit in ``ask``.
            "socket_timeout": None,
        }

    @property
    def _safety(self) -> dict[str, Any]:
        tls = self._address.tls
        if tls is None:
            return {}
        files = {"ssl_ca_certs": tls.authority, "ssl_certfile": tls.certificate, "ssl_keyfile": tls.key}
        return {"ssl": True} | {name: path for name, path in files.items() if path}

    def _connect(self) -> Client:
        address, options = self._address, self._options
        match address.kind:
            case "cluster":
                nodes = [ClusterNode(host, port) for host, port in address.nodes]
                return RedisCluster(startup_nodes=nodes, **options)
            case "sentinel":
                patience: dict[str, Any] = {
                    "socket_timeout": _SENTINEL_PATIENCE,
                    "socket_connect_timeout": _SENTINEL_PATIENCE,
                    "retry": _AT_ONCE,
                }
                self._sentinel = Sentinel(  # type: ignore[no-untyped-call]
                    address.nodes, sentinel_kwargs=self._safety | patience, retry=_AT_ONCE, **options
                )
                client: redis.Redis = self._sentinel.master_for(address.master, db=address.database)
                return client
            case "server":
                [(host, port)] = address.nodes
                return redis.Redis(host=host, port=port, db=address.database, retry=_AT_ONCE, **options)
