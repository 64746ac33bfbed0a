"""Real processes fed by a real Kafka that is killed, rewound, emptied and rebalanced under load: nothing is lost,
nothing is completed twice, no run waits for long, Kafka feeds the workers again after each fault, and what shares an
ordering key is done in order."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import asyncpg
import httpx2
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from mainspring.adapters.clock.system import SystemClock
from mainspring.adapters.dispatch.kafka import KafkaDispatch
from mainspring.adapters.kafka.admin import KafkaAdmin
from mainspring.adapters.kafka.connection import options_of
from mainspring.adapters.kafka.consumer import BatchConsumer
from mainspring.adapters.store.postgres import PostgresStore
from mainspring.domain.hints import Sealer
from mainspring.domain.instant import SECOND
from mainspring.domain.kafka import read_kafka
from mainspring.domain.run import NewRun, RunPolicy
from tests.support.processes import Processes, free_port, until_ready
from tests.support.servers import started
from tests.system.test_deaths import the_jobs
from tests.system.test_dispatch import Load, until_fed
from tools.services.kafka import Kafka

pytestmark = [pytest.mark.postgres, pytest.mark.system, pytest.mark.timeout(240), pytest.mark.xdist_group("system")]

APP = "tests.support.load_tasks:app"
#: A worker asks the store once a second whatever its engine says. The rest is for a busy machine.
LATE = 15.0
LARGE = bool(os.environ.get("LARGE_TESTS"))
PARTITIONS = 4


class Broker:
    """A Kafka, with topics of this test's own."""

    def __init__(self, address: str) -> None:
        name = uuid4().hex
        self.topics = [f"run-{name}", f"retry-{name}"]
        self.url = f"{address}/?topics={self.topics[0]}&retries={self.topics[1]}&partitions={PARTITIONS}"
        self._server = read_kafka(address, "test")
        self.admin = KafkaAdmin(self._server)

    async def lag(self, group: str) -> int:
        return await self.admin.lag(group, self.topics)

    async def places(self) -> dict[str, tuple[bytes | None, int]]:
        """Of each run that was hinted at the key and the partition of its record."""
        reader = BatchConsumer(self._server, uuid4().hex, self.topics[:1], SystemClock())
        found: dict[str, tuple[bytes | None, int]] = {}
        try:
            while received := await reader.take(1_000, 5 * SECOND):
                found |= {one.value[:16].hex(): (one.key, one.partition) for one in received}
        finally:
            await reader.close()
        return found

    async def rewind(self, group: str) -> None:
        """As an operator does; Kafka refuses it while somebody reads."""
        places = [TopicPartition(self.topics[0], number, 0) for number in range(PARTITIONS)]
        client = AdminClient(options_of(self._server))
        asked = client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)])
        await asyncio.wrap_future(asked[group])


@pytest.fixture
def broker(address_of: Callable[[str], str]) -> Broker:
    """One that all tests share."""
    return Broker(address_of("kafka"))


@pytest.fixture
async def store(postgres_database: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_database)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def processes(postgres_database: str, store: PostgresStore, tmp_path: Path) -> AsyncIterator[Processes]:
    (tmp_path / "logs").mkdir()
    async with Processes(postgres_database, tmp_path / "logs") as processes:
        yield processes


def group_of(identity: str) -> str:
    return f"mainspring.{identity}.load"


async def begin(processes: Processes) -> "tuple[httpx2.AsyncClient, subprocess.Popen[bytes]]":
    port = free_port()
    up = processes.start("up", APP, "--port", str(port), "--queue", "load:20")
    client = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}")
    await until_ready(client, up, processes)
    return client, up


async def until_state(client: httpx2.AsyncClient, state: str, processes: Processes) -> None:
    until = time.monotonic() + 40
    while (await client.get("/healthz")).json()["dispatch"]["kafka"]["state"] != state:
        assert time.monotonic() < until, processes.logs()
        await asyncio.sleep(0.1)


async def test_what_kafka_loses_and_repeats_is_done_once_and_soon(
    broker: Broker,
    store: PostgresStore,
    processes: Processes,
    postgres_database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MAINSPRING_DISPATCH_ENGINE", broker.url)
    identity = await store.identity()
    client, up = await begin(processes)
    again = KafkaDispatch(broker.url, SystemClock(), Sealer((await store.hint_key()).encode()))
    await again.open(identity)
    async with Load(store, postgres_database) as load:
        await until_fed(client, processes)
        # A storm of rebalances: workers come and go, one of them without a farewell.
        for round_ in range(6 if LARGE else 2):
            passing = processes.start("worker", APP, "--queue", "load:20")
            await asyncio.sleep(2)
            passing.send_signal(signal.SIGKILL if round_ % 2 else signal.SIGTERM)
        await until_fed(client, processes)
        # Everything is delivered three times more, stale or not.
        for _ in range(3):
            await again.publish(load.hints())
        await until_fed(client, processes)
        # Deleted: the topics come back, and what was in them is published again.
        await broker.admin.delete_topics(broker.topics)
        await asyncio.sleep(1)
        await until_fed(client, processes)
    assert await load.judge(processes) < LATE
    assert len(load.runs) > 300, "too little load to say anything"
    await again.close()
    await client.aclose()
    up.terminate()
    await asyncio.to_thread(up.wait)
    # Rewound: the group begins anew, and finds everything stale.
    await until_rewound(broker, group_of(identity))
    client, _ = await begin(processes)
    until = time.monotonic() + 30
    while await broker.lag(group_of(identity)):
        assert time.monotonic() < until, processes.logs()
        await asyncio.sleep(0.2)
    await client.aclose()
    assert await load.judge(processes) < LATE


async def until_rewound(broker: Broker, group: str) -> None:
    until = time.monotonic() + 30
    while True:
        try:
            return await broker.rewind(group)
        except KafkaException:
            # The group has members until their sessions are over.
            assert time.monotonic() < until
            await asyncio.sleep(0.5)


async def test_a_kafka_that_is_killed_or_frozen_is_done_without(
    store: PostgresStore,
    processes: Processes,
    postgres_database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Kafka(tmp_path / "kafka")
    address = started(server)
    try:
        monkeypatch.setenv("MAINSPRING_DISPATCH_ENGINE", Broker(address).url)
        client, _ = await begin(processes)
        async with Load(store, postgres_database) as load:
            await until_fed(client, processes)
            for node in server.nodes:
                node.signal(signal.SIGKILL)
            await until_state(client, "away", processes)
            await asyncio.sleep(2)
            await asyncio.to_thread(server.start)
            await until_fed(client, processes)
            # Frozen: connections stay open, and nobody answers.
            for node in server.nodes:
                node.signal(signal.SIGSTOP)
            await until_state(client, "away", processes)
            for node in server.nodes:
                node.signal(signal.SIGCONT)
            await until_fed(client, processes)
        await client.aclose()
        assert await load.judge(processes) < LATE
    finally:
        server.remove()


async def test_what_shares_a_key_is_done_in_order_by_several_workers_through_rebalances(
    broker: Broker,
    store: PostgresStore,
    processes: Processes,
    postgres_database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MAINSPRING_DISPATCH_ENGINE", broker.url)
    client, _ = await begin(processes)
    jobs = the_jobs(store)
    keys = [f"video-{number}" for number in range(8)]
    each = 40 if LARGE else 12
    made: dict[str, list[str]] = {key: [] for key in keys}
    for round_ in range(each):
        runs = [
            NewRun(
                id=jobs.new_run_id(key),
                task="moment",
                payload=b'{"milliseconds":20}',
                queue="load",
                policy=RunPolicy(ordering_key=key),
            )
            for key in keys
        ]
        await jobs.submit_many(runs)
        for key, run in zip(keys, runs, strict=True):
            made[key].append(run.id)
        if round_ % (each // 4) == 1:
            # Each that comes takes partitions from the others, and each that dies leaves its own.
            passing = processes.start("worker", APP, "--queue", "load:10")
        if round_ % (each // 4) == 2:
            passing.kill()
        await asyncio.sleep(0.2)
    connection = await asyncpg.connect(postgres_database)
    try:
        until = time.monotonic() + 90
        while await connection.fetchval("SELECT count(*) FROM mainspring.history") < each * len(keys):
            assert time.monotonic() < until, processes.logs()
            await asyncio.sleep(0.2)
        rows = await connection.fetch("SELECT id::text, finished_at, started_at FROM mainspring.history")
    finally:
        await connection.close()
    await client.aclose()
    when = {row["id"].replace("-", ""): (row["started_at"], row["finished_at"]) for row in rows}
    assert len(rows) == len(when)
    for runs_of_key in made.values():
        spans = [when[run] for run in runs_of_key]
        assert spans == sorted(spans)
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert max(finish - start for start, finish in when.values()) < 60 * SECOND
    places = await broker.places()
    of_key = {key: {places[run] for run in runs if run in places} for key, runs in made.items()}
    # What shares an ordering key has records of one key, in one partition; no other has that key.
    assert [len(found) for found in of_key.values()] == [1] * len(keys), of_key
    assert len({record for [(record, _)] in of_key.values()}) == len(keys)
