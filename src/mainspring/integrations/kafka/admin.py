"""Kafka administration: topics, and the lag of consumer groups."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from mainspring.core.model.base.errors import BrokerUnavailable
from mainspring.core.model.base.instant import SECOND
from mainspring.integrations.kafka.address import KafkaAddress
from mainspring.integrations.kafka.connection import PATIENCE, build_options, build_unavailable

Answer = TypeVar("Answer")

_SECONDS = PATIENCE / SECOND
#: Use the default replication factor of the brokers.
_DEFAULT_COPIES = -1
_LEADERLESS = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.UNKNOWN_LEADER_EPOCH)
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]


#: The topic with the committed offsets of consumer groups.
_ALWAYS_THERE = "__consumer_offsets"


class KafkaAdmin:
    """Only uses calls that return a future, because the client's call that lists topics may never return."""

    def __init__(self, server: KafkaAddress) -> None:
        self._options = build_options(server)
        self._client: AdminClient | None = None

    async def make_topics(self, names: Iterable[str], partitions: int, settings: Mapping[str, str]) -> None:
        """Create the topics that do not exist. If all exist, no permission to create topics is needed."""
        names = list(names)
        there = await self.partitions(names)
        wanted = [
            NewTopic(name, num_partitions=partitions, replication_factor=_DEFAULT_COPIES, config=dict(settings))
            for name in names
            if name not in there
        ]
        if wanted:
            made = self._ask(lambda client: client.create_topics(wanted, request_timeout=_SECONDS))
            for answer in made.values():
                await _wait_for_answer(answer, KafkaError.TOPIC_ALREADY_EXISTS)

    async def delete_topics(self, names: Sequence[str]) -> None:
        deleted = self._ask(lambda client: client.delete_topics(list(names), request_timeout=_SECONDS))
        for answer in deleted.values():
            await _wait_for_answer(answer, KafkaError.UNKNOWN_TOPIC_OR_PART)

    async def partitions(self, names: Sequence[str]) -> dict[str, int]:
        """Return the number of partitions of each existing topic."""
        if not names:
            return {}
        collection = TopicCollection(list(names))
        asked = self._ask(lambda client: client.describe_topics(collection, request_timeout=_SECONDS))
        found = {
            name: await _wait_for_answer(answer, KafkaError.UNKNOWN_TOPIC_OR_PART) for name, answer in asked.items()
        }
        return {name: len(topic.partitions) for name, topic in found.items() if topic is not None}

    async def check(self) -> None:
        """Check that a broker answers, with any answer.

        The request names a topic: for an answer with neither a topic nor a broker, as a starting broker sends, the
        client aborts the process (``describe_cluster`` of librdkafka 2.16).
        """
        collection = TopicCollection([_ALWAYS_THERE])
        asked = self._ask(lambda client: client.describe_topics(collection, request_timeout=_SECONDS))
        try:
            await _wait_for_answer(asked[_ALWAYS_THERE])
        except BrokerUnavailable as error:
            if not _is_of_a_broker(error.__cause__):
                raise

    async def lag(self, group: str, topics: Sequence[str]) -> int:
        """Return how many records of the topics a group has not committed."""
        there = await self.partitions(topics)
        assigned = [TopicPartition(name, number) for name, count in there.items() for number in range(count)]
        if not assigned:
            return 0
        committed = await asyncio.to_thread(self._read_committed, group, assigned)
        starts, ends = await self._offsets(assigned, _EARLIEST), await self._offsets(assigned, _LATEST)
        return sum(
            max(
                ends[one.topic, one.partition] - max(one.offset, starts[one.topic, one.partition]),
                0,
            )
            for one in committed
        )

    def _read_committed(self, group: str, assigned: list[TopicPartition]) -> list[TopicPartition]:
        """Read the offsets with a consumer that does not join the group.

        The call of the administration client ends the process with SIGSEGV if the group has moved to another broker
        (librdkafka issue 5040, open in 2.16).
        """
        consumer = None
        try:
            consumer = Consumer(self._options | {"group.id": group, "enable.auto.commit": False})
            try:
                return consumer.committed(assigned, timeout=_SECONDS)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.NOT_COORDINATOR:
                    raise
                # The failed request made the client look up the new coordinator.
                return consumer.committed(assigned, timeout=_SECONDS)
        except KafkaException as error:
            raise build_unavailable(error) from error
        finally:
            if consumer is not None:
                consumer.close()

    async def _offsets(self, assigned: Sequence[TopicPartition], spec: OffsetSpec) -> dict[tuple[str, int], int]:
        wanted = dict.fromkeys(assigned, spec)
        asked = self._ask(lambda client: client.list_offsets(wanted, request_timeout=_SECONDS))
        # A new topic has no leader yet, and no records.
        found = {
            (one.topic, one.partition): await _wait_for_answer(answer, *_LEADERLESS) for one, answer in asked.items()
        }
        return {one: 0 if info is None else info.offset for one, info in found.items()}

    def _ask(self, call: Callable[[AdminClient], Answer]) -> Answer:
        try:
            if self._client is None:
                self._client = AdminClient(self._options)
            return call(self._client)
        except KafkaException as error:
            raise build_unavailable(error) from error


async def _wait_for_answer(answer: "Future[Answer]", *unless: int) -> Answer | None:
    """Wait for an answer. Return None if it is an error with one of the codes in ``unless``."""
    try:
        async with asyncio.timeout(1.5 * _SECONDS):
            return await asyncio.wrap_future(answer)
    except TimeoutError:
        raise BrokerUnavailable("Kafka does not answer: timeout") from None
    except KafkaException as error:
        if error.args[0].code() in unless:
            return None
        raise build_unavailable(error) from error


def _is_of_a_broker(error: BaseException | None) -> bool:
    """Return whether a broker sent the error. Errors of the client itself have lower codes than UNKNOWN."""
    return isinstance(error, KafkaException) and error.args[0].code() >= KafkaError.UNKNOWN
