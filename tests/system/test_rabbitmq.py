"""Real processes fed by RabbitMQ, whose queues are deleted, whose messages come three times, and whose nodes are killed
and frozen under load: nothing is lost, nothing is completed twice, no run waits for long, and every worker waits there
again after it. ``LARGE_TESTS=1`` runs the cluster too; ``-s`` shows how late the latest was."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from mainspring.adapters.clock.system import SystemClock
from mainspring.adapters.dispatch.rabbitmq import RabbitDispatch
from mainspring.adapters.store.postgres import PostgresStore
from mainspring.domain.hints import Sealer
from mainspring.domain.retry import RetryPolicy
from mainspring.domain.run import NewRun, RunPolicy
from tests.support import rabbitmq
from tests.support.processes import Processes
from tests.support.servers import started
from tests.system.test_deaths import the_jobs
from tests.system.test_dispatch import LATE, Load, begin, dispatch_state, until_fed, until_state
from tools.services.rabbitmq import RabbitMQ, RabbitMQCluster

pytestmark = [pytest.mark.postgres, pytest.mark.system, pytest.mark.timeout(300), pytest.mark.xdist_group("system")]

large = pytest.mark.skipif(os.environ.get("LARGE_TESTS") != "1", reason="LARGE_TESTS=1 runs it")


@pytest.fixture
def setup(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[RabbitMQ, str]]:
    """A broker of our own, and how it is named in the settings."""
    nodes, kind = request.param
    server = (RabbitMQCluster if nodes == "three" else RabbitMQ)(tmp_path / "rabbitmq")
    yield server, f"{started(server)}?kind={kind}"
    server.remove()


@pytest.fixture
async def store(postgres_database: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_database)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def processes(
    postgres_database: str,
    store: PostgresStore,
    setup: tuple[RabbitMQ, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Processes]:
    monkeypatch.setenv("MAINSPRING_DISPATCH_ENGINE", setup[1])
    (tmp_path / "logs").mkdir()
    async with Processes(postgres_database, tmp_path / "logs") as processes:
        yield processes


async def names_of(store: PostgresStore, address: str) -> tuple[str, ...]:
    identity = await store.identity()
    if "kind=classic" in address:
        return (f"mainspring.{identity}.queue.load",)
    return tuple(f"mainspring.{identity}.p{band}.load" for band in (1, 2, 3))


async def until_waiting(address: str, name: str, workers: int, processes: Processes) -> None:
    """So many consumers wait at a queue for what comes."""

    def waiting() -> int:
        with rabbitmq.channel_of(address) as channel:
            return int(channel.queue_declare(name, passive=True).consumer_count)

    until = time.monotonic() + 30
    while await asyncio.to_thread(waiting) != workers:
        assert time.monotonic() < until, processes.logs()
        await asyncio.sleep(0.1)


async def fail_one(store: PostgresStore, address: str) -> str:
    """The type of the dead letter of a run that cannot succeed."""
    jobs = the_jobs(store)
    never = RunPolicy(retry=RetryPolicy(max_retries=0))
    run = NewRun(id=jobs.new_run_id(), task="moment", payload=b'{"milliseconds":"x"}', queue="load", policy=never)
    await jobs.submit_many([run])
    dead = f"mainspring.{await store.identity()}.dead"
    async with asyncio.timeout(30):
        while True:
            for message in await asyncio.to_thread(rabbitmq.read_all, address, dead):
                if message.properties.get("message_id") == run.id:
                    return str(message.properties["type"])
            await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    "setup",
    [pytest.param(("one", "classic"), id="classic"), pytest.param(("one", "quorum"), id="quorum", marks=large)],
    indirect=True,
)
async def test_what_the_broker_forgets_and_repeats_is_done_once_and_soon(
    setup: tuple[RabbitMQ, str], store: PostgresStore, processes: Processes, postgres_database: str
) -> None:
    server, address = setup
    client = await begin(processes)
    names = await names_of(store, address)
    again = RabbitDispatch(address, SystemClock(), Sealer((await store.hint_key()).encode()))
    await again.open(await store.identity())
    await until_waiting(address, names[-1], 2, processes)
    async with Load(store, postgres_database) as load:
        await until_fed(client, processes)
        for _ in range(3):
            await asyncio.to_thread(rabbitmq.delete, address, *names)
            await asyncio.sleep(0.5)
        await until_fed(client, processes)
        # Everything is delivered three times more, stale or not.
        for _ in range(3):
            await again.publish(load.hints())
            await asyncio.sleep(0.2)
        await until_fed(client, processes)
        await again.close()
        assert await dispatch_state(client) == "ok"
        [node] = server.nodes
        node.signal(signal.SIGKILL)
        await until_state(client, "away", processes)
        await asyncio.to_thread(server.start)
        await until_fed(client, processes)
        # Frozen: connections stay open, and nobody answers.
        node.signal(signal.SIGSTOP)
        await until_state(client, "away", processes)
        node.signal(signal.SIGCONT)
        await until_fed(client, processes)
    longest = await load.judge(processes)
    # Nobody has lost its place at the broker, and what fails for good is told of there.
    await until_waiting(address, names[-1], 2, processes)
    await client.aclose()
    assert await fail_one(store, address) == "run.dead"
    print(f"{len(load.runs)} runs, the latest {longest:.2f} s late")  # noqa: T201
    assert len(load.runs) > 300, "too little load to say anything"
    assert longest < LATE


@large
@pytest.mark.parametrize("setup", [pytest.param(("three", "quorum"), id="quorum")], indirect=True)
async def test_the_death_of_the_node_that_leads_a_queue_is_hardly_noticed(
    setup: tuple[RabbitMQ, str], store: PostgresStore, processes: Processes, postgres_database: str
) -> None:
    """Each dies in its turn. Who leads a queue does so until it dies, so one of them did."""
    server, address = setup
    client = await begin(processes)
    queue = (await names_of(store, address))[1]
    await until_waiting(address, queue, 2, processes)
    async with Load(store, postgres_database) as load:
        await asyncio.sleep(2)
        for node in server.nodes:
            node.signal(signal.SIGKILL)
            await asyncio.sleep(5)
            await until_state(client, "ok", processes)
            await asyncio.to_thread(server.start)
            await asyncio.sleep(3)
    longest = await load.judge(processes)
    await until_waiting(address, queue, 2, processes)
    await client.aclose()
    print(f"{len(load.runs)} runs, the latest {longest:.2f} s late")  # noqa: T201
    assert longest < LATE
