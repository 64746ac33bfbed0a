"""Addresses of several servers, and connections to a server that became read-only."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from mainspring.core.model.base.errors import Invalid, StoreUnavailable
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.servers import PostgresServers, ServerStatus, get_servers, split
from tests.support.builders import a_run
from tests.support.waiting import DEADLINE_SECONDS, eventually


@pytest.mark.parametrize(
    ("dsn", "servers"),
    [
        ("postgresql://me@db/jobs", ["postgresql://me@db/jobs"]),
        ("postgresql://me:a,b@db/jobs", ["postgresql://me:a,b@db/jobs"]),
        ("postgresql://me@a:1,b/jobs", ["postgresql://me@a:1/jobs", "postgresql://me@b/jobs"]),
        ("postgresql://a,[::1]:5/jobs", ["postgresql://a/jobs", "postgresql://[::1]:5/jobs"]),
        (
            "postgresql://me@a,b/jobs?sslmode=require&target_session_attrs=read-write",
            ["postgresql://me@a/jobs?sslmode=require", "postgresql://me@b/jobs?sslmode=require"],
        ),
        (
            "postgresql:///jobs?host=a,b&port=1,2",
            ["postgresql:///jobs?host=a&port=1", "postgresql:///jobs?host=b&port=2"],
        ),
        ("postgresql:///jobs?host=/run/postgresql", ["postgresql:///jobs?host=/run/postgresql"]),
        ("postgresql://db/jobs?target_session_attrs=primary", ["postgresql://db/jobs"]),
    ],
)
def test_an_address_of_several_servers_is_split_into_one_for_each(dsn: str, servers: list[str]) -> None:
    assert split(dsn) == servers


@pytest.mark.parametrize("wanted", ["standby", "read-only", "prefer-standby", "anything"])
def test_an_address_that_asks_for_a_standby_is_refused(wanted: str) -> None:
    with pytest.raises(Invalid, match="never write"):
        split(f"postgresql://a,b/jobs?target_session_attrs={wanted}")


def test_an_address_with_more_hosts_than_ports_is_refused() -> None:
    with pytest.raises(Invalid, match="3 hosts and 2 ports"):
        split("postgresql:///jobs?host=a,b,c&port=1,2")


def test_connections_of_one_address_share_their_knowledge_of_the_servers() -> None:
    dsn = "postgresql://me@a,b/for-this-test"
    assert get_servers(dsn) is get_servers(dsn, reading=False)
    assert get_servers(dsn) is not get_servers(dsn, reading=True)


@pytest.fixture
async def store(postgres_database: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_database, shards=4, connections=2)
    await store.open()
    yield store
    await store.close()


@pytest.mark.postgres
async def test_a_connection_to_a_read_only_server_is_dropped(store: PostgresStore) -> None:
    async def make_read_only(connection: "asyncpg.pool.PoolConnectionProxy[asyncpg.Record]") -> None:
        await connection.execute("SET default_transaction_read_only = on")

    await store._database.run(make_read_only)
    with pytest.raises(StoreUnavailable):
        await store.submit([a_run()])
    run = a_run()
    await store.submit([run])
    assert [view and view.id for view in await store.runs([run.id])] == [run.id]


@pytest.mark.postgres
async def test_a_store_on_a_read_only_server_does_not_open(postgres_database: str) -> None:
    connection = await asyncpg.connect(postgres_database)
    name = postgres_database.rpartition("/")[2]
    await connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    await connection.close()
    with pytest.raises(StoreUnavailable, match="read-only"):
        await PostgresStore(postgres_database).open()


@pytest.mark.postgres
async def test_a_host_that_does_not_answer_is_passed_over(postgres_database: str) -> None:
    host = postgres_database.rpartition("@")[2]
    # An address for documentation: packets to it are lost.
    servers = PostgresServers(postgres_database.replace(f"@{host}", f"@192.0.2.1:5432,{host}"))
    connection = await servers.connect(timeout=DEADLINE_SECONDS)
    assert await connection.fetchval("SELECT 1") == 1
    await connection.close()


@pytest.mark.postgres
async def test_a_statement_on_an_old_primary_fails_at_once_when_another_server_is_promoted(
    postgres_database: str,
) -> None:
    """Such a statement may be a commit that waits for a standby, which no longer follows this primary."""
    servers = PostgresServers(postgres_database)
    connection = await servers.connect()
    watching = await asyncpg.connect(postgres_database)
    waiting = asyncio.create_task(connection.execute("SELECT pg_sleep(3600)"))
    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
    await eventually(lambda: watching.fetchval(sleeping))
    await watching.close()
    standing = servers._status
    servers._learn(postgres_database, ServerStatus(True, standing.cluster, standing.timeline))
    assert not waiting.done()
    servers._learn(postgres_database, ServerStatus(True, standing.cluster, standing.timeline + 1))
    with pytest.raises(asyncpg.ConnectionDoesNotExistError):
        await waiting
