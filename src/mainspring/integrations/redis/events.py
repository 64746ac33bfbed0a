"""The Redis event sink: one stream per topic, trimmed to an approximate length.

One script adds a batch atomically, and rejects a batch of an earlier epoch in the same step.
"""

from collections.abc import Sequence

import msgspec

from mainspring.core.model.base.errors import Fenced
from mainspring.core.model.base.instant import HOUR, SECOND, Micros
from mainspring.core.model.events.events import Event, Topic
from mainspring.integrations.redis.address import RedisAddress
from mainspring.integrations.redis.servers import RedisServers

#: The batch size of the script, which blocks the server while it runs.
_BATCH = 1_000
#: Added to the time limit of a call, because a thousand events take longer than one.
_PATIENCE: Micros = 3 * SECOND
#: How long an epoch is kept after the last batch: longer than any process may be suspended.
_EPOCH_KEPT: Micros = HOUR
_TOPICS = list(Topic)
_NUMBERS = {topic: number for number, topic in enumerate(_TOPICS, 2)}

_ADD = """
local newest = tonumber(redis.call('GET', KEYS[1]) or '0')
if newest > tonumber(ARGV[1]) then return newest end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[3])
local words = cmsgpack.unpack(ARGV[4])
for i = 1, #words, 3 do
    redis.call('XADD', KEYS[words[i]], 'MAXLEN', '~', ARGV[2], '*', 'type', words[i + 1], 'event', words[i + 2])
end
return 0
"""


class RedisSink:
    name = "redis"

    def __init__(self, address: RedisAddress, length: int) -> None:
        self._servers = RedisServers(address)
        self._length = length

    async def open(self, source: str) -> None:
        self._add = self._servers.open().register_script(_ADD)
        # The braces put all keys on one node of a cluster, as scripts require.
        self._keys = [f"{{mainspring}}:epoch:{source}", *(f"{{mainspring}}:{topic}" for topic in _TOPICS)]

    async def close(self) -> None:
        await self._servers.close()

    def demands(self, kind: str, tenant: str) -> bool:
        return True

    async def publish(self, events: Sequence[Event], epoch: int) -> None:
        for start in range(0, len(events), _BATCH):
            words: list[int | str] = []
            for event in events[start : start + _BATCH]:
                words += (_NUMBERS[event.topic], event.type, event.body.decode())
            # A single argument is faster in the client. The texts are strings, because the server's decoder reads no
            # other type.
            batch = msgspec.msgpack.encode(words)
            arguments = [epoch, self._length, _EPOCH_KEPT // SECOND, batch]
            newest = await self._servers.ask(self._add, self._keys, arguments, wait=_PATIENCE)
            if newest:
                raise Fenced(f"epoch {newest} tells by now")
