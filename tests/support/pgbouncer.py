"""The way to a database through pgbouncer, which shares its connections by transaction."""

import pytest

from tests.conftest import IN_CI, with_database
from tools.services import ServiceUnavailable, ensure


def through_pgbouncer(dsn: str) -> str:
    """The address of the same database."""
    try:
        return with_database(ensure("pgbouncer"), dsn.rpartition("/")[2])
    except ServiceUnavailable as error:
        reason = f"pgbouncer is not available: {error}"
        if IN_CI:
            pytest.fail(reason)
        pytest.skip(reason)
