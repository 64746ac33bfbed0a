"""Every test here runs against every adapter of the store."""

import asyncio
import importlib.util
import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import create_database, drop_database, with_database
from tests.support.store_harness import SERVE_THE_API, Harness, MemoryHarness, PostgresHarness, SqliteHarness


def _needs(adapter: str) -> None:
    """An adapter that is not there yet is skipped on a desk, and fails where it counts."""
    found = importlib.util.find_spec(f"mainspring.adapters.store.{adapter}")
    if os.environ.get("CI") != "true" and (found is None or found.origin is None):
        pytest.skip(f"there is no {adapter} store yet")


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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked ``api`` run on the stores that serve it."""
    early = [item for item in items if item.get_closest_marker("api") is not None and not _serves_the_api(item)]
    if early:
        gone = set(early)
        config.hook.pytest_deselected(items=early)
        items[:] = [item for item in items if item not in gone]


def _serves_the_api(item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    return call is None or call.params.get("make_harness", "memory") in SERVE_THE_API


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def make_harness(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Harness]:
    # Not an async fixture: the database of the session is made by a loop of its own.
    match request.param:
        case "memory":
            return MemoryHarness
        case "sqlite":
            _needs("sqlite")
            return lambda: SqliteHarness(tmp_path / "mainspring.db")
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
