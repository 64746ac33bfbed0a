"""The Kafka event sinks: keyed records, so that events with the same key stay in order in one partition."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from mainspring.core.model.base.errors import BrokerUnavailable
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.model.events.events import PARTITIONS, Event
from mainspring.integrations.kafka.address import KafkaAddress
from mainspring.integrations.kafka.admin import KafkaAdmin
from mainspring.integrations.kafka.producer import BatchProducer, Headers, Record
from mainspring.integrations.kafka.status_updates import STATUSES, StatusTopic, compose_status_update

_PATIENCE: Micros = 10 * SECOND
#: No caller waits for events, so the client collects many records in one request.
_LINGER: Micros = 5 * MILLISECOND
_HEADERS: Headers = [("content-type", b"application/cloudevents+json; charset=UTF-8")]
_STATUS_HEADERS: Headers = [("content-type", b"application/json")]


class _OrderedPublisher(BatchProducer):
    """A producer that stops after a lost record, so that the records after it are sent again with it, in order."""

    def __init__(self, server: KafkaAddress) -> None:
        super().__init__(server, _PATIENCE, _LINGER)
        self._options["enable.gapless.guarantee"] = True


class _KafkaTopics:
    """Publishes events to topics.

    Kafka cannot check epochs. The publisher stops by itself when its lease ends. Records that it has passed to the
    client before are sent within the time limit, or dropped.
    """

    def __init__(self, server: KafkaAddress, topics: Mapping[str, int]) -> None:
        """``topics``: the number of partitions for each topic that is created here."""
        self._topics = topics
        self._admin = KafkaAdmin(server)
        self._producer = _OrderedPublisher(server)
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
        except BrokerUnavailable:
            # The remaining records must not follow those that are sent next. Also, a topic may have been deleted.
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

    def __init__(self, server: KafkaAddress) -> None:
        super().__init__(server, {str(topic): number for topic, number in PARTITIONS.items()})

    def demands(self, kind: str, tenant: str) -> bool:
        return True

    async def publish(self, events: Sequence[Event], epoch: int) -> None:
        await self._send([Record(event.topic, event.body, event.key, _HEADERS) for event in events])


class KafkaStatusSink(_KafkaTopics):
    """Publishes short messages on the status of runs to one topic."""

    name = "status_updates"

    def __init__(self, topic: StatusTopic) -> None:
        super().__init__(topic.server, {topic.name: topic.partitions})
        self._topic = topic.name

    def demands(self, kind: str, tenant: str) -> bool:
        return kind in STATUSES

    async def publish(self, events: Sequence[Event], epoch: int) -> None:
        updates = [update for event in events if (update := compose_status_update(event)) is not None]
        await self._send([Record(self._topic, message, key, _STATUS_HEADERS) for key, message in updates])
