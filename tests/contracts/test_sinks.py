"""Event sinks: every event is stored, in order for each key, and a replaced publisher is rejected."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import redis.asyncio as redis

from mainspring.config.loading import load
from mainspring.core.model.base.errors import BrokerUnavailable, Fenced
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.events.events import PARTITIONS, Topic, id_of_worker
from mainspring.core.ports.events_out import Sink
from mainspring.integrations.kafka.address import parse_kafka
from mainspring.integrations.kafka.admin import KafkaAdmin
from mainspring.integrations.redis.address import parse_redis
from mainspring.integrations.redis.events import RedisSink
from tests.support.builders import a_run
from tests.support.doc_blocks import write_blocks
from tests.support.processes import ROOT, free_port
from tests.support.servers import started
from tests.support.sink_harness import HARNESSES, OnKafka, OnMemory, OnRedis, SinkHarness
from tools.services.redis import Redis

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs/guides/events.md"


@pytest.fixture(params=["memory", *HARNESSES])
async def they(
    request: pytest.FixtureRequest, address_of: Callable[[str], str], patient_clients: None
) -> AsyncIterator[SinkHarness]:
    make = HARNESSES.get(request.param)
    they = OnMemory() if make is None else make(address_of(request.param))
    await they.begin()
    yield they
    await they.close()


@pytest.fixture
async def sink(they: SinkHarness) -> Sink:
    return await they.another()


def ids(number: int) -> list[str]:
    return [a_run().id for _ in range(number)]


async def test_all_published_events_are_stored_when_publish_returns(they: SinkHarness, sink: Sink) -> None:
    events = they.events(ids(2_500))
    await sink.publish(events, 1)
    assert sorted(await they.found()) == sorted(event.id for event in events)


async def test_an_empty_batch_does_nothing(they: SinkHarness, sink: Sink) -> None:
    await sink.publish([], 1)
    await sink.publish(they.events(ids(1)), 1)
    assert len(await they.found()) == 1


async def test_events_of_one_key_stay_in_order(they: SinkHarness, sink: Sink) -> None:
    published = []
    for _ in range(5):
        events = they.events(ids(300), key="a-job")
        await sink.publish(events, 1)
        published += [event.id for event in events]
    assert await they.found() == published


async def test_events_are_published_to_their_topic(they: SinkHarness, sink: Sink) -> None:
    runs = they.events(ids(3))
    workers = they.events([id_of_worker(SessionId(7))], "worker.joined")
    children = they.events(ids(2), "dependency.resolved")
    await sink.publish([*runs, *workers, *children], 1)
    assert sorted(await they.found(Topic.JOBS)) == sorted(event.id for event in runs)
    assert await they.found(Topic.WORKERS) == [event.id for event in workers]
    assert sorted(await they.found(Topic.DEPENDENCIES)) == sorted(event.id for event in children)


async def test_a_kafka_topic_has_its_configured_partitions(address_of: Callable[[str], str]) -> None:
    they = OnKafka(address_of("kafka"))
    await (await they.another()).publish(they.events(ids(200)), 1)
    admin = KafkaAdmin(parse_kafka(they.address, "test"))
    assert await admin.partitions(list(PARTITIONS)) == PARTITIONS
    await they.close()


async def test_an_event_published_again_has_the_same_id(they: SinkHarness, sink: Sink) -> None:
    events = they.events(ids(10))
    await sink.publish(events[:7], 1)
    await sink.publish(events, 1)
    assert set(await they.found()) == {event.id for event in events}


async def test_a_replaced_publisher_is_fenced(they: SinkHarness, sink: Sink) -> None:
    if not they.fences:
        pytest.skip("it cannot tell")
    old, new = they.events(ids(3), key="a"), they.events(ids(3), key="a")
    await sink.publish(old, 4)
    successor = await they.another()
    await successor.publish(new, 5)
    with pytest.raises(Fenced):
        await sink.publish(old, 4)
    await successor.publish(they.events(ids(1), key="a"), 5)
    assert (await they.found())[:6] == [event.id for event in [*old, *new]]


async def test_a_redis_stream_is_trimmed_to_about_its_maximum_length(
    address_of: Callable[[str], str], tmp_path: Path
) -> None:
    server = Redis(tmp_path / "redis")
    address = started(server)
    try:
        they = OnRedis(address)
        sink = RedisSink(parse_redis(address, "events.redis"), 1_000)
        await sink.open(they.source)
        await sink.publish(they.events(ids(5_000)), 1)
        async with redis.Redis.from_url(address) as client:
            assert 1_000 <= await client.xlen("{mainspring}:job-events") < 2_000
        # A killed server is unavailable; a restarted one accepts events again.
        for node in server.nodes:
            node.signal(signal.SIGKILL)
        with pytest.raises(BrokerUnavailable):
            await sink.publish(they.events(ids(1)), 1)
        server.start()
        await sink.publish(they.events(ids(1)), 1)
        await sink.close()
    finally:
        server.remove()


async def test_the_consumer_of_the_documentation_reads_a_stream(
    address_of: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    they = OnRedis(address_of("redis"))
    sink = await they.another()
    await sink.publish(they.events(ids(3)), 1)
    await they.close()
    write_blocks(PAGE, tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import consumer  # type: ignore[import-not-found]

    found = await asyncio.to_thread(consumer.read, they.address)
    assert {event["specversion"] for event in found} == {"1.0"}


def test_the_settings_of_the_documentation_are_valid(tmp_path: Path) -> None:
    files = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    for text in files:
        (tmp_path / "mainspring.toml").write_text(text)
        load(environment={}, file=tmp_path / "mainspring.toml")
    assert len(files) == 4


@pytest.mark.parametrize(("make", "scheme"), [(OnRedis, "redis"), (OnKafka, "kafka")])
async def test_a_missing_server_raises_unavailable(make: Callable[[str], SinkHarness], scheme: str) -> None:
    they = make(f"{scheme}://127.0.0.1:{free_port()}")
    sink = await they.another()
    with pytest.raises(BrokerUnavailable):
        await sink.publish(they.events(ids(1)), 1)
    await they.close()
