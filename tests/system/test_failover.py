"""A primary dies, or is left up when another is promoted: real servers, and an address that names all of them."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import asyncpg
import pytest

from mainspring.adapters.clock.system import SystemClock
from mainspring.adapters.postgres_servers import servers_of
from mainspring.adapters.store.postgres import PostgresStore
from mainspring.adapters.wakeups.postgres import PostgresWakeups
from mainspring.bench.local_postgres import ROLE, LocalPostgres
from mainspring.domain.errors import StoreUnavailable
from mainspring.domain.instant import MINUTE, SECOND
from mainspring.domain.run import NewRun
from mainspring.ports.catalog import RunFilter
from mainspring.ports.store import Want
from mainspring.ports.wakeups import queue_topic
from tests.conftest import with_database
from tests.support.builders import a_run, a_worker
from tests.support.standbys import Standby, primary_and_standbys
from tests.support.store_harness import build_wall

pytestmark = [pytest.mark.postgres, pytest.mark.xdist_group("failover")]

#: Under a loaded machine; it is mostly under two seconds.
WITHIN = 30.0


@pytest.fixture(scope="module")
def servers(postgres_dsn: str) -> Iterator[tuple[LocalPostgres, list[Standby]]]:
    with primary_and_standbys("first", "second") as found:
        yield found


def address(*servers: LocalPostgres) -> str:
    return f"postgresql://{ROLE}@{','.join(f'127.0.0.1:{server.port}' for server in servers)}/{ROLE}"


@pytest.fixture
async def opened() -> AsyncIterator[Callable[[str], Awaitable[PostgresStore]]]:
    stores: list[PostgresStore] = []

    async def open_store(dsn: str) -> PostgresStore:
        store = PostgresStore(dsn, shards=4, connections=3)
        await store.open()
        stores.append(store)
        return store

    yield open_store
    for store in stores:
        await store.close()


async def submit(store: PostgresStore, runs: list[NewRun]) -> float:
    """Until it is accepted, as a client does; how long that took."""
    began = time.monotonic()
    while True:
        try:
            async with asyncio.timeout(3):
                await store.submit(runs)
            return time.monotonic() - began
        except (StoreUnavailable, TimeoutError):
            assert time.monotonic() - began < WITHIN
            await asyncio.sleep(0.05)


async def test_lists_come_from_a_replica_until_that_is_too_far_behind(
    servers: tuple[LocalPostgres, list[Standby]],
) -> None:
    primary, (_, second) = servers
    store = PostgresStore(primary.dsn, shards=4, connections=3, replica=(second.dsn, 2 * SECOND))
    await store.open()
    try:
        await build_wall(store, primary.dsn)
        wanted = RunFilter(tenant="default")

        async def listed(tenant: str | None) -> set[str]:
            return {run.id for run in (await store.listed_by(tenant).list_runs(wanted, None, 1_000)).items}

        async def until(runs: set[str], tenant: str | None) -> None:
            deadline = time.monotonic() + WITHIN
            while not runs <= await listed(tenant):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)

        first = a_run()
        await store.submit([first])
        for tenant in (None, "default"):
            await until({first.id}, tenant)
        assert store.replica is not None
        deadline = time.monotonic() + WITHIN
        while not await store.replica.is_fresh():
            # It has yet to come past the first place that was looked at.
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
        await execute(second, "SELECT pg_wal_replay_pause()")
        late = a_run()
        began = time.monotonic()
        await store.submit([late])
        # What decides is read from the primary, whatever the lists say.
        assert [view and view.id for view in await store.seen_by("default").runs([late.id])] == [late.id]
        assert late.id not in await listed("default") or time.monotonic() - began > 1.5
        await until({late.id}, "default")
        assert store.replica.staleness is None or store.replica.staleness > 2 * SECOND
        await execute(second, "SELECT pg_wal_replay_resume()")
    finally:
        await store.close()


async def test_a_primary_that_was_left_up_is_left(
    servers: tuple[LocalPostgres, list[Standby]], opened: Callable[[str], Awaitable[PostgresStore]]
) -> None:
    primary, (first, _) = servers
    dsn = address(primary, first)
    servers_of(dsn).watch_every = 0.5
    store = await opened(dsn)
    before = [a_run() for _ in range(10)]
    await store.submit(before)
    await asyncio.to_thread(first.promote)
    # Nothing tells us: the old primary goes on answering. A look at the other servers does.
    deadline = time.monotonic() + WITHIN
    while store._engine.servers.generation == 0:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    after = a_run()
    await submit(store, [after])
    assert await found(first, [*before, after]) == 11
    assert await found(primary, [after]) == 0
    # Also who comes now finds it, wherever it stands in the address.
    late = await opened(address(primary, first) + "?application_name=late")
    assert [view and view.id for view in await late.runs([after.id])] == [after.id]


async def test_a_primary_that_is_killed_loses_nothing_that_a_synchronous_standby_has(
    servers: tuple[LocalPostgres, list[Standby]], opened: Callable[[str], Awaitable[PostgresStore]]
) -> None:
    primary, (_, second) = servers
    await execute(primary, "ALTER SYSTEM SET synchronous_standby_names = 'second'", "SELECT pg_reload_conf()")
    dsn = address(second, primary)
    store = await opened(dsn)
    wakeups = PostgresWakeups(dsn, SystemClock())
    await wakeups.open()
    bell = wakeups.listen([queue_topic("default")])
    acknowledged: list[NewRun] = []
    waits: list[float] = []
    stop = asyncio.Event()

    async def go_on() -> None:
        while not stop.is_set():
            runs = [a_run() for _ in range(5)]
            waits.append(await submit(store, runs))
            acknowledged.extend(runs)

    submitting = asyncio.create_task(go_on())
    while len(acknowledged) < 50:
        await asyncio.sleep(0.01)
    pid = primary.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    # For a while there is none, and everybody tries in vain.
    await asyncio.sleep(1)
    await asyncio.to_thread(second.promote)
    killed_at = len(acknowledged)
    while len(acknowledged) < killed_at + 50:
        await asyncio.sleep(0.01)
    stop.set()
    await submitting
    assert await found(second, acknowledged) == len(acknowledged)
    assert max(waits) < WITHIN
    # They can be run, and each once.
    worker = await store.open_session(a_worker(ttl=10 * MINUTE))
    held = await store.claim(worker, 1, [Want("default", 10_000)])
    assert len({run.id for run in held}) == len(held) >= len(acknowledged)
    # And the one who listens hears of the new primary.
    async with asyncio.timeout(WITHIN):
        heard = asyncio.create_task(bell.wait(10 * MINUTE))
        while not heard.done():
            await execute(second, f"SELECT pg_notify('mainspring_wakeups', 'other {queue_topic('default')}')")
            await asyncio.sleep(0.05)
    await wakeups.close()


async def found(server: LocalPostgres, runs: list[NewRun]) -> int:
    connection = await asyncpg.connect(server.dsn)
    try:
        return int(
            await connection.fetchval(
                "SELECT count(*) FROM mainspring.run WHERE id = ANY ($1::uuid[])", [run.id for run in runs]
            )
        )
    finally:
        await connection.close()


async def execute(server: LocalPostgres, *statements: str) -> None:
    connection = await asyncpg.connect(with_database(server.admin_dsn, ROLE))
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()
