"""Redis: a sorted set of messages for each queue, by rank, and one of what was taken, by the end of its lease.

A third key is a list of tokens that idle takers wait on. Whoever publishes adds tokens; whoever finds nothing removes
them; whoever leaves something adds one. So a token is there whenever something can be taken, and few are there for
nothing. A taker that dies with a token costs the others the rest of their wait.
"""

from collections.abc import Sequence
from itertools import groupby

import msgspec

from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.model.cluster.hints import Hint, Sealer
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.dispatch import LEASE, Delivery
from mainspring.integrations.redis.address import read_redis
from mainspring.integrations.redis.servers import RedisServers

#: What one script is given at once: it keeps the server for itself while it runs.
_BATCH = 1_000
#: So many takers are woken by one batch at most; whoever leaves something wakes the next.
_TOKENS = 16

_PUBLISH = f"""
redis.call('ZADD', KEYS[1], unpack(ARGV))
local tokens = math.min(#ARGV / 2, {_TOKENS} - redis.call('LLEN', KEYS[3]))
for _ = 1, tokens do redis.call('RPUSH', KEYS[3], '') end
"""
#: The rank stands in the message, after the id. What is as long as ours and is not comes back wherever it says.
_TAKE = f"""
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
for _, message in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, {_BATCH})) do
    redis.call('ZREM', KEYS[2], message)
    if #message == 40 then redis.call('ZADD', KEYS[1], (struct.unpack('>i8', message, 17)), message) end
end
local found = redis.call('ZPOPMIN', KEYS[1], ARGV[1])
local messages, leases = {{}}, {{}}
for i = 1, #found, 2 do
    messages[#messages + 1] = found[i]
    leases[#leases + 1] = now + ARGV[2]
    leases[#leases + 1] = found[i]
end
if #leases > 0 then redis.call('ZADD', KEYS[2], unpack(leases)) end
if redis.call('EXISTS', KEYS[1]) == 0 then
    redis.call('DEL', KEYS[3])
elseif redis.call('EXISTS', KEYS[3]) == 0 then
    redis.call('RPUSH', KEYS[3], '')
end
return messages
"""


class RedisDispatch:
    kind = "redis"

    def __init__(self, url: str, clock: Clock, sealer: Sealer, lease: Micros = LEASE) -> None:
        self.refused = 0
        self._servers = RedisServers(read_redis(url, "dispatch.engine"))
        self._clock = clock
        self._sealer = sealer
        self._lease = lease
        self._namespace = ""

    async def open(self, namespace: str) -> None:
        self._namespace = namespace
        client = self._servers.open()
        self._publish = client.register_script(_PUBLISH)
        self._take = client.register_script(_TAKE)

    async def close(self) -> None:
        await self._servers.close()

    async def publish(self, hints: Sequence[Hint]) -> None:
        for queue, group in groupby(sorted(hints, key=_queue), _queue):
            messages = [(hint.rank, self._sealer.seal(hint)) for hint in group]
            for start in range(0, len(messages), _BATCH):
                scores = [word for pair in messages[start : start + _BATCH] for word in pair]
                await self._servers.ask(self._publish, self._keys(queue), scores)

    async def take(self, queue: str, limit: int, wait: Micros) -> list[Delivery]:
        until = self._clock.monotonic() + wait
        keys = self._keys(queue)
        while limit > 0:
            arguments = [min(limit, _BATCH), self._lease // MILLISECOND]
            found = await self._servers.ask(self._take, keys, arguments)
            messages = msgspec.convert(found, list[bytes])
            deliveries = await self._sorted_out(queue, messages)
            left = until - self._clock.monotonic()
            if deliveries or (left <= 0 and not messages):
                return deliveries
            if not messages:
                await self._servers.ask(self._servers.client.blpop, keys[2:], left / SECOND, wait=left)
        return []

    async def _sorted_out(self, queue: str, messages: Sequence[bytes]) -> list[Delivery]:
        deliveries, strange = [], []
        for message in messages:
            hint = self._sealer.open(queue, message)
            if hint is None:
                strange.append(message)
            else:
                deliveries.append(Delivery(hint, message))
        if strange:
            self.refused += len(strange)
            await self._servers.ask(self._servers.client.zrem, self._keys(queue)[1], *strange)
        return deliveries

    async def done(self, deliveries: Sequence[Delivery]) -> None:
        for queue, group in groupby(sorted(deliveries, key=_queue_of), _queue_of):
            # Not from what is ready: a run that was given back since may stand there under the same message.
            receipts = [delivery.receipt for delivery in group]
            await self._servers.ask(self._servers.client.zrem, self._keys(queue)[1], *receipts)

    async def depth(self, queue: str) -> int:
        return msgspec.convert(await self._servers.ask(self._servers.client.zcard, self._keys(queue)[0]), int)

    async def warnings(self) -> list[str]:
        return await self._servers.warnings()

    def _keys(self, queue: str) -> list[str]:
        # In braces: in a cluster all three are on one node, which a script must be able to count on.
        name = f"{{mainspring:{self._namespace}:{queue}}}"
        return [f"{name}:ready", f"{name}:taken", f"{name}:tokens"]


def _queue(hint: Hint) -> str:
    return hint.queue


def _queue_of(delivery: Delivery) -> str:
    return delivery.hint.queue
