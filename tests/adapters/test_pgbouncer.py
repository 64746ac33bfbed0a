"""Everything works through pgbouncer in transaction mode, slower; it is noticed, and said."""

import asyncio
import hashlib
from collections.abc import AsyncIterator

import asyncpg
import pytest

from mainspring.adapters.clock.system import SystemClock
from mainspring.adapters.store import named_sql
from mainspring.adapters.store.postgres import PostgresStore
from mainspring.adapters.store.postgres.database import PACKAGE
from mainspring.adapters.wakeups import postgres as wakeups_module
from mainspring.adapters.wakeups.postgres import PostgresWakeups
from mainspring.domain.ids import RunId
from mainspring.domain.instant import MINUTE
from mainspring.domain.run import RunState, settle_success
from mainspring.ports.catalog import RunFilter
from mainspring.ports.store import Want
from tests.conftest import make_template
from tests.support.builders import a_run, a_worker, some_runs
from tests.support.pgbouncer import through_pgbouncer
from tests.support.store_harness import build_wall

pytestmark = pytest.mark.postgres


@pytest.fixture
async def postgres_template(postgres_dsn: str) -> str:
    """Made once: a database with the schema in it."""

    async def prepare(dsn: str) -> None:
        store = PostgresStore(dsn, shards=4)
        await store.open()
        await store.close()

    digest = hashlib.sha256(b"".join(text.encode() for _, _, text in named_sql.migrations(PACKAGE))).hexdigest()[:12]
    return await make_template(postgres_dsn, f"template_pgbouncer_{digest}", prepare)


@pytest.fixture
async def store(postgres_database: str) -> AsyncIterator[PostgresStore]:
    # So many that they take turns on the few connections behind.
    store = PostgresStore(through_pgbouncer(postgres_database), shards=4, connections=20)
    await store.open()
    yield store
    await store.close()


async def test_it_is_noticed(store: PostgresStore, postgres_database: str) -> None:
    assert store._engine.servers.pooled
    straight = PostgresStore(postgres_database, shards=4)
    await straight.open()
    assert not straight._engine.servers.pooled
    await straight.close()


async def test_many_at_once_make_run_and_end_each_run_once(store: PostgresStore) -> None:
    batches = [some_runs(20) for _ in range(20)]
    await asyncio.gather(*(store.submit(batch) for batch in batches))
    workers = [await store.open_session(a_worker(ttl=10 * MINUTE)) for _ in range(4)]

    async def work(worker_number: int) -> list[RunId]:
        done: list[RunId] = []
        for number in range(1, 100):
            held = await store.claim(workers[worker_number], number, [Want("default", 17)])
            if not held:
                break
            await store.settle([settle_success(run, b'"done"') for run in held])
            done += [run.id for run in held]
        return done

    done = [run for runs in await asyncio.gather(*(work(number) for number in range(4))) for run in runs]
    wanted = [run.id for batch in batches for run in batch]
    assert sorted(done) == sorted(wanted)
    views = await store.runs(wanted)
    assert {view.state for view in views if view is not None} == {RunState.SUCCEEDED}


async def test_people_see_their_own_tenant_alone(store: PostgresStore, postgres_database: str) -> None:
    await build_wall(store, postgres_database)
    await store.submit([a_run(tenant="red"), a_run(tenant="blue"), a_run(tenant="blue")])

    async def seen(tenant: str) -> list[str]:
        page = await store.seen_by(tenant).list_runs(RunFilter(tenant=None), None, 10)
        return [run.tenant for run in page.items]

    for _ in range(5):
        assert tuple(await asyncio.gather(seen("red"), seen("blue"), seen("red"))) == (["red"], ["blue"] * 2, ["red"])
    # Behind both walls: the role is bound, and what it is bound to is gone with its transaction.
    readers = await store._wall.readers()
    assert readers is not store._engine
    assert await readers.run(_rows_without_a_tenant) == 0


async def _rows_without_a_tenant(connection: "asyncpg.pool.PoolConnectionProxy[asyncpg.Record]") -> int:
    return int(await connection.fetchval("SELECT count(*) FROM mainspring.run"))


async def test_upkeep_goes_on(store: PostgresStore) -> None:
    await store.submit(some_runs(5))
    await store.tidy()


async def test_wake_ups_are_polled_for_and_that_is_said(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    told = asyncio.Event()

    class Log:
        def warning(self, text: str, **_: object) -> None:
            said.append(text)
            told.set()

        def debug(self, text: str, **_: object) -> None: ...

    monkeypatch.setattr(wakeups_module, "_log", Log())
    wakeups = PostgresWakeups(through_pgbouncer(postgres_database), SystemClock())
    await wakeups.open()
    async with asyncio.timeout(20):
        await told.wait()
    await wakeups.close()
    assert len(said) == 1
    assert "polling" in said[0]
