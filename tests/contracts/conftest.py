"""Every test here runs against every adapter of the store."""

import asyncio
import importlib.util
import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import create_database, drop_database, with_database
from tests.support.several_harness import SeveralHarness
from tests.support.store_harness import SERVE_THE_API, Harness, MemoryHarness, PostgresHarness, SqliteHarness


def _needs(adapter: str) -> None:
    """An adapter that is not there yet is skipped on a desk, and fails where it counts."""
    found = importlib.util.find_spec(f"mainspring.adapters.store.{adapter}")
    if os.environ.get("CI") != "true" and (found is None or found.origin is None):
        pytest.skip(f"there is no {adapter} store yet")


@pytest.fixture(scope="session")
def contract_databases(postgres_dsn: str) -> Iterator[list[str]]:
    """Three databases that are one store, in the place of three servers."""
    names = [f"contracts_{uuid.uuid4().hex}" for _ in range(3)]

    async def make() -> list[str]:
        return await SeveralHarness.prepare(postgres_dsn, names)

    async def drop() -> None:
        for name in names:
            await drop_database(postgres_dsn, name)

    try:
        yield asyncio.run(make())
    finally:
        asyncio.run(drop())


@pytest.fixture(scope="session")
def contract_database(postgres_dsn: str) -> Iterator[str]:
    """One database for all tests of this process, with the schema made."""
    name = f"contracts_{uuid.uuid4().hex}"
    dsn = with_database(postgres_dsn, name)

    async def make() -> None:
        await create_database(postgres_dsn, name)
        await PostgresHarness.prepare(dsn)

    async def drop() -> None:
        await drop_database(postgres_dsn, name)

    try:
        asyncio.run(make())
        yield dsn
    finally:
        asyncio.run(drop())


#: What the store over several servers is always tried with: it is made of stores that are tried with everything. The
#: rest of it runs where many seeds are asked for.
_ON_SEVERAL = (
    "submit",
    "claim",
    "hinted_claims",
    "sessions",
    "catalog",
    "events_after",
    "idempotency",
    "logs_that_leave",
    "loads",
    "timings",
)
#: These make the ids of one tenant in every shard, which several servers refuse, or look at one server alone.
_NOT_ON_SEVERAL = ("agreement", "outage")
#: These count a queue over all tenants, which several servers refuse, or the harness makes a scheduler join on every
#: server under one number, which no node does.
_REFUSED_ON_SEVERAL = frozenset(
    {
        "test_no_more_run_than_the_concurrency_lets",
        "test_claims_at_once_do_not_exceed_the_concurrency",
        "test_a_claim_for_one_tenant_minds_the_concurrency",
        "test_policies_are_told_and_audited",
        "test_retries_come_at_the_rate_of_the_budget",
        "test_what_is_given_back_needs_no_budget",
        "test_it_is_audited_once",
    }
)


def _is_for_several(item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    if call is None or call.params.get("make_harness") != "several":
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
        pytest.param("several", marks=[pytest.mark.postgres, pytest.mark.slow]),
    ]
)
def make_harness(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Harness]:
    # Not an async fixture: the database of the session is made by a loop of its own.
    match request.param:
        case "memory":
            return MemoryHarness
        case "sqlite":
            _needs("sqlite")
            return lambda: SqliteHarness(tmp_path / "mainspring.db")
        case "several":
            addresses: list[str] = request.getfixturevalue("contract_databases")
            return lambda: SeveralHarness(addresses)
        case _:
            _needs("postgres")
            dsn: str = request.getfixturevalue("contract_database")
            return lambda: PostgresHarness(dsn)


@pytest.fixture
async def harness(make_harness: Callable[[], Harness]) -> AsyncIterator[Harness]:
    """A store with nothing in it, and its clock. Whatever a test did, the sweeper must find nothing afterwards."""
    harness = make_harness()
    await harness.open()
    try:
        yield harness
        assert await harness.store.sweep(1_000) == 0, "something was blocked by nothing"
    finally:
        await harness.close()
