"""Redis behind Sentinels and as a cluster, and the status cache in Redis."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from mainspring.core.model.base.errors import BrokerUnavailable
from mainspring.core.model.base.instant import HOUR, SECOND
from mainspring.core.model.cluster.hints import Hint, HintCodec
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.core.worker.reporting.status_cache import FlagListener, WorkerStatusWriter
from mainspring.core.worker.runtime import WorkerRuntime
from mainspring.core.worker.settings import WorkerSettings
from mainspring.core.worker.worker import Worker
from mainspring.features.events.status_writer import StatusWriter
from mainspring.integrations.redis.address import parse_redis
from mainspring.integrations.redis.dispatch import RedisDispatch
from mainspring.integrations.redis.servers import Client, RedisServers
from mainspring.integrations.redis.status_cache import RedisStatusCache
from mainspring.stores.memory import MemoryStore
from tests.support.builders import a_run
from tests.support.servers import started
from tests.support.waiting import eventually
from tests.support.worker_kit import Tasks
from tools.services.redis import RedisSentinel

EACH = ("redis", "redis-sentinel", "redis-cluster")


@pytest.fixture(params=EACH)
def address(request: pytest.FixtureRequest, address_of: Callable[[str], str]) -> str:
    return address_of(request.param)


@pytest.fixture
async def outside(address: str) -> AsyncIterator[Client]:
    servers = RedisServers(parse_redis(address, "address"))
    yield servers.open()
    await servers.close()


@pytest.fixture
async def status_cache(address: str) -> AsyncIterator[RedisStatusCache]:
    status_cache = RedisStatusCache(parse_redis(address, "address"))
    await status_cache.open(uuid4().hex)
    yield status_cache
    await status_cache.close()


async def read_status(outside: Client, key: str) -> dict[str, object]:
    text = await outside.get(key)
    assert text is not None
    found: dict[str, object] = json.loads(text)
    return found


async def test_the_status_cache_mirrors_the_states_of_runs(status_cache: RedisStatusCache, outside: Client) -> None:
    clock = SystemClock()
    store = MemoryStore(clock, 4)
    owned: dict[int, int] = {}
    writer = StatusWriter(store, status_cache, LocalWakeups(), clock, lambda: owned)
    await writer.tick()
    assert store._tables.readers == {}
    owned[0] = 1
    await writer.tick()
    runs = [a_run() for _ in range(3)]
    await store.submit(runs)
    await store.cancel([runs[2].id])
    await writer.tick()
    states = [(await read_status(outside, f"job_status:{run.id}"))["state"] for run in runs]
    assert states == ["queued", "queued", "cancelled"]
    assert 3_000 < await outside.ttl(f"job_status:{runs[0].id}") <= 3_600
    assert await store.events("status", 10) == []


async def test_events_are_kept_while_the_status_cache_is_away() -> None:
    clock = SystemClock()
    store = MemoryStore(clock, 4)
    away = RedisStatusCache(parse_redis("redis://127.0.0.1:1", "address"))
    await away.open("nobody")
    writer = StatusWriter(store, away, LocalWakeups(), clock, lambda: {0: 1})
    await writer.tick()
    await store.submit([a_run()])
    assert await writer.tick() == SECOND
    assert len(await store.events("status", 10)) == 1
    await away.close()


async def test_a_worker_has_a_status_while_it_runs_and_stops_a_flagged_run_at_once(
    status_cache: RedisStatusCache, outside: Client
) -> None:
    clock = SystemClock()
    store = MemoryStore(clock, 4)
    began, looked = asyncio.Event(), asyncio.Event()

    async def long(_: HeldRun) -> None:
        began.set()
        await asyncio.Event().wait()

    class ObservedWorker(Worker):
        def look_for_cancels(self) -> None:
            super().look_for_cancels()
            looked.set()

    name = uuid4().hex
    # There are no notifications and a heartbeat is an hour away: only the flag can stop the run.
    settings = WorkerSettings(
        name=name, lease=10 * HOUR, heartbeat_interval=HOUR, lease_margin=HOUR, poll_interval=SECOND // 10
    )
    worker = ObservedWorker(WorkerRuntime(store, LocalWakeups(), clock, settings), Tasks(greet=long))
    run = a_run()
    await store.submit([run])
    await worker.start()
    shower = WorkerStatusWriter(worker, status_cache, LocalWakeups(), clock)
    listener = FlagListener(worker, status_cache, LocalWakeups(), clock)
    try:
        async with shower, listener:
            await began.wait()
            await eventually(lambda: outside.get(f"worker_status:{name}"))
            assert (await read_status(outside, f"worker_status:{name}"))["queues"] == {"default": 100}
            assert 100 < await outside.ttl(f"worker_status:{name}") <= 300
            # The listener has subscribed, and has looked once for older flags.
            await looked.wait()
            assert await store.cancel([run.id]) == {run.id: RunState.CANCELLING}
            await status_cache.flag([run.id])
            assert await outside.get(f"cancel:{run.id}") == b"true"
            assert 0 < await outside.ttl(f"cancel:{run.id}") <= 300

            async def is_cancelled() -> bool:
                [view] = await store.runs([run.id])
                return view is not None and view.state is RunState.CANCELLED

            await eventually(is_cancelled)
        assert await outside.get(f"worker_status:{name}") is None
    finally:
        await worker.stop(0)


async def test_a_server_that_evicts_keys_is_reported(address: str, outside: Client) -> None:
    broker = RedisDispatch(address, SystemClock(), HintCodec(b"key"))
    await broker.open("somebody")
    assert await broker.warnings() == []
    await outside.config_set("maxmemory-policy", "allkeys-lru")
    try:
        [warning] = await broker.warnings()
        assert "allkeys-lru" in warning
    finally:
        await outside.config_set("maxmemory-policy", "noeviction")
        await broker.close()


async def test_the_broker_finds_the_new_master_after_a_failover(tmp_path: Path) -> None:
    servers = RedisSentinel(tmp_path)
    address = started(servers)
    broker = RedisDispatch(address, SystemClock(), HintCodec(b"key"))
    try:
        await broker.open("somebody")
        await broker.publish([Hint(a_run().id, "default", 1)])
        servers.nodes[0].signal(signal.SIGKILL)
        servers.nodes[2].signal(signal.SIGKILL)
        hint = Hint(a_run().id, "default", 2)

        async def is_published() -> bool:
            with suppress(BrokerUnavailable):
                await broker.publish([hint])
                return True
            return False

        await eventually(is_published)
        assert hint.run in [delivery.hint.run for delivery in await broker.take("default", 10, 0)]
    finally:
        await broker.close()
        servers.remove()


async def test_repeated_subscriptions_to_a_cluster_use_one_connection_pool_per_node() -> None:
    servers = RedisServers(parse_redis("redis+cluster://127.0.0.1:1,127.0.0.1:2", "address"))
    servers.open()
    pools = [servers.listener().connection_pool for _ in range(6)]
    assert len({id(pool) for pool in pools}) == 2
    await servers.close()
