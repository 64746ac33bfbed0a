"""Real processes with a real Kafka as broker, which is killed, rewound, emptied and rebalanced under load: nothing is
lost, nothing is completed twice, Kafka feeds the workers again after each fault, and runs with the same ordering key
run in order."""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import asyncpg
import httpx2
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from mainspring.core.model.base.instant import SECOND
from mainspring.core.model.cluster.hints import HintCodec
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.integrations.kafka.address import parse_kafka
from mainspring.integrations.kafka.admin import KafkaAdmin
from mainspring.integrations.kafka.connection import build_options
from mainspring.integrations.kafka.consumer import BatchConsumer
from mainspring.integrations.kafka.dispatch import KafkaDispatch
from mainspring.stores.postgres import PostgresStore
from tests.support.load import APP, Load, make_jobs, until_broker_is, until_fed
from tests.support.processes import START_SECONDS, Processes, api_client, free_port, kill, until_ended, until_ready
from tests.support.servers import started
from tests.support.waiting import eventually
from tools.services.kafka import Kafka

pytestmark = [pytest.mark.postgres, pytest.mark.system, pytest.mark.timeout(900), pytest.mark.xdist_group("system")]

LARGE = bool(os.environ.get("LARGE_TESTS"))
PARTITIONS = 4


class Broker:
    """A Kafka server, with topics for one test."""

    def __init__(self, address: str) -> None:
        name = uuid4().hex
        self.topics = [f"run-{name}", f"retry-{name}"]
        self.url = f"{address}/?topics={self.topics[0]}&retries={self.topics[1]}&partitions={PARTITIONS}"
        self._server = parse_kafka(address, "test")
        self.admin = KafkaAdmin(self._server)

    async def lag(self, group: str) -> int:
        return await self.admin.lag(group, self.topics)

    async def read_records(self) -> dict[str, tuple[bytes | None, int]]:
        """The key and the partition of the hint of each run."""
        reader = BatchConsumer(self._server, uuid4().hex, self.topics[:1], SystemClock())
        found: dict[str, tuple[bytes | None, int]] = {}
        try:
            while received := await reader.take(1_000, 5 * SECOND):
                found |= {one.value[:16].hex(): (one.key, one.partition) for one in received}
        finally:
            await reader.close()
        return found

    async def rewind(self, group: str) -> None:
        """Set the offsets of a group to 0. Kafka rejects it while the group has members."""
        offsets = [TopicPartition(self.topics[0], number, 0) for number in range(PARTITIONS)]
        client = AdminClient(build_options(self._server))
        asked = client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, offsets)])
        await asyncio.wrap_future(asked[group])


@pytest.fixture
def broker(address_of: Callable[[str], str]) -> Broker:
    """On the server that all tests share."""
    return Broker(address_of("kafka"))


@pytest.fixture
async def processes(postgres_database: str, store: PostgresStore, tmp_path: Path) -> AsyncIterator[Processes]:
    async with Processes(postgres_database, tmp_path / "logs") as processes:
        yield processes


async def start_worker(processes: Processes) -> "tuple[httpx2.AsyncClient, subprocess.Popen[bytes]]":
    port = free_port()
    up = processes.start("up", APP, "--port", str(port), "--queue", "load:20")
    client = api_client(port)
    await until_ready(client, up, processes)
    return client, up


async def test_kafka_may_lose_and_repeat_hints_and_every_run_is_completed_once(
    broker: Broker,
    store: PostgresStore,
    processes: Processes,
    postgres_database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MAINSPRING_DISPATCH_BROKER", broker.url)
    group = f"mainspring.{await store.identity()}.load"
    client, up = await start_worker(processes)
    publisher = KafkaDispatch(broker.url, SystemClock(), HintCodec((await store.hint_key()).encode()))
    await publisher.open(await store.identity())
    async with Load(store, postgres_database) as load:
        await until_fed(client, processes)
        # Rebalances: workers join the group and leave it, some of them by SIGKILL.
        for round_ in range(6 if LARGE else 2):
            passing = await start_passing_worker(store, processes)
            passing.send_signal(signal.SIGKILL if round_ % 2 else signal.SIGTERM)
        await until_fed(client, processes)
        # Deliver every hint three times more. Most of the runs have ended.
        for _ in range(3):
            await load.repeat_hints(publisher)
        await until_fed(client, processes)
        # The scheduler creates deleted topics again, and publishes the hints of waiting runs.
        await broker.admin.delete_topics(broker.topics)
        await load.until_more(50, processes)
        await until_fed(client, processes)
    await load.check(processes)
    await publisher.close()
    await client.aclose()
    up.terminate()
    await until_ended(up, processes)

    async def rewound() -> bool:
        # The group has members until their sessions expire.
        with suppress(KafkaException):
            await broker.rewind(group)
            return True
        return False

    await eventually(rewound, processes.logs)
    client, _ = await start_worker(processes)

    async def caught_up() -> bool:
        return await broker.lag(group) == 0

    await eventually(caught_up, processes.logs)
    await client.aclose()
    await load.check(processes)


async def start_passing_worker(store: PostgresStore, processes: Processes) -> "subprocess.Popen[bytes]":
    """Start one more worker, and wait until it has a session."""
    name = f"passing-{uuid4().hex}"
    process = processes.start("worker", APP, "--queue", "load:10", "--name", name)

    async def registered() -> bool:
        return any(session.name == name for session in await store.sessions("worker"))

    await eventually(registered, processes.logs, deadline=START_SECONDS)
    return process


async def test_workers_take_runs_from_the_store_while_kafka_is_killed_or_frozen(
    store: PostgresStore,
    processes: Processes,
    postgres_database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Kafka(tmp_path / "kafka")
    address = started(server)
    try:
        monkeypatch.setenv("MAINSPRING_DISPATCH_BROKER", Broker(address).url)
        client, _ = await start_worker(processes)
        async with Load(store, postgres_database) as load:
            await until_fed(client, processes)
            for node in server.nodes:
                node.signal(signal.SIGKILL)
            await until_broker_is("away", client, processes)
            await load.until_more(100, processes)
            await asyncio.to_thread(server.start)
            await until_fed(client, processes)
            # Frozen: connections stay open, and requests are not answered.
            for node in server.nodes:
                node.signal(signal.SIGSTOP)
            await until_broker_is("away", client, processes)
            for node in server.nodes:
                node.signal(signal.SIGCONT)
            await until_fed(client, processes)
        await client.aclose()
        await load.check(processes)
    finally:
        server.remove()


async def test_runs_with_the_same_ordering_key_run_in_order_through_rebalances(
    broker: Broker,
    store: PostgresStore,
    processes: Processes,
    postgres_database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MAINSPRING_DISPATCH_BROKER", broker.url)
    client, _ = await start_worker(processes)
    jobs = make_jobs(store)
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
            # A worker that joins takes partitions over, and one that dies leaves its own.
            passing = await start_passing_worker(store, processes)
        if round_ % (each // 4) == 2:
            kill(passing)
    connection = await asyncpg.connect(postgres_database)
    try:

        async def all_ended() -> bool:
            return bool(await connection.fetchval("SELECT count(*) FROM mainspring.history") >= each * len(keys))

        await eventually(all_ended, processes.logs)
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
    records = await broker.read_records()
    by_key = {key: {records[run] for run in runs if run in records} for key, runs in made.items()}
    # Hints of an ordering key have one record key, which no other has, and are in one partition.
    assert [len(found) for found in by_key.values()] == [1] * len(keys), by_key
    assert len({record for [(record, _)] in by_key.values()}) == len(keys)
