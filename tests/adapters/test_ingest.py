"""Requests for jobs that come by a topic of a real Kafka: each becomes one job, however often it is read."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from uuid import uuid4

import msgspec
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from mainspring.adapters.clock.system import SystemClock
from mainspring.adapters.kafka.admin import KafkaAdmin
from mainspring.adapters.kafka.connection import options_of
from mainspring.adapters.kafka.consumer import BatchConsumer, Received
from mainspring.adapters.kafka.producer import BatchProducer, Headers, Record
from mainspring.bootstrap.api import make_acceptance, make_ingest
from mainspring.bootstrap.engine import Engine
from mainspring.control.ingest import Ingest
from mainspring.domain.access import Quotas, Tenant
from mainspring.domain.instant import SECOND
from mainspring.domain.kafka import read_kafka
from mainspring.ports.access import AuditFilter, Author
from mainspring.ports.catalog import RunFilter
from mainspring.sections import ApiSection, DispatchSection, IngestSection
from mainspring.settings import Settings

pytestmark = pytest.mark.slow


class Kit:
    def __init__(self, address: str, stack: AsyncExitStack) -> None:
        self.topic = f"requests-{uuid4().hex}"
        self.server = read_kafka(address, "test")
        self.admin = KafkaAdmin(self.server)
        self.producer = BatchProducer(self.server)
        section = IngestSection(kafka=f"{address}/{self.topic}?partitions=3", tenant="*")
        settings = Settings(
            store="memory:", ingest=section, api=ApiSection(accept_by="kafka"), dispatch=DispatchSection(key="secret")
        )
        self.engine = Engine(settings)
        self._stack = stack

    async def open(self) -> None:
        await self.engine.open()
        self._stack.push_async_callback(self.engine.close)
        self._stack.push_async_callback(self.producer.close)
        await self.admin.make_topics([self.topic], 3, {})

    async def ingest(self) -> Ingest:
        """One more scheduler that takes requests."""

        async def health() -> dict[str, object]:
            return {}

        made = await make_ingest(self.engine, health)
        assert made is not None
        await made.start()
        self._stack.push_async_callback(made.stop)
        return made

    async def send(self, number: int, key: bytes | None = None, **fields: object) -> None:
        bodies = [msgspec.json.encode({"task": "greet", "payload": place} | fields) for place in range(number)]
        await self.producer.send([Record(self.topic, body, key) for body in bodies])

    async def count(self) -> int:
        return await self.engine.store.count_runs(RunFilter(tenant=None), 100_000)

    async def until(self, number: int) -> None:
        until = time.monotonic() + 30
        while await self.count() < number:
            assert time.monotonic() < until, f"{await self.count()} of {number}"
            await asyncio.sleep(0.05)

    async def until_read(self) -> None:
        group = f"mainspring.{await self.engine.store.identity()}.ingest"
        until = time.monotonic() + 30
        while await self.admin.lag(group, [self.topic]):
            assert time.monotonic() < until
            await asyncio.sleep(0.1)

    async def rewind(self) -> None:
        """As an operator does: the group begins anew. Nobody may be reading."""
        group = f"mainspring.{await self.engine.store.identity()}.ingest"
        places = [TopicPartition(self.topic, number, 0) for number in range(3)]
        client = AdminClient(options_of(self.server))
        asked = client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)])
        await asyncio.wrap_future(asked[group])

    async def refused(self, number: int) -> list[Received]:
        reader = BatchConsumer(self.server, uuid4().hex, [f"{self.topic}-dead"], SystemClock())
        self._stack.push_async_callback(reader.close)
        found: list[Received] = []
        async with asyncio.timeout(30):
            while len(found) < number:
                found += await reader.take(10, SECOND)
        return found


@pytest.fixture
async def kit(address_of: Callable[[str], str]) -> AsyncIterator[Kit]:
    async with AsyncExitStack() as stack:
        kit = Kit(address_of("kafka"), stack)
        await kit.open()
        yield kit


async def test_each_record_becomes_a_job_however_often_it_is_read(kit: Kit) -> None:
    await kit.send(300)
    await kit.send(1, b"order-1")
    await kit.send(1, b"order-1")
    first = await kit.ingest()
    await kit.until(301)
    await kit.until_read()
    await first.stop()
    await kit.rewind()
    second = await kit.ingest()
    await kit.until_read()
    await kit.send(1)
    await kit.until(302)
    assert await kit.count() == 302
    assert second.refused == 0


async def test_several_schedulers_share_the_records_while_they_come_and_go(kit: Kit) -> None:
    await kit.ingest()
    for _ in range(3):
        await kit.send(200)
        leaving = await kit.ingest()
        await kit.send(200)
        await leaving.stop()
    await kit.until(1_200)
    await kit.until_read()
    assert await kit.count() == 1_200


async def test_a_bad_one_stands_in_the_topic_beside_it_with_the_reason(kit: Kit) -> None:
    bad = Record(kit.topic, b'{"task": "greet", "priority": 99}', b"k", [("trace", b"1")])
    await kit.producer.send([bad])
    await kit.send(1)
    await kit.ingest()
    [one] = await kit.refused(1)
    assert (one.value, one.key) == (bad.value, bad.key)
    headers = dict(one.headers)
    assert headers["trace"] == b"1"
    said = msgspec.json.decode(headers["mainspring-problem"] or b"")
    assert (said["field"], said["topic"], said["offset"]) == ("priority", kit.topic, 0)
    assert "10" in said["detail"]
    await kit.until(1)


@pytest.mark.parametrize("size", [1_030_000, 1_048_450])
async def test_a_large_one_that_is_bad_stops_nobody(kit: Kit, size: int) -> None:
    """Nothing of it can be pressed together. The larger is one that a broker takes, and with a reason does not."""
    bad = Record(kit.topic, b"\xff" + os.urandom(size - 1), b"k")
    await kit.producer.send([bad])
    await kit.send(50)
    await kit.ingest()
    await kit.until(50)
    await kit.until_read()
    [one] = await kit.refused(1)
    said = msgspec.json.decode(dict(one.headers)["mainspring-problem"] or b"")
    assert (one.key, said["topic"], said["offset"], said["field"]) == (b"k", kit.topic, 0, "body")
    whole = size == 1_030_000
    assert one.value == (bad.value if whole else bad.value[:10_000])
    assert said.get("cutFrom") == (None if whole else size)


@pytest.mark.parametrize(
    "bad",
    [
        Record("", b"?", os.urandom(1_048_450)),
        Record("", b"?", None, [("large", os.urandom(1_048_450))]),
        Record("", b'{"%s": 1}' % os.urandom(300_000).hex().encode()),
    ],
    ids=["key", "header", "field"],
)
async def test_whatever_of_a_bad_one_is_large_its_reason_is_kept(kit: Kit, bad: Record) -> None:
    await kit.producer.send([msgspec.structs.replace(bad, topic=kit.topic), Record(kit.topic, b"no", None)])
    await kit.ingest()
    await kit.until_read()
    found = await kit.refused(2)
    reasons = [dict(one.headers)["mainspring-problem"] or b"" for one in found]
    assert {msgspec.json.decode(reason)["topic"] for reason in reasons} == {kit.topic}
    assert max(map(len, reasons)) < 10_000


async def test_whom_a_record_is_for_can_stand_beside_it(kit: Kit) -> None:
    await kit.producer.send([Record(kit.topic, b'{"task": "greet"}', None, [("mainspring-tenant", b"acme")])])
    await kit.ingest()
    await kit.until(1)
    assert await kit.engine.store.count_runs(RunFilter(tenant="acme"), 10) == 1


async def test_the_trace_that_a_record_belongs_to_goes_on_in_its_run(kit: Kit) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    sent: list[Headers] = [[("traceparent", trace.encode())], [("traceparent", b"nonsense")], []]
    await kit.producer.send([Record(kit.topic, b'{"task": "greet"}', None, headers) for headers in sent])
    await kit.ingest()
    await kit.until(3)
    page = await kit.engine.store.list_runs(RunFilter(tenant=None), None, 10)
    assert sorted(run.policy.trace for run in page.items) == ["", "", trace]


async def test_what_an_api_has_accepted_has_its_author_and_nobody_else_can_say_so(kit: Kit) -> None:
    acceptance = make_acceptance(kit.engine.settings)
    assert acceptance is not None
    new_id = kit.engine.jobs.new_run_id("", tenant="acme")
    body = b'{"task": "greet", "idempotencyKey": "1"}'
    await acceptance.accept(body, key="video-1", tenant="acme", run=new_id, author="key:ada")
    await acceptance.stop()
    forged: Headers = [
        ("mainspring-tenant", b"acme"),
        ("mainspring-author", b"key:ada"),
        ("mainspring-seal", b"0" * 32),
    ]
    await kit.producer.send([Record(kit.topic, b'{"task": "greet"}', None, forged)])
    await kit.ingest()
    await kit.until(2)
    entries = await kit.engine.store.audit("acme", AuditFilter(action="jobs.submit"))
    assert sorted(entry.author for entry in entries) == ["ingest", "key:ada"]
    [accepted] = await kit.engine.store.runs([new_id])
    assert accepted is not None


async def test_who_is_beyond_a_quota_for_long_is_refused_and_the_offset_goes_on(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.control.ingest.PATIENCE", 3 * SECOND)
    await kit.engine.store.put_tenant(Tenant(name="small", quotas=Quotas(queued=1)), Author("ada"))
    # One partition: what waits stands before what is done.
    for number in range(4):
        await kit.send(1, b"video-1", tenant="small", idempotencyKey=f"more-{number}")
        await kit.send(1, b"video-1", tenant="large", idempotencyKey=f"other-{number}")
    ingest = await kit.ingest()
    await kit.until(5)
    assert ingest.waiting == 3
    refused = await kit.refused(3)
    said = [msgspec.json.decode(dict(one.headers)["mainspring-problem"] or b"") for one in refused]
    assert {one["title"] for one in said} == {"Quota reached"}
    assert {one["detail"] for one in said} == {"the tenant may have 1 queued runs: it has waited for too long"}
    await kit.until_read()
    await ingest.stop()
    again = await kit.ingest()
    await kit.send(1)
    await kit.until(6)
    assert (again.made, again.refused) == (1, 0)


async def test_whoever_fills_the_room_is_refused_and_others_go_on(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.control.ingest._MOST_WAITING", 20)
    await kit.engine.store.put_tenant(Tenant(name="small", quotas=Quotas(queued=0)), Author("ada"))
    ingest = await kit.ingest()
    await kit.send(200, tenant="small")
    await kit.send(200)
    await kit.until(200)
    assert len(await kit.refused(180)) == 180
    assert (ingest.waiting, ingest.refused) == (20, 180)


async def test_a_topic_that_was_deleted_is_made_anew_and_its_places_are_others(kit: Kit) -> None:
    await kit.send(3)
    ingest = await kit.ingest()
    await kit.until(3)
    await kit.until_read()
    await ingest.stop()
    await kit.admin.delete_topics([kit.topic])
    again = await kit.ingest()
    await asyncio.sleep(1)
    await kit.send(3, queue="other")
    await kit.until(6)
    assert again.refused == 0
