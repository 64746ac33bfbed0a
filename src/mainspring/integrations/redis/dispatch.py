"""The Redis broker: for each queue a sorted set of hints by rank, and one of taken hints by lease end.

A third key is a list of tokens that idle takers wait for:

- Publishing adds tokens.
- A taker that empties the queue removes them.
- A taker that leaves hints adds one.

So there is a token whenever a hint is available, and few needless tokens. If a taker dies with a token, the other
takers wait until their timeout.
"""

from collections.abc import Sequence
from itertools import groupby

import msgspec

from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.model.cluster.hints import Hint, HintCodec
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.dispatch import LEASE, HintDelivery
from mainspring.integrations.redis.address import parse_redis
from mainspring.integrations.redis.servers import RedisServers

#: The batch size of scripts, which block the server while they run.
_BATCH = 1_000
#: The largest number of takers that a batch wakes; each taker that leaves hints wakes the next.
_TOKENS = 16

_PUBLISH = f"""
redis.call('ZADD', KEYS[1], unpack(ARGV))
local tokens = math.min(#ARGV / 2, {_TOKENS} - redis.call('LLEN', KEYS[3]))
for _ = 1, tokens do redis.call('RPUSH', KEYS[3], '') end
"""
#: The rank follows the id in the message. A foreign message of the same length returns with an arbitrary rank.
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

    def __init__(self, url: str, clock: Clock, codec: HintCodec, lease: Micros = LEASE) -> None:
        self.refused = 0
        self._servers = RedisServers(parse_redis(url, "dispatch.broker"))
        self._clock = clock
        self._codec = codec
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
        for queue, group in groupby(sorted(hints, key=_get_hint_queue), _get_hint_queue):
            messages = [(hint.rank, self._codec.encode(hint)) for hint in group]
            for start in range(0, len(messages), _BATCH):
                scores = [word for pair in messages[start : start + _BATCH] for word in pair]
                await self._servers.ask(self._publish, self._keys(queue), scores)

    async def take(self, queue: str, limit: int, wait: Micros) -> list[HintDelivery]:
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

    async def _sorted_out(self, queue: str, messages: Sequence[bytes]) -> list[HintDelivery]:
        deliveries, strange = [], []
        for message in messages:
            hint = self._codec.decode(queue, message)
            if hint is None:
                strange.append(message)
            else:
                deliveries.append(HintDelivery(hint, message))
        if strange:
            self.refused += len(strange)
            await self._servers.ask(self._servers.client.zrem, self._keys(queue)[1], *strange)
        return deliveries

    async def done(self, deliveries: Sequence[HintDelivery]) -> None:
        for queue, group in groupby(sorted(deliveries, key=_get_delivery_queue), _get_delivery_queue):
            # Only taken hints are removed: a released run may be ready again with the same message.
            receipts = [delivery.receipt for delivery in group]
            await self._servers.ask(self._servers.client.zrem, self._keys(queue)[1], *receipts)

    async def depth(self, queue: str) -> int:
        return msgspec.convert(await self._servers.ask(self._servers.client.zcard, self._keys(queue)[0]), int)

    async def warnings(self) -> list[str]:
        return await self._servers.warnings()

    def _keys(self, queue: str) -> list[str]:
        # The braces put all keys on one node of a cluster, as scripts require.
        name = f"{{mainspring:{self._namespace}:{queue}}}"
        return [f"{name}:ready", f"{name}:taken", f"{name}:tokens"]


def _get_hint_queue(hint: Hint) -> str:
    return hint.queue


def _get_delivery_queue(delivery: HintDelivery) -> str:
    return delivery.hint.queue
