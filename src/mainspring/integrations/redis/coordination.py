"""The Redis coordinator: members with expiry times, and a table of owners that scripts update.

Redis may lose writes: after a failover the replica may miss the newest ones. Then two members may own a shard for a
moment. This is harmless, because the store checks the fence.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec
import redis.asyncio as redis
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from mainspring.core.model.base.errors import Fenced, StoreUnavailable
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.registry import View
from mainspring.core.runtime.tasks import cancel_and_wait
from mainspring.integrations.shard_table import decode_owners, encode_owners

_BEFORE_LISTENING_AGAIN: Micros = SECOND // 2
#: The server's clock. Every read removes expired members, and notifies the others.
_NOW = "local t = redis.call('TIME') local now = t[1] * 1000 + math.floor(t[2] / 1000) "
_CHANGED = "redis.call('PUBLISH', KEYS[3], '') "
_ENTER = _NOW + "redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1]) " + _CHANGED
_LOOK = (
    _NOW
    + "local dead = redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now) if dead > 0 then "
    + _CHANGED
    + "end if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return false end "
    "redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1]) "
    "return {redis.call('ZRANGE', KEYS[1], 0, -1), redis.call('HMGET', KEYS[2], 'version', 'owners')}"
)
_WRITE = (
    _NOW + "local until_ = redis.call('ZSCORE', KEYS[1], ARGV[1]) "
    "if not until_ or tonumber(until_) <= now then return 0 end "
    "if (redis.call('HGET', KEYS[2], 'version') or '0') ~= ARGV[2] then return 0 end "
    "redis.call('HSET', KEYS[2], 'version', ARGV[2] + 1, 'owners', ARGV[3]) " + _CHANGED + "return 1"
)
_EXIT = "if redis.call('ZREM', KEYS[1], ARGV[1]) > 0 then " + _CHANGED + "end"


def _convert(found: object) -> tuple[list[bytes], tuple[bytes | None, bytes | None]]:
    return msgspec.convert(found, tuple[list[bytes], tuple[bytes | None, bytes | None]])


class RedisRegistry:
    def __init__(self, url: str, clock: Clock) -> None:
        self._url = url
        self._clock = clock
        self._listeners: list[Callable[[], None]] = []
        self._ttls: dict[SessionId, Micros] = {}
        self._keys: list[str] = []
        self._client: redis.Redis | None = None
        self._listening: asyncio.Task[None] | None = None
        self._patience: Micros = 2 * SECOND

    async def open(self, namespace: str) -> None:
        # The braces put all keys on one node of a cluster, as scripts require.
        self._keys = [f"{{mainspring:{namespace}}}:{name}" for name in ("members", "owners", "changed")]
        self._client = redis.Redis.from_url(self._url, socket_connect_timeout=2)
        self._listening = asyncio.create_task(self._listen(self._client), name="redis-registry")

    async def close(self) -> None:
        client, self._client = self._client, None
        listening, self._listening = self._listening, None
        if listening is not None:
            await cancel_and_wait(listening)
        if client is not None:
            await client.aclose()

    async def enter(self, member: SessionId, ttl: Micros) -> None:
        self._patience = max(ttl // 6, 300 * MILLISECOND)
        await self._run(_ENTER, member, ttl // MILLISECOND)
        self._ttls[member] = ttl

    async def look(self, member: SessionId) -> View:
        ttl = self._ttls.get(member)
        found = None if ttl is None else await self._run(_LOOK, member, ttl // MILLISECOND)
        if ttl is None or found is None:
            self._ttls.pop(member, None)
            raise Fenced(f"member {member} is not one any more in Redis")
        members, (version, owners) = _convert(found)
        return View(
            members=frozenset(SessionId(int(name)) for name in members),
            owners=decode_owners(owners or b""),
            version=int(version or 0),
            lease=ttl,
        )

    async def write(self, member: SessionId, owners: Mapping[int, SessionId], version: int) -> bool:
        return await self._run(_WRITE, member, version, encode_owners(owners)) == 1

    async def exit(self, member: SessionId) -> None:
        self._ttls.pop(member, None)
        await self._run(_EXIT, member)

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    async def _run(self, script: str, *arguments: int | bytes) -> object:
        if self._client is None:
            raise StoreUnavailable("the connection to Redis is not open")
        try:
            async with asyncio.timeout(self._patience / SECOND):
                return await self._client.eval(script, len(self._keys), *self._keys, *arguments)
        except (RedisError, OSError, TimeoutError) as error:
            # A replica that refuses writes, or a server that loads its data, counts as unavailable.
            raise StoreUnavailable(f"Redis does not answer: {str(error) or 'timeout'}") from error

    async def _listen(self, client: redis.Redis) -> None:
        # Cancellation alone is not enough: while connecting, the library turns it into one of its errors.
        while self._client is client:
            with suppress(RedisError, OSError):
                async with client.pubsub(ignore_subscribe_messages=True) as subscription:
                    await subscription.subscribe(self._keys[2])
                    await self._tell(subscription)
            if self._client is client:
                await self._clock.sleep(_BEFORE_LISTENING_AGAIN)

    async def _tell(self, subscription: PubSub) -> None:
        async for _ in subscription.listen():
            for listener in self._listeners:
                listener()
