"""Ingest of job requests from a topic of a real Kafka: each record becomes one job, however often it is read."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from uuid import uuid4

import msgspec
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from mainspring.config.ingest import make_ingest, make_submit_buffer
from mainspring.config.runtime import Runtime
from mainspring.config.sections.access import ApiSection
from mainspring.config.sections.events import IngestSection
from mainspring.config.sections.processes import DispatchSection
from mainspring.config.settings import Settings
from mainspring.core.model.access.access import Quotas, Tenant
from mainspring.core.model.base.instant import HOUR, SECOND
from mainspring.core.ports.storage.access import AuditFilter, Author
from mainspring.core.ports.storage.catalog import RunFilter
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.features.ingest.service import Ingest
from mainspring.integrations.kafka.address import parse_kafka
from mainspring.integrations.kafka.admin import KafkaAdmin
from mainspring.integrations.kafka.connection import build_options
from mainspring.integrations.kafka.consumer import BatchConsumer, ConsumedRecord
from mainspring.integrations.kafka.producer import BatchProducer, Headers, Record
from tests.support.waiting import DEADLINE_SECONDS, eventually

pytestmark = pytest.mark.slow

MAPPING: dict[str, object] = {"task": "{headers.type}", "ordering_key": "{key}", "payload": "{value}"}


class Kit:
    def __init__(self, address: str, stack: AsyncExitStack) -> None:
        self.topic = f"requests-{uuid4().hex}"
        #: One whose records are mapped.
        self.foreign = f"foreign-{uuid4().hex}"
        self.server = parse_kafka(address, "test")
        self.admin = KafkaAdmin(self.server)
        self.producer = BatchProducer(self.server, HOUR)
        section = IngestSection(
            kafka=f"{address}/{self.topic}?partitions=3", tenant="*", topics={self.foreign: MAPPING}
        )
        settings = Settings(
            store="memory:",
            ingest=section,
            api=ApiSection(submit_buffer="kafka"),
            dispatch=DispatchSection(key="secret"),
        )
        self.runtime = Runtime(settings)
        self._stack = stack

    async def open(self) -> None:
        await self.runtime.open()
        self._stack.push_async_callback(self.runtime.close)
        self._stack.push_async_callback(self.producer.close)
        await self.admin.make_topics([self.topic, self.foreign], 3, {})

    async def start_ingest(self) -> Ingest:
        """Start the ingest of one more scheduler."""

        async def health() -> dict[str, object]:
            return {}

        made = await make_ingest(self.runtime, health)
        assert made is not None
        await made.start()
        self._stack.push_async_callback(made.stop)
        return made

    async def send(self, number: int, key: bytes | None = None, **fields: object) -> None:
        bodies = [msgspec.json.encode({"task": "greet", "payload": place} | fields) for place in range(number)]
        await self.producer.send([Record(self.topic, body, key) for body in bodies])

    async def count_runs(self) -> int:
        return await self.runtime.store.count_runs(RunFilter(tenant=None), 100_000)

    async def wait_for_runs(self, number: int) -> None:
        async def are_there() -> bool:
            return await self.count_runs() >= number

        await eventually(are_there, f"there should be {number} runs")

    async def wait_until_read(self) -> None:
        group = f"mainspring.{await self.runtime.store.identity()}.ingest"

        async def has_no_lag() -> bool:
            return not await self.admin.lag(group, [self.topic, self.foreign])

        await eventually(has_no_lag)

    async def rewind(self) -> None:
        """Set the group back to the first record, as an operator does. No ingest may be running."""
        group = f"mainspring.{await self.runtime.store.identity()}.ingest"
        offsets = [TopicPartition(topic, number, 0) for topic in (self.topic, self.foreign) for number in range(3)]
        client = AdminClient(build_options(self.server))
        asked = client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, offsets)])
        await asyncio.wrap_future(asked[group])

    async def read_refused(self, number: int) -> list[ConsumedRecord]:
        reader = BatchConsumer(self.server, uuid4().hex, [f"{self.topic}-dead"], SystemClock())
        self._stack.push_async_callback(reader.close)
        found: list[ConsumedRecord] = []
        async with asyncio.timeout(DEADLINE_SECONDS):
            while len(found) < number:
                found += await reader.take(10, SECOND)
        return found


@pytest.fixture
async def kit(address_of: Callable[[str], str]) -> AsyncIterator[Kit]:
    async with AsyncExitStack() as stack:
        kit = Kit(address_of("kafka"), stack)
        await kit.open()
        yield kit


async def test_each_record_becomes_one_job_however_often_it_is_read(kit: Kit) -> None:
    await kit.send(300)
    await kit.send(1, b"order-1")
    await kit.send(1, b"order-1")
    first = await kit.start_ingest()
    await kit.wait_for_runs(301)
    await kit.wait_until_read()
    await first.stop()
    await kit.rewind()
    second = await kit.start_ingest()
    await kit.wait_until_read()
    await kit.send(1)
    await kit.wait_for_runs(302)
    assert await kit.count_runs() == 302
    assert second.refused == 0


async def test_each_record_of_another_program_becomes_one_job_however_often_it_is_read(kit: Kit) -> None:
    records = [
        Record(
            kit.foreign, msgspec.json.encode({"videoId": video, "part": part}), video.encode(), [("type", b"encode")]
        )
        for part in range(100)
        for video in ("v1", "v2", "v3")
    ]
    await kit.producer.send(records)
    first = await kit.start_ingest()
    second = await kit.start_ingest()
    await kit.wait_for_runs(300)
    await kit.wait_until_read()
    await first.stop()
    await second.stop()
    await kit.rewind()
    third = await kit.start_ingest()
    await kit.wait_until_read()
    assert await kit.count_runs() == 300
    assert third.refused == 0
    listed = (await kit.runtime.store.list_runs(RunFilter(tenant=None), None, 1_000)).items
    views = await kit.runtime.store.seen_by(None).runs([run.id for run in reversed(listed)], payloads=True)
    runs = [view for view in views if view is not None]
    assert {run.task for run in runs} == {"encode"}
    for video in ("v1", "v2", "v3"):
        mine = [run for run in runs if run.policy.ordering_key == video]
        # Each video is in one partition, so one scheduler has made its jobs, one after the other.
        assert [msgspec.json.decode(run.payload or b"")["part"] for run in mine] == [*range(100)]


async def test_several_schedulers_share_the_records_while_they_come_and_go(kit: Kit) -> None:
    await kit.start_ingest()
    for _ in range(3):
        await kit.send(200)
        leaving = await kit.start_ingest()
        await kit.send(200)
        await leaving.stop()
    await kit.wait_for_runs(1_200)
    await kit.wait_until_read()
    assert await kit.count_runs() == 1_200


async def test_a_bad_record_is_copied_to_the_dead_letter_topic_with_the_reason(kit: Kit) -> None:
    bad = Record(kit.topic, b'{"task": "greet", "priority": 99}', b"k", [("trace", b"1")])
    await kit.producer.send([bad])
    await kit.send(1)
    await kit.start_ingest()
    [one] = await kit.read_refused(1)
    assert (one.value, one.key) == (bad.value, bad.key)
    headers = dict(one.headers)
    assert headers["trace"] == b"1"
    problem = msgspec.json.decode(headers["mainspring-problem"] or b"")
    assert (problem["field"], problem["topic"], problem["offset"]) == ("priority", kit.topic, 0)
    assert "10" in problem["detail"]
    await kit.wait_for_runs(1)


@pytest.mark.parametrize("size", [1_030_000, 1_048_450])
async def test_a_large_bad_record_does_not_stop_the_ingest(kit: Kit, size: int) -> None:
    """The bytes are random, so they cannot be compressed. The broker accepts the larger record, but not with a reason
    added to it."""
    bad = Record(kit.topic, b"\xff" + os.urandom(size - 1), b"k")
    await kit.producer.send([bad])
    await kit.send(50)
    await kit.start_ingest()
    await kit.wait_for_runs(50)
    await kit.wait_until_read()
    [one] = await kit.read_refused(1)
    problem = msgspec.json.decode(dict(one.headers)["mainspring-problem"] or b"")
    assert (one.key, problem["topic"], problem["offset"], problem["field"]) == (b"k", kit.topic, 0, "body")
    whole = size == 1_030_000
    assert one.value == (bad.value if whole else bad.value[:10_000])
    assert problem.get("cutFrom") == (None if whole else size)


@pytest.mark.parametrize(
    "bad",
    [
        Record("", b"?", os.urandom(1_048_450)),
        Record("", b"?", None, [("large", os.urandom(1_048_450))]),
        Record("", b'{"%s": 1}' % os.urandom(300_000).hex().encode()),
    ],
    ids=["key", "header", "field"],
)
async def test_the_reason_is_kept_whichever_part_of_a_bad_record_is_large(kit: Kit, bad: Record) -> None:
    await kit.producer.send([msgspec.structs.replace(bad, topic=kit.topic), Record(kit.topic, b"no", None)])
    await kit.start_ingest()
    await kit.wait_until_read()
    found = await kit.read_refused(2)
    reasons = [dict(one.headers)["mainspring-problem"] or b"" for one in found]
    assert {msgspec.json.decode(reason)["topic"] for reason in reasons} == {kit.topic}
    assert max(map(len, reasons)) < 10_000


async def test_a_header_can_name_the_tenant_of_a_record(kit: Kit) -> None:
    await kit.producer.send([Record(kit.topic, b'{"task": "greet"}', None, [("mainspring-tenant", b"acme")])])
    await kit.start_ingest()
    await kit.wait_for_runs(1)
    assert await kit.runtime.store.count_runs(RunFilter(tenant="acme"), 10) == 1


async def test_the_run_of_a_record_continues_its_trace(kit: Kit) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    sent: list[Headers] = [[("traceparent", trace.encode())], [("traceparent", b"nonsense")], []]
    await kit.producer.send([Record(kit.topic, b'{"task": "greet"}', None, headers) for headers in sent])
    await kit.start_ingest()
    await kit.wait_for_runs(3)
    page = await kit.runtime.store.list_runs(RunFilter(tenant=None), None, 10)
    assert sorted(run.policy.trace for run in page.items) == ["", "", trace]


async def test_a_request_accepted_by_the_api_keeps_its_author_and_a_forged_author_is_ignored(kit: Kit) -> None:
    buffer = make_submit_buffer(kit.runtime.settings)
    assert buffer is not None
    new_id = kit.runtime.jobs.new_run_id("", tenant="acme")
    body = b'{"task": "greet", "idempotencyKey": "1"}'
    await buffer.accept(body, key="video-1", tenant="acme", run=new_id, author="key:ada")
    await buffer.stop()
    forged: Headers = [
        ("mainspring-tenant", b"acme"),
        ("mainspring-author", b"key:ada"),
        ("mainspring-signature", b"0" * 32),
    ]
    await kit.producer.send([Record(kit.topic, b'{"task": "greet"}', None, forged)])
    await kit.start_ingest()
    await kit.wait_for_runs(2)
    entries = await kit.runtime.store.audit("acme", AuditFilter(action="jobs.submit"))
    assert sorted(entry.author for entry in entries) == ["ingest", "key:ada"]
    [accepted] = await kit.runtime.store.runs([new_id])
    assert accepted is not None


async def test_records_beyond_a_quota_are_refused_after_a_while_and_the_offset_advances(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kit.runtime.store.put_tenant(Tenant(name="small", quotas=Quotas(queued=1)), Author("ada"))
    # In one partition, waiting records precede finished ones.
    for number in range(4):
        await kit.send(1, b"video-1", tenant="small", idempotencyKey=f"more-{number}")
        await kit.send(1, b"video-1", tenant="large", idempotencyKey=f"other-{number}")
    ingest = await kit.start_ingest()
    await kit.wait_for_runs(5)
    await eventually(lambda: ingest.waiting == 3)
    monkeypatch.setattr("mainspring.features.ingest.service.MAX_WAIT", 0)
    refused = await kit.read_refused(3)
    problems = [msgspec.json.decode(dict(one.headers)["mainspring-problem"] or b"") for one in refused]
    assert {problem["title"] for problem in problems} == {"Quota reached"}
    assert {problem["detail"] for problem in problems} == {"the tenant may have 1 queued runs: waited for too long"}
    await kit.wait_until_read()
    await ingest.stop()
    again = await kit.start_ingest()
    await kit.send(1)
    await kit.wait_for_runs(6)
    await eventually(lambda: again.created == 1)
    assert again.refused == 0


async def test_a_tenant_that_fills_the_waiting_room_is_refused_and_others_are_served(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.features.ingest.service._MAX_WAITING", 20)
    await kit.runtime.store.put_tenant(Tenant(name="small", quotas=Quotas(queued=0)), Author("ada"))
    ingest = await kit.start_ingest()
    await kit.send(200, tenant="small")
    await kit.send(200)
    await kit.wait_for_runs(200)
    assert len(await kit.read_refused(180)) == 180
    await eventually(lambda: (ingest.waiting, ingest.refused) == (20, 180), lambda: (ingest.waiting, ingest.refused))


async def test_a_deleted_topic_is_created_again_and_its_offsets_start_over(kit: Kit) -> None:
    await kit.send(3)
    ingest = await kit.start_ingest()
    await kit.wait_for_runs(3)
    await kit.wait_until_read()
    await ingest.stop()
    await kit.admin.delete_topics([kit.topic])

    async def is_gone() -> bool:
        return not await kit.admin.partitions([kit.topic])

    await eventually(is_gone)
    again = await kit.start_ingest()
    await eventually(lambda: kit.admin.partitions([kit.topic]))
    await kit.send(3, queue="other")
    await kit.wait_for_runs(6)
    assert again.refused == 0
