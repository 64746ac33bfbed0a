"""The Kafka broker: hints in topics, keyed by a number derived from the ordering key, and one consumer group per queue.

Kafka assigns partitions, so a consumer only receives hints from its own partitions. In a shared topic, records of
another queue or store are skipped. A hint that is not done in time is sent again.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby, takewhile

from mainspring.core.model.base.errors import BrokerUnavailable
from mainspring.core.model.base.instant import HOUR, MILLISECOND, Micros
from mainspring.core.model.cluster.hints import Hint, HintCodec
from mainspring.core.model.runs.dead_letters import DeadRun
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.dispatch import LEASE, HintDelivery
from mainspring.integrations.kafka.address import parse_kafka
from mainspring.integrations.kafka.admin import KafkaAdmin
from mainspring.integrations.kafka.consumer import BatchConsumer, ConsumedRecord
from mainspring.integrations.kafka.producer import BatchProducer, Record
from mainspring.integrations.kafka.topics import OPTIONS, read_topics

_FIELD = "dispatch.broker"
#: The header with the owner of a record: the store and the queue.
_STORE_HEADER = "mainspring"
#: An older hint is stale, or was published again.
_KEPT: Micros = HOUR
_DEAD_KEPT: Micros = 7 * 24 * HOUR
_DEAD_PARTITIONS = 1

_Position = tuple[str, int, int]


class KafkaDispatch:
    kind = "kafka"

    def __init__(self, url: str, clock: Clock, codec: HintCodec, lease: Micros = LEASE, datacenter: str = "") -> None:
        self.refused = 0
        self._server = parse_kafka(url, _FIELD, OPTIONS)
        self._names = read_topics(self._server, _FIELD)
        self._clock = clock
        self._codec = codec
        self._lease = lease
        #: Workers in a data center read the topics of that data center, and those for any data center.
        self.by_datacenter = self._names.by_datacenter
        self._datacenter = datacenter
        self._namespace = ""
        self._producer: BatchProducer | None = None
        self._admin = KafkaAdmin(self._server)
        #: The topics of each queue to which this process has published.
        self._used: defaultdict[str, set[str]] = defaultdict(set)
        #: Topics that exist, as far as is known.
        self._known: set[str] = set()
        self._consumers: dict[str, BatchConsumer] = {}
        #: Taken hints that are not done, with the end of their lease, the oldest first.
        self._held: OrderedDict[_Position, tuple[Micros, str, ConsumedRecord]] = OrderedDict()

    async def open(self, namespace: str) -> None:
        self._namespace = namespace
        self._producer = BatchProducer(self._server)

    async def close(self) -> None:
        consumers, self._consumers = self._consumers, {}
        for consumer in consumers.values():
            await consumer.close()
        self._held.clear()
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close()

    async def publish(self, hints: Sequence[Hint]) -> None:
        records = [
            Record(
                self._names.of(hint),
                self._codec.encode(hint),
                hint.key or hint.run,
                [(_STORE_HEADER, self._find_store_id(hint.queue))],
            )
            for hint in sorted(hints, key=_read_rank)
        ]
        for hint in hints:
            if hint.datacenter:
                self._used[hint.queue].add(self._names.of(hint))
        await self._send(records, self._names.partitions, _KEPT)

    async def publish_dead(self, dead: Sequence[DeadRun]) -> None:
        records = [Record(self._names.dead, run.message(), run.id) for run in dead]
        await self._send(records, _DEAD_PARTITIONS, _DEAD_KEPT)

    async def take(self, queue: str, limit: int, wait: Micros) -> list[HintDelivery]:
        until = self._clock.monotonic() + wait
        while limit > 0:
            consumer = await self._consumer(queue)
            await self._send_again()
            left = max(until - self._clock.monotonic(), 0)
            received = await consumer.take(limit, left)
            deliveries = self._sorted_out(queue, received, consumer)
            if deliveries or (not received and self._clock.monotonic() >= until):
                return deliveries
        return []

    async def done(self, deliveries: Sequence[HintDelivery]) -> None:
        for queue, group in groupby(sorted(deliveries, key=_get_queue), _get_queue):
            receipts = [delivery.receipt for delivery in group if isinstance(delivery.receipt, ConsumedRecord)]
            for one in receipts:
                self._held.pop(_read_position(one), None)
            if (consumer := self._consumers.get(queue)) is not None:
                consumer.done(receipts)

    async def depth(self, queue: str) -> int:
        topics = {*self._names.served(queue, self._datacenter), *self._used[queue]}
        return await self._admin.lag(self._group(queue), sorted(topics))

    async def warnings(self) -> list[str]:
        await self._admin.check()
        partitions = await self._admin.partitions([*self._known])
        return [
            f"topic {name} has one partition: Kafka feeds one worker of a queue at a time"
            for name, number in sorted(partitions.items())
            if number == 1 and name != self._names.dead
        ]

    async def _consumer(self, queue: str) -> BatchConsumer:
        """Return the consumer of a queue. Its topics are created first, because a group notices a new topic late."""
        topics = self._names.served(queue, self._datacenter)
        consumer = self._consumers.get(queue)
        if consumer is None or consumer.missing:
            self._known.difference_update(topics)
            await self._make(topics, self._names.partitions, _KEPT)
        if consumer is None:
            self._connected()
            consumer = BatchConsumer(self._server, self._group(queue), topics, self._clock)
            consumer = self._consumers.setdefault(queue, consumer)
        consumer.missing = False
        return consumer

    def _sorted_out(
        self, queue: str, received: Sequence[ConsumedRecord], consumer: BatchConsumer
    ) -> list[HintDelivery]:
        store_id, until = self._find_store_id(queue), self._clock.monotonic() + self._lease
        deliveries, passed = [], []
        for one in received:
            if any(name == _STORE_HEADER and value != store_id for name, value in one.headers):
                passed.append(one)
            elif (hint := self._codec.decode(queue, one.value)) is None:
                self.refused += 1
                passed.append(one)
            else:
                self._held[_read_position(one)] = (until, queue, one)
                deliveries.append(HintDelivery(hint, one))
        if passed:
            consumer.done(passed)
        return deliveries

    async def _send_again(self) -> None:
        """Send hints again that were not done in time, for any consumer."""
        now = self._clock.monotonic()
        late = list(takewhile(lambda held: held[0] <= now, self._held.values()))
        if not late:
            return
        mine = [one for _, _, one in late if not one.track.lost]
        records = [Record(one.topic, one.value, one.key, [*one.headers]) for one in mine]
        await self._connected().send(records)
        for _, queue, one in late:
            self._held.pop(_read_position(one), None)
            self._consumers[queue].done([one])

    async def _send(self, records: Sequence[Record], partitions: int, kept: Micros) -> None:
        topics = {record.topic for record in records}
        producer = self._connected()
        try:
            await self._make(topics, partitions, kept)
            await producer.send(records)
        except BrokerUnavailable:
            # A topic may have been deleted; the next call creates it again.
            self._known.difference_update(topics)
            raise

    async def _make(self, topics: Iterable[str], partitions: int, kept: Micros) -> None:
        if missing := set(topics) - self._known:
            await self._admin.make_topics(missing, partitions, {"retention.ms": str(kept // MILLISECOND)})
            self._known |= missing

    def _connected(self) -> BatchProducer:
        if self._producer is None:
            raise BrokerUnavailable("the connection to Kafka is not open")
        return self._producer

    def _group(self, queue: str) -> str:
        return f"mainspring.{self._namespace}.{queue}"

    def _find_store_id(self, queue: str) -> bytes:
        return f"{self._namespace}/{queue}".encode()


def _read_rank(hint: Hint) -> int:
    return hint.rank


def _get_queue(delivery: HintDelivery) -> str:
    return delivery.hint.queue


def _read_position(one: ConsumedRecord) -> _Position:
    return one.topic, one.partition, one.offset
