"""Kafka: a topic for each, keyed, so that what has one key is in one partition, in order."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from mainspring.core.model.base.errors import EngineUnavailable
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.model.events.events import PARTITIONS, Event
from mainspring.integrations.kafka.address import KafkaServer
from mainspring.integrations.kafka.admin import KafkaAdmin
from mainspring.integrations.kafka.producer import BatchProducer, Headers, Record
from mainspring.integrations.kafka.status_updates import STATUSES, StatusTopic, compose_status_update

_PATIENCE: Micros = 10 * SECOND
#: Nobody waits for it: the client makes large requests of many records.
_LINGER: Micros = 5 * MILLISECOND
_HEADERS: Headers = [("content-type", b"application/cloudevents+json; charset=UTF-8")]
_STATUS_HEADERS: Headers = [("content-type", b"application/json")]


class _InOrder(BatchProducer):
    """When one record is lost, those behind it are not sent: they come again together."""

    def __init__(self, server: KafkaServer) -> None:
        super().__init__(server, _PATIENCE, _LINGER)
        self._options["enable.gapless.guarantee"] = True


class _KafkaTopics:
    """It cannot tell an old epoch from a new one. The publisher stops by itself when its lease is over; what it has
    handed to the client before is sent within its patience, or not at all."""

    def __init__(self, server: KafkaServer, topics: Mapping[str, int]) -> None:
        """``topics``: how many partitions each of them gets that is made here."""
        self._topics = topics
        self._admin = KafkaAdmin(server)
        self._producer = _InOrder(server)
        self._ready = False

    async def open(self, source: str) -> None: ...

    async def close(self) -> None:
        await self._producer.close()

    async def _send(self, records: Sequence[Record]) -> None:
        if not records:
            return
        if not self._ready:
            await self._make_topics()
        try:
            await self._producer.send(records)
        except EngineUnavailable:
            # Whatever it has left of these must not come after what is sent next; and a topic may be gone.
            self._ready = False
            await self._producer.close()
            raise

    async def _make_topics(self) -> None:
        topics = self._topics
        for partitions, names in groupby(sorted(topics, key=topics.__getitem__), topics.__getitem__):
            await self._admin.make_topics(names, partitions, {})
        self._ready = True


class KafkaSink(_KafkaTopics):
    name = "kafka"

    def __init__(self, server: KafkaServer) -> None:
        super().__init__(server, {str(topic): number for topic, number in PARTITIONS.items()})

    def wants(self, kind: str, tenant: str) -> bool:
        return True

    async def publish(self, events: Sequence[Event], epoch: int) -> None:
        await self._send([Record(event.topic, event.body, event.key, _HEADERS) for event in events])


class KafkaStatusSink(_KafkaTopics):
    """One topic of short messages on the status of runs."""

    name = "status_updates"

    def __init__(self, topic: StatusTopic) -> None:
        super().__init__(topic.server, {topic.name: topic.partitions})
        self._topic = topic.name

    def wants(self, kind: str, tenant: str) -> bool:
        return kind in STATUSES

    async def publish(self, events: Sequence[Event], epoch: int) -> None:
        messages = [(event, compose_status_update(event)) for event in events]
        await self._send(
            [Record(self._topic, message, event.key, _STATUS_HEADERS) for event, message in messages if message]
        )
