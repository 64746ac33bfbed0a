"""Fixtures for tests with real processes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mainspring.stores.postgres import PostgresStore


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store, once on SQLite and once on PostgreSQL."""
    if request.param == "sqlite":
        return str(tmp_path / "mainspring.db")
    database: str = request.getfixturevalue("postgres_database")
    return database


@pytest.fixture
async def store(postgres_database: str) -> AsyncIterator[PostgresStore]:
    """An open store on PostgreSQL."""
    store = PostgresStore(postgres_database)
    await store.open()
    yield store
    await store.close()
