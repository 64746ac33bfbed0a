"""Real processes with a real Redis as broker, which is flushed, killed and frozen under load: nothing is lost or
completed twice, and the broker feeds the workers again after each fault."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis.asyncio as redis

from mainspring.core.model.cluster.hints import HintCodec
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.integrations.redis.dispatch import RedisDispatch
from mainspring.stores.postgres import PostgresStore
from tests.support.load import Load, start_two_workers, until_broker_is, until_fed
from tests.support.processes import Processes
from tests.support.servers import started
from tools.services.redis import Redis

pytestmark = [pytest.mark.postgres, pytest.mark.system, pytest.mark.timeout(900), pytest.mark.xdist_group("system")]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Redis]:
    server = Redis(tmp_path / "redis")
    started(server)
    yield server
    server.remove()


@pytest.fixture
async def processes(
    postgres_database: str, store: PostgresStore, server: Redis, tmp_path: Path
) -> AsyncIterator[Processes]:
    environment = {"MAINSPRING_DISPATCH_BROKER": server.address()}
    async with Processes(postgres_database, tmp_path / "logs", environment) as processes:
        yield processes


async def test_redis_may_lose_repeat_and_delay_hints_and_every_run_is_completed_once(
    server: Redis, store: PostgresStore, processes: Processes, postgres_database: str
) -> None:
    client = await start_two_workers(processes)
    address = server.address()
    publisher = RedisDispatch(address, SystemClock(), HintCodec((await store.hint_key()).encode()))
    await publisher.open(await store.identity())
    async with Load(store, postgres_database) as load:
        async with redis.Redis.from_url(address) as outside:
            await until_fed(client, processes)
            for _ in range(3):
                await outside.flushall()
                await load.until_more(50, processes)
            await until_fed(client, processes)
            # Deliver every hint three times more. Most of the runs have ended.
            for _ in range(3):
                await load.repeat_hints(publisher)
                await load.until_more(20, processes)
        await until_fed(client, processes)
        # A busy broker may have been away for a moment.
        await until_broker_is("ok", client, processes)
        for node in server.nodes:
            node.signal(signal.SIGKILL)
        await asyncio.to_thread(server.start)
        await until_fed(client, processes)
        # Away for a while: the circuit breaker opens, the store feeds the workers, and the breaker closes.
        for node in server.nodes:
            node.signal(signal.SIGKILL)
        await until_broker_is("away", client, processes)
        await load.until_more(200, processes)
        await asyncio.to_thread(server.start)
        await until_fed(client, processes)
        # Frozen: connections stay open, and requests are not answered.
        for node in server.nodes:
            node.signal(signal.SIGSTOP)
        await until_broker_is("away", client, processes)
        for node in server.nodes:
            node.signal(signal.SIGCONT)
        await until_fed(client, processes)
        await until_broker_is("ok", client, processes)
    await publisher.close()
    await client.aclose()
    await load.check(processes)
