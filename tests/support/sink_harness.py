"""The event sinks behind one surface for tests, and a consumer that reads them."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import msgspec
import redis.asyncio as redis
from confluent_kafka import Consumer, KafkaException, TopicPartition

from mainspring.core.model.base.instant import SECOND
from mainspring.core.model.events.events import Event, Subject, Topic, compose
from mainspring.core.ports.events_out import Sink
from mainspring.integrations.kafka.address import parse_kafka
from mainspring.integrations.kafka.events import KafkaSink
from mainspring.integrations.redis.address import parse_redis
from mainspring.integrations.redis.events import RedisSink
from tests.support.memory_sink import MemorySink
from tests.support.waiting import wait_until

NOW = 1_790_000_000 * SECOND


class SinkHarness(ABC):
    """Other tests use the same server, so events are filtered by their source."""

    #: The name in the settings.
    kind = ""
    address = ""
    #: It rejects events of a publisher that was replaced.
    fences = True

    def __init__(self) -> None:
        self.source = f"/mainspring/{uuid4().hex}"
        self._opened: list[Sink] = []
        self._made = 0

    @abstractmethod
    async def begin(self) -> None:
        """Ignore all events until now, which other tests have published."""

    async def another(self) -> Sink:
        """Open one more sink to the same server, as another process would."""
        made = self.make()
        await made.open(self.source)
        self._opened.append(made)
        return made

    def events(self, ids: Sequence[str], kind: str = "run.started", key: str = "") -> list[Event]:
        self._made += 1
        subjects = {each: Subject(key or each, "greet", "default") for each in ids}
        made = compose(self.source, kind, ids, subjects, position=f"{self._made:09}", at=NOW, tenant="default")
        return list(made)

    @abstractmethod
    def make(self) -> Sink: ...

    @abstractmethod
    async def bodies(self, topic: Topic) -> list[bytes]:
        """All events since ``begin``, in the order of the server if it has one."""

    async def found(self, topic: Topic = Topic.JOBS) -> list[str]:
        """The ids of our events."""
        decoded = [msgspec.json.decode(body) for body in await self.bodies(topic)]
        return [event["id"] for event in decoded if event["source"] == self.source]

    async def close(self) -> None:
        for made in self._opened:
            await made.close()


class OnMemory(SinkHarness):
    """In memory there is one sink for all."""

    def __init__(self) -> None:
        super().__init__()
        self._sink = MemorySink()

    def make(self) -> Sink:
        return self._sink

    async def begin(self) -> None:
        """There are no older events."""

    async def bodies(self, topic: Topic) -> list[bytes]:
        return [event.body for event in self._sink.topics[topic]]


class OnRedis(SinkHarness):
    kind = "redis"

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address
        self._newest: dict[Topic, str] = {}

    def make(self) -> Sink:
        return RedisSink(parse_redis(self.address, "events.redis"), 100_000)

    async def bodies(self, topic: Topic) -> list[bytes]:
        found: list[bytes] = []
        after = self._newest.get(topic, "0")
        async with redis.Redis.from_url(self.address, socket_timeout=60) as opened:
            client: Any = opened
            while entries := await client.xrange(f"{{mainspring}}:{topic}", f"({after}", count=5_000):
                found += [fields[b"event"] for _, fields in entries]
                after = entries[-1][0].decode()
        return found

    async def begin(self) -> None:
        async with redis.Redis.from_url(self.address, socket_timeout=60) as opened:
            client: Any = opened
            for topic in Topic:
                for entry, _ in await client.xrevrange(f"{{mainspring}}:{topic}", count=1):
                    self._newest[topic] = entry.decode()


class OnKafka(SinkHarness):
    kind = "kafka"
    fences = False

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address
        #: By topic and partition.
        self._ends: dict[tuple[str, int], int] = {}

    def make(self) -> Sink:
        return KafkaSink(parse_kafka(self.address, "test"))

    async def begin(self) -> None:
        def look(consumer: Consumer) -> None:
            there = consumer.list_topics(timeout=60).topics
            for topic in Topic:
                for number in there[topic].partitions if topic in there else ():
                    self._ends[topic, number] = read_offsets(consumer, topic, number)[1]

        await asyncio.to_thread(self._consume, look)

    async def bodies(self, topic: Topic) -> list[bytes]:
        found: list[bytes] = []

        def read(consumer: Consumer) -> None:
            """Read one partition after the other, up to its current end."""
            for number in consumer.list_topics(topic, timeout=60).topics[topic].partitions:
                first, end = read_offsets(consumer, topic, number)
                start = max(first, self._ends.get((topic, number), 0))
                if start == end:
                    continue
                consumer.assign([TopicPartition(topic, number, start)])
                while start < end:
                    for message in consumer.consume(min(1_000, end - start), timeout=60):
                        value, offset = message.value(), message.offset()
                        assert value is not None
                        assert offset is not None
                        found.append(bytes(value))
                        start = offset + 1

        await asyncio.to_thread(self._consume, read)
        return found

    def _consume(self, work: Callable[[Consumer], None]) -> None:
        server = self.address.removeprefix("kafka://")
        consumer = Consumer({"bootstrap.servers": server, "group.id": uuid4().hex, "enable.auto.commit": False})
        try:
            work(consumer)
        finally:
            consumer.close()


#: By the names of servers in ``tools/services``.
HARNESSES: dict[str, Callable[[str], SinkHarness]] = {"redis": OnRedis, "kafka": OnKafka}


def read_offsets(consumer: Consumer, topic: str, partition: int) -> tuple[int, int]:
    """The first and the next offset. A partition of a new topic has no leader at first."""

    def offsets() -> tuple[int, int] | None:
        with suppress(KafkaException):
            return consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=60)
        return None

    found = wait_until(offsets, f"partition {partition} of {topic} has no leader")
    assert found is not None
    return found
