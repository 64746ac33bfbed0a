"""Databases for tests on the PostgreSQL server that all of them share."""

import functools
import hashlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from mainspring.stores import statements
from mainspring.stores.postgres import PostgresStore, database
from mainspring.stores.postgres.database import PACKAGE
from tests.support.waiting import DEADLINE_SECONDS, eventually


def remove_time_limits(patch: pytest.MonkeyPatch) -> None:
    """Let the calls of stores that open from now on wait as long as a slow machine needs."""
    for setting in ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"):
        patch.setitem(database.SESSION, setting, "0")
    patch.setattr(asyncpg, "create_pool", functools.partial(_create_pool, asyncpg.create_pool))
    # How long a call waits for a free connection; no setting changes it.
    patch.setattr(database, "_PATIENCE", DEADLINE_SECONDS)


def _create_pool(create: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    return create(*arguments, **options | {"command_timeout": None, "timeout": DEADLINE_SECONDS})


async def create_database(dsn: str, name: str, template: str | None = None) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await _execute_when_unused(
            connection, f"CREATE DATABASE {name}" + (f" TEMPLATE {template}" if template else "")
        )
    finally:
        await connection.close()


async def _execute_when_unused(connection: "asyncpg.Connection[asyncpg.Record]", statement: str) -> None:
    """Run a statement on a database that must have no sessions: one that has been closed may need time to end."""

    async def executed() -> bool:
        with suppress(asyncpg.ObjectInUseError):
            await connection.execute(statement)
            return True
        return False

    await eventually(executed)


async def drop_database(dsn: str, name: str) -> None:
    """Drop a database and end its sessions. Only a superuser can end an autovacuum worker."""
    connection = await asyncpg.connect(as_administrator(dsn))
    try:
        number = await connection.fetchval("SELECT oid FROM pg_database WHERE datname = $1", name)
        await connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        # Roles are the server's, and do not go with the database that they are for.
        prefix = f"mainspring_reader_{number}_"
        for row in await connection.fetch("SELECT rolname FROM pg_roles WHERE starts_with(rolname, $1)", prefix):
            await connection.execute(f"DROP ROLE IF EXISTS {row['rolname']}")
    finally:
        await connection.close()


async def make_template(dsn: str, name: str, prepare: Callable[[str], Awaitable[None]]) -> str:
    """Create and prepare the template database, unless it exists; return its name.

    The server outlives the test run, so the name must change when ``prepare`` does: put ``migrations_digest`` in.
    ``prepare`` gets the DSN of the new database and must close its connections: one in use cannot be copied.
    """
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("SELECT pg_advisory_lock(hashtext('mainspring test template'))")
        if await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", name) is None:
            unfinished = f"{name}_unfinished"
            await connection.execute(f"DROP DATABASE IF EXISTS {unfinished} WITH (FORCE)")
            await connection.execute(f"CREATE DATABASE {unfinished}")
            await prepare(with_database(dsn, unfinished))
            await _execute_when_unused(connection, f"ALTER DATABASE {unfinished} RENAME TO {name}")
    finally:
        await connection.close()
    return name


@functools.cache
def migrations_digest(more: str = "") -> str:
    """Identify the migrations, and other statements that a template was made with."""
    texts = "".join(text for _, _, text in statements.migrations(PACKAGE))
    return hashlib.sha256(f"{texts}{more}".encode()).hexdigest()[:16]


async def migrated_template(dsn: str, shards: int) -> str:
    """Return a template database with the schema of a new store."""
    return await make_template(
        dsn, f"template_{shards}_shards_{migrations_digest()}", functools.partial(create_schema, shards=shards)
    )


async def create_schema(dsn: str, shards: int) -> None:
    store = PostgresStore(dsn, shards=shards)
    await store.open()
    await store.close()


def as_administrator(dsn: str) -> str:
    """The same database, for the superuser of the tests' server."""
    return with_user(dsn, "postgres")


def with_user(dsn: str, name: str) -> str:
    address = urlsplit(dsn)
    return urlunsplit(address._replace(netloc=f"{name}@{address.netloc.rpartition('@')[2]}"))


def with_database(dsn: str, name: str) -> str:
    return urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))
