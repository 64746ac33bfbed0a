"""Every test here runs on every store."""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from mainspring.core.model.base.instant import MINUTE
from mainspring.integrations.kafka.producer import BatchProducer
from tests.support.builders import SHARDS
from tests.support.databases import create_database, drop_database, migrated_template, remove_time_limits, with_database
from tests.support.kept_connections import KeptConnections
from tests.support.kept_sqlite import KeptSqlite
from tests.support.sharded_harness import ShardedHarness
from tests.support.state_changes import ALLOWED_MOVES, find_moves, record_known_ends
from tests.support.store_harness import SERVE_THE_API, Harness, MemoryHarness, PostgresHarness, SqliteHarness


@pytest.fixture(scope="session")
def contract_databases(postgres_dsn: str) -> Iterator[list[str]]:
    """The addresses of three databases that are one sharded store, instead of three servers."""
    names = [f"contracts_{uuid.uuid4().hex}" for _ in range(3)]

    async def make() -> list[str]:
        return await ShardedHarness.prepare(postgres_dsn, names)

    async def drop() -> None:
        for name in names:
            await drop_database(postgres_dsn, name)

    try:
        yield asyncio.run(make())
    finally:
        asyncio.run(drop())


@pytest.fixture(scope="session")
def contract_database(postgres_dsn: str) -> Iterator[str]:
    """The address of one database with the schema, for all tests of this process."""
    name = f"contracts_{uuid.uuid4().hex}"
    dsn = with_database(postgres_dsn, name)

    async def make() -> None:
        await create_database(postgres_dsn, name, await migrated_template(postgres_dsn, SHARDS))
        await PostgresHarness.prepare(dsn)

    async def drop() -> None:
        await drop_database(postgres_dsn, name)

    try:
        asyncio.run(make())
        yield dsn
    finally:
        asyncio.run(drop())


#: The files that always run on the sharded store. It consists of PostgreSQL stores, which run all files. The other
#: files run on it only if ``MAINSPRING_SEEDS`` is set.
_ON_SEVERAL = (
    "submit",
    "claim",
    "hinted_claims",
    "sessions",
    "catalog",
    "search",
    "events_after",
    "idempotency",
    "logs_that_leave",
    "loads",
    "timings",
    "task_catalog",
    "frozen_clock",
)
#: These use ids of one tenant in every shard, which a sharded store rejects, or read one server alone.
_NOT_ON_SEVERAL = ("agreement", "outage")
#: These count a queue over all tenants, which a sharded store rejects, or need a scheduler that joins every server
#: under one number, which no node does.
_REFUSED_ON_SEVERAL = frozenset(
    {
        "test_a_claim_respects_the_concurrency_of_a_queue",
        "test_concurrent_claims_do_not_exceed_the_concurrency",
        "test_a_claim_for_one_tenant_respects_the_concurrency",
        "test_queue_policies_are_listed_and_audited",
        "test_retries_are_staged_at_the_rate_of_the_retry_budget",
        "test_released_runs_need_no_retry_budget",
        "test_revoking_a_lease_is_audited_once",
    }
)


def _is_for_several(item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    if call is None or call.params.get("make_harness") != "sharded":
        return True
    if getattr(item, "originalname", "") in _REFUSED_ON_SEVERAL:
        return False
    name = item.path.stem.removeprefix("test_")
    return name in _ON_SEVERAL or ("MAINSPRING_SEEDS" in os.environ and name not in _NOT_ON_SEVERAL)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked ``api`` run on the stores that serve it."""
    early = [item for item in items if item.get_closest_marker("api") is not None and not _serves_the_api(item)]
    early += [item for item in items if item not in early and not _is_for_several(item)]
    if early:
        gone = set(early)
        config.hook.pytest_deselected(items=early)
        items[:] = [item for item in items if item not in gone]


def _serves_the_api(item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    return call is None or call.params.get("make_harness", "memory") in SERVE_THE_API


@pytest.fixture(
    params=[
        "memory",
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("sharded", marks=[pytest.mark.postgres, pytest.mark.slow]),
    ]
)
def make_harness(
    request: pytest.FixtureRequest, kept_sqlite: KeptSqlite, kept_connections: KeptConnections
) -> Callable[[], Harness]:
    # Not an async fixture: the database of the session is created on its own event loop.
    match request.param:
        case "memory":
            return MemoryHarness
        case "sqlite":
            return lambda: SqliteHarness(kept_sqlite)
        case "sharded":
            addresses: list[str] = request.getfixturevalue("contract_databases")
            return lambda: ShardedHarness(addresses, kept_connections)
        case _:
            dsn: str = request.getfixturevalue("contract_database")
            return lambda: PostgresHarness(dsn, kept_connections)


@pytest.fixture(autouse=True)
def _calls_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stalled server makes calls of stores slow; it does not make them fail."""
    remove_time_limits(monkeypatch)


@pytest.fixture
def patient_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the clients of brokers, sinks and coordinators minutes for an answer, because the machine may be busy."""
    for limit in (
        "redis.servers.PATIENCE",
        "kafka.connection.PATIENCE",
        "rabbitmq.dispatch._PATIENCE",
        "rabbitmq.dispatch._PATIENCE_TO_CONNECT",
        "rabbitmq.dispatch._PATIENCE_TO_MAKE",
        "kafka.events._PATIENCE",
        "redis.events._PATIENCE",
    ):
        monkeypatch.setattr(f"mainspring.integrations.{limit}", 2 * MINUTE)
    monkeypatch.setattr("mainspring.integrations.redis.servers._SENTINEL_PATIENCE", 120)
    monkeypatch.setattr("mainspring.integrations.kafka.admin._SECONDS", 120)
    # A default value of a parameter is evaluated once, when the module is imported.
    monkeypatch.setattr(BatchProducer.__init__, "__defaults__", (2 * MINUTE, 0))


@pytest.fixture
async def harness(make_harness: Callable[[], Harness]) -> AsyncIterator[Harness]:
    """An empty store whose clock only the test moves.

    After every test the sweeper must find nothing, and no run may have made a move that ``MOVES`` does not have.
    """
    harness = make_harness()
    await harness.open()
    try:
        await harness.freeze_clock()
        known_ends = record_known_ends(harness.store)
        yield harness
        assert await harness.store.sweep(1_000) == 0, "a run was blocked without a reason"
        changes = [change for change in await harness.state_changes() if change[0] not in known_ends]
        assert find_moves(changes) <= ALLOWED_MOVES
    finally:
        await harness.close()
