"""The store through pgbouncer in transaction mode: everything works, and polling replaces notifications."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import MINUTE
from mainspring.core.model.runs.completion import complete_success
from mainspring.core.model.runs.run import RunState
from mainspring.core.ports.storage.catalog import RunFilter
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.core.store import Demand
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres import wakeups as wakeups_module
from mainspring.stores.postgres.wakeups import PostgresWakeups
from tests.support.builders import a_run, a_worker, some_runs
from tests.support.databases import migrated_template
from tests.support.pgbouncer import through_pgbouncer
from tests.support.store_harness import build_reader_role
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres


@pytest.fixture
async def postgres_template(postgres_dsn: str) -> str:
    return await migrated_template(postgres_dsn, 4)


@pytest.fixture
async def store(postgres_database: str) -> AsyncIterator[PostgresStore]:
    # More connections than pgbouncer has to the server, so that they take turns.
    store = PostgresStore(through_pgbouncer(postgres_database), shards=4, connections=20)
    await store.open()
    yield store
    await store.close()


async def test_the_store_detects_the_pooler(store: PostgresStore, postgres_database: str) -> None:
    assert store._database.servers.pooled
    direct = PostgresStore(postgres_database, shards=4)
    await direct.open()
    assert not direct._database.servers.pooled
    await direct.close()


async def test_concurrent_clients_submit_claim_and_complete_each_run_once(store: PostgresStore) -> None:
    batches = [some_runs(20) for _ in range(20)]
    await asyncio.gather(*(store.submit(batch) for batch in batches))
    workers = [await store.open_session(a_worker(ttl=10 * MINUTE)) for _ in range(4)]

    async def work(worker_number: int) -> list[RunId]:
        done: list[RunId] = []
        for number in range(1, 100):
            held = await store.claim(workers[worker_number], number, [Demand("default", 17)])
            if not held:
                break
            await store.complete([complete_success(run, b'"done"') for run in held])
            done += [run.id for run in held]
        return done

    done = [run for runs in await asyncio.gather(*(work(number) for number in range(4))) for run in runs]
    submitted = [run.id for batch in batches for run in batch]
    assert sorted(done) == sorted(submitted)
    views = await store.runs(submitted)
    assert {view.state for view in views if view is not None} == {RunState.SUCCEEDED}


async def test_a_tenant_scope_sees_its_own_tenant_only(store: PostgresStore, postgres_database: str) -> None:
    await build_reader_role(store, postgres_database)
    await store.submit([a_run(tenant="red"), a_run(tenant="blue"), a_run(tenant="blue")])

    async def list_tenants(tenant: str) -> list[str]:
        page = await store.seen_by(tenant).list_runs(RunFilter(tenant=None), None, 10)
        return [run.tenant for run in page.items]

    for _ in range(5):
        seen = await asyncio.gather(*map(list_tenants, ("red", "blue", "red")))
        assert seen == [["red"], ["blue"] * 2, ["red"]]

    async def count_runs(connection: "asyncpg.pool.PoolConnectionProxy[asyncpg.Record]") -> int:
        return int(await connection.fetchval("SELECT count(*) FROM mainspring.run"))

    # The tenant scope ends with its transaction: the role that is bound by RLS sees nothing without one.
    readers = await store._reader_role.readers()
    assert readers is not store._database
    assert await readers.run(count_runs) == 0


async def test_upkeep_works_through_the_pooler(store: PostgresStore) -> None:
    await store.submit(some_runs(5))
    await store.tidy()


async def test_wakeups_poll_behind_a_pooler_and_log_it_once(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []

    class Log:
        def warning(self, text: str, **_: object) -> None:
            warnings.append(text)

        def debug(self, text: str, **_: object) -> None: ...

    monkeypatch.setattr(wakeups_module, "_log", Log())
    wakeups = PostgresWakeups(through_pgbouncer(postgres_database), SystemClock())
    await wakeups.open()
    await eventually(lambda: warnings)
    await wakeups.close()
    assert len(warnings) == 1
    assert "polling" in warnings[0]
