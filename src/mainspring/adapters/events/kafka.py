"""Kafka: a topic for each, keyed, so that what has one key is in one partition, in order."""

from collections.abc import Sequence
from itertools import groupby

from mainspring.adapters.kafka.admin import KafkaAdmin
from mainspring.adapters.kafka.producer import BatchProducer, Headers, Record
from mainspring.domain.errors import EngineUnavailable
from mainspring.domain.events import PARTITIONS, Event
from mainspring.domain.instant import MILLISECOND, SECOND, Micros
from mainspring.domain.kafka import KafkaServer

_PATIENCE: Micros = 10 * SECOND
#: Nobody waits for it: the client makes large requests of many records.
_LINGER: Micros = 5 * MILLISECOND
_HEADERS: Headers = [("content-type", b"application/cloudevents+json; charset=UTF-8")]


class _InOrder(BatchProducer):
    """When one record is lost, those behind it are not sent: they come again together."""

    def __init__(self, server: KafkaServer) -> None:
        super().__init__(server, _PATIENCE, _LINGER)
        self._options["enable.gapless.guarantee"] = True


class KafkaSink:
    """It cannot tell an old epoch from a new one. The publisher stops by itself when its lease is over; what it has
    handed to the client before is sent within its patience, or not at all."""

    name = "kafka"

    def __init__(self, server: KafkaServer) -> None:
        self._admin = KafkaAdmin(server)
        self._producer = _InOrder(server)
        self._ready = False

    async def open(self, source: str) -> None: ...

    async def close(self) -> None:
        await self._producer.close()

    def wants(self, kind: str, tenant: str) -> bool:
        return True

    async def publish(self, events: Sequence[Event], epoch: int) -> None:
        if not events:
            return
        if not self._ready:
            await self._make_topics()
        try:
            await self._producer.send([Record(event.topic, event.body, event.key, _HEADERS) for event in events])
        except EngineUnavailable:
            # Whatever it has left of these must not come after what is sent next; and a topic may be gone.
            self._ready = False
            await self._producer.close()
            raise

    async def _make_topics(self) -> None:
        for partitions, topics in groupby(sorted(PARTITIONS, key=PARTITIONS.__getitem__), PARTITIONS.__getitem__):
            await self._admin.make_topics(topics, partitions, {})
        self._ready = True
