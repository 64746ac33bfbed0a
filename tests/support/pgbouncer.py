"""The way to a database through pgbouncer, which shares its connections by transaction."""

from tests.support.databases import with_database
from tests.support.servers import not_here, require
from tools.services import ServiceUnavailable, ensure


def through_pgbouncer(dsn: str) -> str:
    """The address of the same database."""
    require("pgbouncer")
    try:
        return with_database(ensure("pgbouncer"), dsn.rpartition("/")[2])
    except ServiceUnavailable as error:
        not_here(f"pgbouncer is not available: {error}")
