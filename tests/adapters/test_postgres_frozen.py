"""A process that freezes, or is cut off, in the middle of a call: the other processes continue without it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import HOUR, MINUTE
from mainspring.core.model.runs.completion import complete_loss
from mainspring.core.model.runs.run import RunState
from mainspring.core.store import Demand
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.database import Connection
from tests.support.builders import a_run, a_worker
from tests.support.store_harness import TEST_CLOCK_SQL
from tests.support.waiting import eventually
from tools.chaos.link import Link

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


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
    """A store whose connection to the server can fall silent."""
    there = urlsplit(postgres_database)
    victim = PostgresStore(urlunsplit(there._replace(netloc=f"{there.username}@127.0.0.1:{link.port}")), shards=4)
    await victim.open()
    yield victim
    await link.open()
    await victim.close()


async def test_a_worker_that_gets_no_answer_to_a_large_claim_blocks_no_scheduler_and_no_reaper(
    store: PostgresStore, victim: PostgresStore, link: Link, postgres_database: str
) -> None:
    """The server cannot send the answer, so it does not commit, and the claim keeps its lock on its session."""
    payload = b'"' + b"x" * 250_000 + b'"'
    for _ in range(6):
        await store.submit([a_run(payload=payload) for _ in range(10)])
    connection = await asyncpg.connect(postgres_database)
    await connection.execute(TEST_CLOCK_SQL.format(schema="mainspring"))
    expired = await store.open_session(a_worker(ttl=MINUTE))
    scheduler = await store.join("scheduler", 2 * HOUR)
    frozen = await victim.open_session(a_worker(ttl=MINUTE))
    # A first claim prepares the statements.
    assert await victim.claim(frozen, 1, [Demand("empty", 1)]) == []
    link.silence("back")
    claiming = asyncio.create_task(victim.claim(frozen, 2, [Demand("default", 60)]))

    async def is_live(session: SessionId) -> bool:
        return bool(await connection.fetchval("SELECT live FROM session WHERE id = $1", session))

    async def is_reaped() -> bool:
        await store.lost_runs(10)
        return not await is_live(frozen)

    try:
        writing = "FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'ClientWrite'"
        await eventually(lambda: connection.fetchval(f"SELECT count(*) {writing}"))
        await connection.execute("UPDATE test_clock SET offset_us = $1", HOUR)
        assert (await store.renew(scheduler, 2 * HOUR)).members == (scheduler,)
        assert await store.lost_runs(10) == []
        assert not await is_live(expired)
        # The server drops the silent connection after some seconds, and the session expires like any other.
        await eventually(is_reaped)
        other = await store.open_session(a_worker())
        assert len(await store.claim(other, 1, [Demand("default", 60)])) == 60
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
    (held,) = await store.claim(worker, 1, [Demand("default", 1)])

    async def is_requeued_by_the_reaper() -> bool:
        with suppress(StoreUnavailable):
            await store.complete([complete_loss(lost, blamed=False) for lost in await store.lost_runs(10)])
        [view] = await store.runs([run.id])
        return view is not None and view.state is RunState.QUEUED

    async def freeze() -> None:
        async with store.completing(held) as transaction:
            await transaction.complete_run(None)
            await store.close_session(worker)
            await eventually(is_requeued_by_the_reaper)

    # The driver raises an internal error if the server ends the session in the moment of the commit.
    driver_errors = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, ConnectionError)
    with pytest.raises(driver_errors):
        await freeze()
    view = (await store.runs([run.id]))[0]
    assert view is not None
    assert (view.state, view.lost) == (RunState.QUEUED, 1)


async def test_the_error_of_a_lost_connection_names_its_cause(
    store: PostgresStore, victim: PostgresStore, link: Link, postgres_database: str
) -> None:
    worker = await victim.open_session(a_worker())
    await store.submit([a_run()])
    holding = await asyncpg.connect(postgres_database)
    await holding.execute("BEGIN; SELECT FROM mainspring.session FOR UPDATE")
    claiming = asyncio.create_task(victim.claim(worker, 1, [Demand("default", 1)]))
    waiting = "FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    await eventually(lambda: holding.fetchval(f"SELECT count(*) {waiting}"))
    await link.cut()
    with pytest.raises(StoreUnavailable) as raised:
        await claiming
    assert "cannot call" not in str(raised.value)
    await holding.close()


async def test_a_claim_that_began_before_a_run_was_due_records_no_start_before_that(store: PostgresStore) -> None:
    """The time of a claim is that of its transaction, which may wait for a processor before it looks for runs."""
    worker = await store.open_session(a_worker(ttl=MINUTE))
    await store.submit([a_run()])
    await store.claim(worker, 1, [Demand("default", 1)])
    run = a_run()

    async def claim(connection: Connection) -> None:
        await connection.fetchval("SELECT mainspring.now_us()")
        await store.submit([run])
        queue = await connection.fetchval("SELECT id FROM mainspring.name WHERE kind = 3 AND name = 'default'")
        await connection.fetch(
            *store._database.sql["claim"].bind(session=worker, claim=2, queues=[queue], limits=[1], start_ranks=[0])
        )

    await store._database.transaction(claim)
    view = (await store.runs([run.id]))[0]
    assert view is not None
    assert view.state is RunState.RUNNING
    assert view.started_at is not None
    assert view.started_at >= view.due
