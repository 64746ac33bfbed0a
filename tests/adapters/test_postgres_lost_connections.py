"""A connection that is closed inside a transaction: the work runs again if nothing was committed, and only then."""

from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.stores.postgres.database import Connection, Database
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres


@pytest.fixture
async def database(postgres_database: str) -> AsyncIterator[Database]:
    """With a table ``effect``."""
    connection = await asyncpg.connect(postgres_database)
    await connection.execute("CREATE TABLE effect (attempt int NOT NULL)")
    await connection.close()
    database = Database(postgres_database, "mainspring", 2)
    await database.open()
    yield database
    await database.close()


async def effects(database: Database) -> list[int]:
    async def read(connection: Connection) -> list[int]:
        return [row["attempt"] for row in await connection.fetch("SELECT attempt FROM effect")]

    return await database.run(read)


def insert_effect(
    attempts: list[int], interrupt: Callable[[Connection], Awaitable[object]]
) -> Callable[[Connection], Awaitable[int]]:
    """Work that inserts a row and is interrupted in its first attempt, before the second statement."""

    async def work(connection: Connection) -> int:
        attempts.append(len(attempts) + 1)
        await connection.execute("INSERT INTO effect VALUES ($1)", attempts[-1])
        if attempts[-1] == 1:
            await interrupt(connection)
        return int(await connection.fetchval("SELECT count(*) FROM effect"))

    return work


async def test_a_transaction_that_was_idle_for_too_long_runs_again(database: Database) -> None:
    attempts: list[int] = []

    async def wait_for_the_server_to_close(connection: Connection) -> None:
        await connection.execute("SET LOCAL idle_in_transaction_session_timeout = '1ms'")
        await eventually(connection.is_closed)

    assert await database.transaction(insert_effect(attempts, wait_for_the_server_to_close)) == 1
    assert await effects(database) == attempts[-1:]


async def test_a_transaction_whose_session_was_terminated_runs_again(database: Database) -> None:
    attempts: list[int] = []

    async def terminate(connection: Connection) -> None:
        await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    assert await database.transaction(insert_effect(attempts, terminate)) == 1
    assert await effects(database) == attempts[-1:]


async def test_a_transaction_that_loses_every_connection_ends_as_unavailable(database: Database) -> None:
    attempts: list[int] = []

    async def work(connection: Connection) -> None:
        attempts.append(1)
        await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    with pytest.raises(StoreUnavailable, match="terminating connection"):
        await database.transaction(work)
    assert len(attempts) == 6


async def test_a_connection_lost_in_commit_is_not_retried(database: Database, postgres_database: str) -> None:
    """The server may have committed: only the caller knows whether doing it twice is safe."""
    connection = await asyncpg.connect(postgres_database)
    await connection.execute("""
        CREATE FUNCTION end_session() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION end_session();
    """)
    await connection.close()
    attempts: list[int] = []

    async def work(connection: Connection) -> None:
        attempts.append(1)
        await connection.execute("INSERT INTO effect VALUES (1)")

    with pytest.raises(StoreUnavailable):
        await database.transaction(work)
    assert len(attempts) == 1
