"""Real processes with RabbitMQ as broker: its queues are deleted, its messages are repeated, and its nodes are killed
and frozen under load. Nothing is lost or completed twice, and every worker consumes again after each fault.

``LARGE_TESTS=1`` runs the cluster, too.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import amqp
import pytest

from mainspring.core.model.cluster.hints import HintCodec
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.retry import RetryPolicy
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.integrations.rabbitmq.dispatch import RabbitDispatch
from mainspring.stores.postgres import PostgresStore
from tests.support import rabbitmq
from tests.support.load import Load, make_jobs, start_two_workers, until_broker_is, until_fed
from tests.support.processes import Processes
from tests.support.servers import started
from tests.support.waiting import eventually
from tools.services.rabbitmq import RabbitMQ, RabbitMQCluster

pytestmark = [pytest.mark.postgres, pytest.mark.system, pytest.mark.timeout(900), pytest.mark.xdist_group("system")]

large = pytest.mark.skipif(os.environ.get("LARGE_TESTS") != "1", reason="LARGE_TESTS=1 runs it")


@pytest.fixture
def setup(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[RabbitMQ, str]]:
    """A RabbitMQ for one test, and its address in the settings."""
    nodes, kind = request.param
    server = (RabbitMQCluster if nodes == "three" else RabbitMQ)(tmp_path / "rabbitmq")
    yield server, f"{started(server)}?kind={kind}"
    server.remove()


@pytest.fixture
async def processes(
    postgres_database: str,
    store: PostgresStore,
    setup: tuple[RabbitMQ, str],
    tmp_path: Path,
) -> AsyncIterator[Processes]:
    environment = {"MAINSPRING_DISPATCH_BROKER": setup[1]}
    async with Processes(postgres_database, tmp_path / "logs", environment) as processes:
        yield processes


async def name_queues(store: PostgresStore, address: str) -> tuple[str, ...]:
    identity = await store.identity()
    if "kind=classic" in address:
        return (f"mainspring.{identity}.queue.load",)
    return tuple(f"mainspring.{identity}.p{band}.load" for band in (1, 2, 3))


async def until_consumed(address: str, name: str, workers: int, processes: Processes) -> None:
    """Wait until a queue has so many consumers."""

    def consumed() -> bool:
        # A worker is ready before it has declared its queues.
        with suppress(amqp.exceptions.NotFound), rabbitmq.channel_of(address) as channel:
            return bool(channel.queue_declare(name, passive=True).consumer_count == workers)
        return False

    await eventually(lambda: asyncio.to_thread(consumed), processes.logs)


async def fail_one(store: PostgresStore, address: str, processes: Processes) -> str:
    """Submit a run that fails; the type of the message that RabbitMQ has about it."""
    jobs = make_jobs(store)
    never = RunPolicy(retry=RetryPolicy(max_retries=0))
    run = NewRun(id=jobs.new_run_id(), task="moment", payload=b'{"milliseconds":"x"}', queue="load", policy=never)
    await jobs.submit_many([run])
    dead = f"mainspring.{await store.identity()}.dead"

    async def received() -> str:
        # The queue is declared with the first message.
        with suppress(amqp.exceptions.NotFound):
            for message in await asyncio.to_thread(rabbitmq.read_all, address, dead):
                if message.properties.get("message_id") == run.id:
                    return str(message.properties["type"])
        return ""

    return await eventually(received, processes.logs)


@pytest.mark.parametrize(
    "setup",
    [pytest.param(("one", "classic"), id="classic"), pytest.param(("one", "quorum"), id="quorum", marks=large)],
    indirect=True,
)
async def test_rabbitmq_may_lose_and_repeat_hints_and_every_run_is_completed_once(
    setup: tuple[RabbitMQ, str], store: PostgresStore, processes: Processes, postgres_database: str
) -> None:
    server, address = setup
    client = await start_two_workers(processes)
    names = await name_queues(store, address)
    publisher = RabbitDispatch(address, SystemClock(), HintCodec((await store.hint_key()).encode()))
    await publisher.open(await store.identity())
    await until_consumed(address, names[-1], 2, processes)
    async with Load(store, postgres_database) as load:
        await until_fed(client, processes)
        for _ in range(3):
            await asyncio.to_thread(rabbitmq.delete, address, *names)
            await load.until_more(50, processes)
        await until_fed(client, processes)
        # Deliver every hint three times more. Most of the runs have ended.
        for _ in range(3):
            await load.repeat_hints(publisher)
            await load.until_more(20, processes)
        await until_fed(client, processes)
        await publisher.close()
        # A busy broker may have been away for a moment.
        await until_broker_is("ok", client, processes)
        [node] = server.nodes
        node.signal(signal.SIGKILL)
        await until_broker_is("away", client, processes)
        await asyncio.to_thread(server.start)
        await until_fed(client, processes)
        # Frozen: connections stay open, and requests are not answered.
        node.signal(signal.SIGSTOP)
        await until_broker_is("away", client, processes)
        node.signal(signal.SIGCONT)
        await until_fed(client, processes)
    await load.check(processes)
    # Every worker consumes again, and RabbitMQ receives a message about a run that failed.
    await until_consumed(address, names[-1], 2, processes)
    await client.aclose()
    assert await fail_one(store, address, processes) == "run.dead"


@large
@pytest.mark.parametrize("setup", [pytest.param(("three", "quorum"), id="quorum")], indirect=True)
async def test_a_rabbitmq_cluster_feeds_the_workers_without_the_leader_of_a_queue(
    setup: tuple[RabbitMQ, str], store: PostgresStore, processes: Processes, postgres_database: str
) -> None:
    """Each node is killed in its turn. A node leads a queue until it dies, so one of them was the leader."""
    server, address = setup
    client = await start_two_workers(processes)
    queue = (await name_queues(store, address))[1]
    await until_consumed(address, queue, 2, processes)
    async with Load(store, postgres_database) as load:
        await until_fed(client, processes)
        for node in server.nodes:
            node.signal(signal.SIGKILL)
            await until_fed(client, processes)
            await until_broker_is("ok", client, processes)
            await asyncio.to_thread(server.start)
            await until_fed(client, processes)
    await load.check(processes)
    await until_consumed(address, queue, 2, processes)
    await client.aclose()
