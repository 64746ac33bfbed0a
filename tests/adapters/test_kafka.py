"""The Kafka client on a real broker: records arrive, finished ones do not come again, records of a key keep order."""

import asyncio
import os
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from uuid import uuid4

import pytest

from mainspring.core.model.base.errors import BrokerUnavailable, Invalid
from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.integrations.kafka.address import KafkaAddress, parse_kafka
from mainspring.integrations.kafka.admin import KafkaAdmin
from mainspring.integrations.kafka.connection import RecordTooLarge
from mainspring.integrations.kafka.consumer import BatchConsumer, ConsumedRecord
from mainspring.integrations.kafka.offsets import OffsetTracker
from mainspring.integrations.kafka.producer import BatchProducer, Record
from tests.support.waiting import DEADLINE_SECONDS

CLOCK = SystemClock()


class Kit:
    """A topic of its own, and clients that are closed at the end."""

    def __init__(self, server: KafkaAddress, stack: AsyncExitStack) -> None:
        self.server = server
        self.topic = f"test-{uuid4().hex}"
        self.admin = KafkaAdmin(server)
        self._stack = stack

    def producer(self) -> BatchProducer:
        made = BatchProducer(self.server, HOUR)
        self._stack.push_async_callback(made.close)
        return made

    def consumer(self, room: int = 1_000) -> BatchConsumer:
        # A revoked partition waits for its taken records without a limit, however slow the machine is.
        made = BatchConsumer(self.server, self.topic, [self.topic], CLOCK, room=room, settle=HOUR)
        self._stack.push_async_callback(made.close)
        return made

    def records(self, number: int, key: bytes | None = None) -> list[Record]:
        return [Record(self.topic, str(index).encode(), key) for index in range(number)]


@pytest.fixture
async def kit(address_of: Callable[[str], str]) -> AsyncIterator[Kit]:
    async with AsyncExitStack() as stack:
        kit = Kit(parse_kafka(address_of("kafka"), "test"), stack)
        await kit.admin.make_topics([kit.topic], 4, {})
        yield kit


async def receive(consumer: BatchConsumer, number: int) -> list[ConsumedRecord]:
    found: list[ConsumedRecord] = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        while len(found) < number:
            found += await consumer.take(number - len(found), SECOND)
    return found


async def test_every_record_of_a_batch_arrives(kit: Kit) -> None:
    await kit.producer().send([*kit.records(3_000), Record(kit.topic, b"", b"k", [("what", b"said")])])
    found = await receive(kit.consumer(room=100), 3_001)
    assert {one.value for one in found} == {str(index).encode() for index in range(3_000)} | {b""}
    assert [one.headers for one in found if one.key == b"k"] == [[("what", b"said")]]


async def test_a_backlog_in_one_topic_holds_up_no_other_if_topics_are_read_in_turn(kit: Kit) -> None:
    other = f"{kit.topic}-other"
    await kit.admin.make_topics([other], 1, {})
    await kit.producer().send([*kit.records(500), Record(other, b"urgent")])
    consumer = BatchConsumer(kit.server, kit.topic, [kit.topic, other], CLOCK, settle=HOUR, in_turn=True)
    kit._stack.push_async_callback(consumer.close)
    taken: list[ConsumedRecord] = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        # Everything is here before the first of the other topic is looked for.
        while sum(map(len, consumer._buffers.values())) + len(taken) < 501:
            taken += await consumer.take(1, SECOND)
    rest = [one for _ in range(2) for one in await consumer.take(10, SECOND)]
    assert b"urgent" in {one.value for one in taken + rest}
    consumer.done(taken + rest)


async def test_records_of_one_key_stay_in_order(kit: Kit) -> None:
    producer = kit.producer()
    for _ in range(3):
        await producer.send([*kit.records(100, b"one"), *kit.records(100, b"two")])
    found = await receive(kit.consumer(), 600)
    for key in (b"one", b"two"):
        assert [int(one.value) for one in found if one.key == key] == [*range(100)] * 3


@pytest.mark.parametrize("size", [2_000_000, 110_000_000], ids=["for the broker", "for the client"])
async def test_a_record_that_is_too_large_has_its_own_error(kit: Kit, size: int) -> None:
    producer = kit.producer()
    with pytest.raises(RecordTooLarge, match="does not take"):
        await producer.send([Record(kit.topic, os.urandom(size))])
    await producer.send(kit.records(1))


async def test_unfinished_records_and_their_successors_go_to_the_next_consumer(kit: Kit) -> None:
    await kit.producer().send(kit.records(10, b"k"))
    first = kit.consumer()
    taken = await receive(first, 10)
    first.done([one for one in taken if one.value not in (b"4", b"7")])
    await first.close()
    again = await receive(kit.consumer(), 6)
    assert [int(one.value) for one in again] == [4, 5, 6, 7, 8, 9]


async def test_the_lag_counts_unfinished_records(kit: Kit) -> None:
    assert await kit.admin.lag(kit.topic, [kit.topic, "not-there"]) == 0
    await kit.producer().send(kit.records(20))
    assert await kit.admin.lag(kit.topic, [kit.topic]) == 20
    consumer = kit.consumer()
    consumer.done(await receive(consumer, 20))
    await consumer.close()
    assert await kit.admin.lag(kit.topic, [kit.topic]) == 0


async def test_consumers_that_join_one_after_another_receive_every_record_once(kit: Kit) -> None:
    producer = kit.producer()
    found: list[bytes] = []
    enough = asyncio.Event()

    async def work(consumer: BatchConsumer) -> None:
        while True:
            taken = await consumer.take(5, SECOND // 10)
            # Let the others join while these records are taken and not finished.
            await asyncio.sleep(0)
            found.extend(one.value for one in taken)
            consumer.done(taken)
            if len(found) >= 500:
                enough.set()

    await producer.send(kit.records(500))
    workers = [asyncio.create_task(work(kit.consumer())) for _ in range(3)]
    async with asyncio.timeout(DEADLINE_SECONDS):
        await enough.wait()
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    assert sorted(found) == sorted(str(index).encode() for index in range(500))


@pytest.mark.slow
async def test_clients_report_a_server_that_is_away_as_unavailable(kit: Kit) -> None:
    nowhere = parse_kafka("kafka://127.0.0.1:1", "test")
    producer, consumer = BatchProducer(nowhere), BatchConsumer(nowhere, "g", ["t"], CLOCK)
    with pytest.raises(BrokerUnavailable, match="Kafka"):
        await producer.send(kit.records(1))
    with pytest.raises(BrokerUnavailable, match="Kafka"):
        await consumer.take(1, 2 * MINUTE)
    with pytest.raises(BrokerUnavailable, match="Kafka"):
        await KafkaAdmin(nowhere).check()
    await producer.close()
    await consumer.close()


async def test_sending_to_a_missing_topic_fails(kit: Kit) -> None:
    with pytest.raises(BrokerUnavailable, match="topic"):
        await kit.producer().send([Record("not-there", b"")])


def test_the_committed_offset_does_not_pass_an_unfinished_record() -> None:
    track = OffsetTracker("topic", 0)
    for offset in (5, 6, 9):
        track.came(offset)
    track.done(6)
    track.done(6)
    assert track.position == 5
    track.done(5)
    track.done(5)
    assert track.position == 9
    track.done(9)
    assert track.position == 10


def test_finished_records_behind_an_unfinished_one_use_no_memory() -> None:
    track = OffsetTracker("topic", 0)
    track.came(0)
    tracemalloc.start()
    for offset in range(1, 100_000):
        track.came(offset)
        track.done(offset)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used < 10_000
    assert track.position == 0
    track.done(0)
    assert track.position == 100_000


def test_an_address_holds_servers_and_security_settings() -> None:
    found = parse_kafka("kafka://me:p%40ss@a:1,[::1]/topic?ssl_ca_location=/ca.pem&partitions=3", "f", {"partitions"})
    assert found.nodes == (("a", 1), ("::1", 9092))
    assert (found.path, found.options) == ("topic", {"partitions": "3"})
    assert found.safety == {
        "ssl.ca.location": "/ca.pem",
        "sasl.username": "me",
        "sasl.password": "p@ss",
        "sasl.mechanism": "SCRAM-SHA-512",
        "security.protocol": "SASL_SSL",
    }
    assert "p@ss" not in repr(found)


@pytest.mark.parametrize(
    "text", ["redis://a", "kafka://", "kafka://a:x", "kafka://me@a", "kafka://a?acks=0", "kafka://a#x"]
)
def test_a_malformed_address_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        parse_kafka(text, "field")
