"""Fixtures for tests of adapters."""

from collections.abc import AsyncIterator

import pytest

from tests.support.races import Races, open_races


@pytest.fixture
async def races(postgres_dsn: str) -> AsyncIterator[Races]:
    async with open_races(postgres_dsn) as races:
        yield races
