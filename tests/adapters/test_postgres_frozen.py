"""A process that freezes, or is cut off, in the middle of something: the others go on without it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from mainspring.adapters.store.postgres import PostgresStore
from mainspring.adapters.store.postgres.database import Connection
from mainspring.domain.errors import StoreUnavailable
from mainspring.domain.instant import MILLISECOND, MINUTE, SECOND
from mainspring.domain.run import RunState, settle_loss
from mainspring.ports.store import Want
from tests.support.builders import a_run, a_worker
from tools.chaos.link import Link

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
async def store(postgres_database: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_database, shards=4)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def link(postgres_database: str) -> AsyncIterator[Link]:
    there = urlsplit(postgres_database)
    link = Link(there.hostname or "127.0.0.1", there.port or 5432)
    await link.open()
    yield link
    await link.close()


@pytest.fixture
async def victim(postgres_database: str, store: PostgresStore, link: Link) -> AsyncIterator[PostgresStore]:
    """The store as one process reaches it, by a wire that can fall silent."""
    there = urlsplit(postgres_database)
    victim = PostgresStore(urlunsplit(there._replace(netloc=f"{there.username}@127.0.0.1:{link.port}")), shards=4)
    await victim.open()
    yield victim
    await link.open()
    await victim.close()


async def until(connection: asyncpg.Connection, condition: str) -> None:
    async with asyncio.timeout(30):
        while not await connection.fetchval(condition):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_worker_that_hears_nothing_of_a_large_claim_stops_no_scheduler_and_no_reaper(
    store: PostgresStore, victim: PostgresStore, link: Link, postgres_database: str
) -> None:
    """The server cannot send the answer, so it does not commit; the claim's lock on its session stays for so long."""
    payload = b'"' + b"x" * 250_000 + b'"'
    for _ in range(6):
        await store.submit([a_run(payload=payload) for _ in range(10)])
    dead = await store.open_session(a_worker(ttl=100 * MILLISECOND))
    scheduler = await store.join("scheduler", MINUTE)
    frozen = await victim.open_session(a_worker(ttl=4 * SECOND))
    # It has claimed before, so that there is nothing left to be prepared.
    assert await victim.claim(frozen, 1, [Want("empty", 1)]) == []
    link.silence("back")
    claiming = asyncio.create_task(victim.claim(frozen, 2, [Want("default", 60)]))
    connection = await asyncpg.connect(postgres_database)
    try:
        await until(connection, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'ClientWrite'")
        await until(connection, "SELECT max(lease_until) < mainspring.now_us() FROM mainspring.session WHERE kind = 1")
        assert (await store.renew(scheduler, MINUTE)).members == (scheduler,)
        assert await store.lost_runs(10) == []
        live = await connection.fetchval("SELECT live FROM mainspring.session WHERE id = $1", dead)
        assert not live
        # The server gives the connection up in a while, and then the worker is buried like any other.
        async with asyncio.timeout(40):
            while await connection.fetchval("SELECT live FROM mainspring.session WHERE id = $1", frozen):
                await store.lost_runs(10)
                await asyncio.sleep(0.2)
        other = await store.open_session(a_worker())
        assert len(await store.claim(other, 1, [Want("default", 60)])) == 60
    finally:
        await connection.close()
        claiming.cancel()
        await asyncio.gather(claiming, return_exceptions=True)


async def test_a_worker_that_freezes_before_it_commits_a_completion_does_not_keep_the_run(
    store: PostgresStore,
) -> None:
    worker = await store.open_session(a_worker())
    run = a_run()
    await store.submit([run])
    (held,) = await store.claim(worker, 1, [Want("default", 1)])

    async def reap() -> None:
        """The reapers come again until they have it."""
        while (view := (await store.runs([run.id]))[0]) is None or view.state is not RunState.QUEUED:
            with suppress(StoreUnavailable):
                await store.settle([settle_loss(lost, blamed=False) for lost in await store.lost_runs(10)])
            await asyncio.sleep(0.1)

    async def freeze() -> None:
        async with store.completing(held) as transaction:
            await transaction.complete(None)
            await store.close_session(worker)
            await asyncio.wait_for(reap(), 40)

    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, ConnectionError)):
        await freeze()
    view = (await store.runs([run.id]))[0]
    assert view is not None
    assert (view.state, view.lost) == (RunState.QUEUED, 1)


async def test_what_broke_a_connection_is_told_and_not_what_came_of_it(victim: PostgresStore, link: Link) -> None:
    await victim.now()
    asking = asyncio.create_task(victim._engine.run(lambda connection: connection.fetchval("SELECT pg_sleep(30)")))
    await asyncio.sleep(0.3)
    await link.cut()
    with pytest.raises(StoreUnavailable) as told:
        await asking
    assert "cannot call" not in str(told.value)


async def test_a_claim_that_began_before_a_run_was_due_does_not_say_that_it_started_early(store: PostgresStore) -> None:
    """Its time is that of its transaction, which may have waited for a processor before it looked."""
    worker = await store.open_session(a_worker(ttl=MINUTE))
    await store.submit([a_run()])
    await store.claim(worker, 1, [Want("default", 1)])
    run = a_run()

    async def claim(connection: Connection) -> None:
        await connection.fetchval("SELECT mainspring.now_us()")
        await store.submit([run])
        queue = await connection.fetchval("SELECT id FROM mainspring.name WHERE kind = 3 AND name = 'default'")
        await connection.fetch(store._engine.sql["claim"], worker, 2, [queue], [1], [0])

    await store._engine.transaction(claim)
    view = (await store.runs([run.id]))[0]
    assert view is not None
    assert view.state is RunState.RUNNING
    assert view.started_at is not None
    assert view.started_at >= view.due
