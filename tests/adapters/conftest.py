"""Fixtures for tests of stores and integrations."""

from collections.abc import AsyncIterator

import pytest

from tests.support.databases import migrated_template
from tests.support.races import Races, open_races


@pytest.fixture
async def postgres_template(postgres_dsn: str) -> str | None:
    """Every database here has the schema already. A module that tests migrations overrides this."""
    return await migrated_template(postgres_dsn, shards=4)


@pytest.fixture
async def races(postgres_dsn: str) -> AsyncIterator[Races]:
    async with open_races(postgres_dsn) as races:
        yield races
