"""The brokers behind one surface for tests, which can also add messages as an intruder would."""

import asyncio
from abc import ABC, abstractmethod
from uuid import uuid4

from mainspring.core.model.base.instant import MILLISECOND, Micros
from mainspring.core.model.cluster.hints import HintCodec
from mainspring.core.ports.dispatch import Broker
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.integrations.kafka.address import parse_kafka
from mainspring.integrations.kafka.admin import KafkaAdmin
from mainspring.integrations.kafka.dispatch import KafkaDispatch
from mainspring.integrations.kafka.producer import BatchProducer, Record
from mainspring.integrations.rabbitmq.dispatch import RabbitDispatch
from mainspring.integrations.redis.address import parse_redis
from mainspring.integrations.redis.dispatch import RedisDispatch
from mainspring.integrations.redis.servers import RedisServers
from tests.support import rabbitmq
from tests.support.memory_dispatch import MemoryDispatch

SHORT_LEASE: Micros = 300 * MILLISECOND


class DispatchHarness(ABC):
    #: Hints come strictly by priority; otherwise about in the order of publishing.
    ordered = True
    #: A more urgent hint overtakes others.
    prioritised = True
    #: All takers share the hints; otherwise each has its partitions, and wakes for these alone.
    shared = True

    def __init__(self) -> None:
        self.namespace = uuid4().hex
        self.codec = HintCodec(b"a key")
        self._opened: list[Broker] = []

    async def another(self, lease: Micros = SHORT_LEASE, *, key: bytes = b"a key", namespace: str = "") -> Broker:
        """Open one more connection to the broker, for the same store unless ``namespace`` names another one."""
        made = self.make(lease, HintCodec(key))
        await made.open(namespace or self.namespace)
        self._opened.append(made)
        return made

    @abstractmethod
    def make(self, lease: Micros, codec: HintCodec) -> Broker: ...

    @abstractmethod
    async def smuggle(self, queue: str, message: bytes) -> None:
        """Put bytes into a queue as an intruder with access to the broker could."""

    async def close(self) -> None:
        for made in self._opened:
            await made.close()


class OnMemory(DispatchHarness):
    """In memory there is one broker for all."""

    _made: MemoryDispatch | None = None

    def make(self, lease: Micros, codec: HintCodec) -> Broker:
        if self._made is None:
            self._made = MemoryDispatch(SystemClock(), codec, lease)
        return self._made

    async def smuggle(self, queue: str, message: bytes) -> None:
        assert self._made is not None
        self._made.put(queue, message)


class OnServer(DispatchHarness):
    """On a server of ``tools/services``."""

    service: str
    options = ""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address + self.options


class OnRedis(OnServer):
    service = "redis"

    def make(self, lease: Micros, codec: HintCodec) -> Broker:
        return RedisDispatch(self.address, SystemClock(), codec, lease)

    async def smuggle(self, queue: str, message: bytes) -> None:
        servers = RedisServers(parse_redis(self.address, "address"))
        await servers.open().zadd(f"{{mainspring:{self.namespace}:{queue}}}:ready", {message: 1})
        await servers.close()


class OnSentinels(OnRedis):
    service = "redis-sentinel"


class OnCluster(OnRedis):
    service = "redis-cluster"


class OnRabbit(OnServer):
    """Classic queues."""

    ordered = False
    service = "rabbitmq"

    def make(self, lease: Micros, codec: HintCodec) -> Broker:
        return RabbitDispatch(self.address, SystemClock(), codec, lease)

    async def close(self) -> None:
        """Delete the queues of this test, because the server outlives it."""
        made = {name for one in self._opened if isinstance(one, RabbitDispatch) for name in one._queues._known}
        await super().close()
        await asyncio.to_thread(rabbitmq.delete, self.address, *made)

    def names(self, queue: str) -> tuple[str, ...]:
        """The names of the queues in RabbitMQ."""
        return (f"mainspring.{self.namespace}.queue.{queue}",)

    async def smuggle(self, queue: str, message: bytes) -> None:
        taker = await self.another()
        # This declares the queue.
        await taker.take(queue, 1, 0)
        await asyncio.to_thread(rabbitmq.publish, self.address, self.names(queue)[0], message)


class OnQuorum(OnRabbit):
    """Quorum queues, one for each priority band."""

    options = "?kind=quorum"

    def names(self, queue: str) -> tuple[str, ...]:
        return tuple(f"mainspring.{self.namespace}.p{band}.{queue}" for band in (1, 2, 3))


class OnPriorities(OnRabbit):
    """A queue for each priority, named by a template."""

    options = "?queues=test.{store}.{queue}.priority.{priority}"

    def names(self, queue: str) -> tuple[str, ...]:
        return tuple(f"test.{self.namespace}.{queue}.priority.{priority}" for priority in range(1, 11))


class OnKafka(OnServer):
    """Each partition has one reader."""

    ordered = False
    prioritised = False
    shared = False
    service = "kafka"

    def __init__(self, address: str) -> None:
        super().__init__(address)
        # The stores of a test share topics, but tests do not.
        self.topics = f"run-{self.namespace}.{{queue}}"
        self.url = f"{address}/?topics={self.topics}&retries=retry-{self.namespace}&partitions=3"

    def make(self, lease: Micros, codec: HintCodec) -> Broker:
        return KafkaDispatch(self.url, SystemClock(), codec, lease)

    async def smuggle(self, queue: str, message: bytes) -> None:
        server, topic = parse_kafka(self.address, "address"), self.topics.format(queue=queue)
        # Topics do not exist before their first use.
        await KafkaAdmin(server).make_topics([topic], 3, {})
        producer = BatchProducer(server)
        try:
            await producer.send([Record(topic, message)])
        finally:
            await producer.close()
