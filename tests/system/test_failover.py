"""A PostgreSQL primary dies, or keeps running after another server was promoted. The address names all servers."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import asyncpg
import pytest

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.ports.storage.catalog import RunFilter
from mainspring.core.ports.wakeups import queue_topic
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.core.store import Demand
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.servers import get_servers
from mainspring.stores.postgres.wakeups import PostgresWakeups
from tests.support.builders import a_run, a_worker
from tests.support.databases import with_database
from tests.support.standbys import Standby, primary_and_standbys
from tests.support.store_harness import build_reader_role
from tests.support.waiting import eventually
from tools.services.local_postgres import ROLE, LocalPostgres

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(900), pytest.mark.xdist_group("failover")]


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


async def submit(store: PostgresStore, runs: list[NewRun], refusals: list[Exception]) -> None:
    """Submit again until it is accepted, as a client does."""

    async def accepted() -> bool:
        try:
            async with asyncio.timeout(60):
                await store.submit(runs)
        except (StoreUnavailable, TimeoutError) as error:
            refusals.append(error)
            return False
        return True

    await eventually(accepted, lambda: refusals[-1:])


async def test_lists_are_read_from_a_replica_that_is_fresh_and_otherwise_from_the_primary(
    servers: tuple[LocalPostgres, list[Standby]],
) -> None:
    primary, (_, second) = servers
    # The first one accepts a replica that is an hour behind, the second one 2 s.
    stores = [
        PostgresStore(primary.dsn, shards=4, connections=3, replica=(second.dsn, behind))
        for behind in (HOUR, 2 * SECOND)
    ]
    for store in stores:
        await store.open()
    patient, strict = stores
    try:
        await build_reader_role(patient, primary.dsn)

        async def lists(store: PostgresStore, run: NewRun, tenant: str | None = "default") -> bool:
            page = await store.listed_by(tenant).list_runs(RunFilter(tenant="default"), None, 1_000)
            return run.id in {item.id for item in page.items}

        first = a_run()
        await patient.submit([first])
        for store in stores:
            for tenant in (None, "default"):
                await eventually(lambda store=store, tenant=tenant: lists(store, first, tenant))  # type: ignore[misc]
            assert store.replica is not None
            await eventually(store.replica.is_fresh)
        await execute(second, "SELECT pg_wal_replay_pause()")
        late = a_run()
        await patient.submit([late])
        # Single runs are read from the primary.
        assert [view and view.id for view in await patient.seen_by("default").runs([late.id])] == [late.id]
        assert not await lists(patient, late)
        await eventually(lambda: lists(strict, late))
        assert strict.replica is not None
        assert strict.replica.staleness is None or strict.replica.staleness > 2 * SECOND
        await execute(second, "SELECT pg_wal_replay_resume()")
    finally:
        for store in stores:
            await store.close()


async def test_a_store_leaves_an_old_primary_that_still_answers(
    servers: tuple[LocalPostgres, list[Standby]], opened: Callable[[str], Awaitable[PostgresStore]]
) -> None:
    primary, (first, _) = servers
    dsn = address(primary, first)
    get_servers(dsn).watch_every = 0.5
    store = await opened(dsn)
    before = [a_run() for _ in range(10)]
    await store.submit(before)
    await asyncio.to_thread(first.promote)
    # The old primary still answers. The store finds the new one because it looks at the other servers.
    await eventually(lambda: store._database.servers.generation > 0)
    after = a_run()
    await submit(store, [after], [])
    assert await count_stored(first, [*before, after]) == 11
    assert await count_stored(primary, [after]) == 0
    # A new store finds it, too, although it comes second in the address.
    late = await opened(address(primary, first) + "?application_name=late")
    assert [view and view.id for view in await late.runs([after.id])] == [after.id]


async def test_a_killed_primary_with_a_synchronous_standby_loses_no_accepted_run(
    servers: tuple[LocalPostgres, list[Standby]], opened: Callable[[str], Awaitable[PostgresStore]]
) -> None:
    primary, (_, second) = servers
    await execute(primary, "ALTER SYSTEM SET synchronous_standby_names = 'second'", "SELECT pg_reload_conf()")
    dsn = address(second, primary)
    store = await opened(dsn)
    wakeups = PostgresWakeups(dsn, SystemClock())
    await wakeups.open()
    wakeup = wakeups.listen([queue_topic("default")])
    acknowledged: list[NewRun] = []
    refusals: list[Exception] = []
    stop = asyncio.Event()

    async def submit_on() -> None:
        while not stop.is_set():
            runs = [a_run() for _ in range(5)]
            await submit(store, runs, refusals)
            acknowledged.extend(runs)

    submitting = asyncio.create_task(submit_on())
    await eventually(lambda: len(acknowledged) >= 50)
    pid = primary.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: refusals)
    await asyncio.to_thread(second.promote)
    promoted_at = len(acknowledged)
    await eventually(lambda: len(acknowledged) >= promoted_at + 50)
    stop.set()
    await submitting
    assert await count_stored(second, acknowledged) == len(acknowledged)
    # Each of them can be claimed, once.
    worker = await store.open_session(a_worker(ttl=10 * MINUTE))
    held = await store.claim(worker, 1, [Demand("default", 10_000)])
    assert len({run.id for run in held}) == len(held) >= len(acknowledged)
    # Notifications of the new primary arrive.
    woken = asyncio.create_task(wakeup.wait(10 * MINUTE))

    async def notified() -> bool:
        await execute(second, f"SELECT pg_notify('mainspring_wakeups', 'other {queue_topic('default')}')")
        return woken.done()

    await eventually(notified)
    await wakeups.close()


async def count_stored(server: LocalPostgres, runs: list[NewRun]) -> int:
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
