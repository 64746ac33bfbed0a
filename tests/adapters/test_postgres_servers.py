"""Addresses of several servers, and connections to one that writes no more."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from mainspring.adapters.postgres_servers import Servers, Standing, servers_of, split
from mainspring.adapters.store.postgres import PostgresStore
from mainspring.domain.errors import Invalid, StoreUnavailable
from tests.support.builders import a_run


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
def test_an_address_for_each_server(dsn: str, servers: list[str]) -> None:
    assert split(dsn) == servers


@pytest.mark.parametrize("wanted", ["standby", "read-only", "prefer-standby", "anything"])
def test_an_address_that_asks_for_a_standby_is_refused(wanted: str) -> None:
    with pytest.raises(Invalid, match="never write"):
        split(f"postgresql://a,b/jobs?target_session_attrs={wanted}")


def test_as_many_ports_as_hosts() -> None:
    with pytest.raises(Invalid, match="3 hosts and 2 ports"):
        split("postgresql:///jobs?host=a,b,c&port=1,2")


def test_what_one_connection_has_learnt_all_of_its_address_know() -> None:
    dsn = "postgresql://me@a,b/for-this-test"
    assert servers_of(dsn) is servers_of(dsn, reading=False)
    assert servers_of(dsn) is not servers_of(dsn, reading=True)


@pytest.fixture
async def store(postgres_database: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_database, shards=4, connections=2)
    await store.open()
    yield store
    await store.close()


async def make_read_only(connection: "asyncpg.pool.PoolConnectionProxy[asyncpg.Record]") -> None:
    await connection.execute("SET default_transaction_read_only = on")


@pytest.mark.postgres
async def test_a_connection_to_a_server_that_writes_no_more_is_dropped_with_its_neighbours(
    store: PostgresStore,
) -> None:
    await store._engine.run(make_read_only)
    with pytest.raises(StoreUnavailable):
        await store.submit([a_run()])
    run = a_run()
    await store.submit([run])
    assert [view and view.id for view in await store.runs([run.id])] == [run.id]


@pytest.mark.postgres
async def test_a_server_that_only_reads_is_not_opened(postgres_database: str) -> None:
    connection = await asyncpg.connect(postgres_database)
    name = postgres_database.rpartition("/")[2]
    await connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    await connection.close()
    with pytest.raises(StoreUnavailable, match="read-only"):
        await PostgresStore(postgres_database).open()


@pytest.mark.postgres
async def test_a_host_that_does_not_answer_keeps_nobody_from_the_others(postgres_database: str) -> None:
    place = postgres_database.rpartition("@")[2]
    # An address for documentation: packets to it go nowhere.
    servers = Servers(postgres_database.replace(f"@{place}", f"@192.0.2.1:5432,{place}"))
    connection = await servers.connect(timeout=30)
    assert await connection.fetchval("SELECT 1") == 1
    await connection.close()


@pytest.mark.postgres
async def test_whoever_waits_for_an_old_primary_is_told_at_once_when_another_was_promoted(
    postgres_database: str,
) -> None:
    """As a commit there that waits for a standby which follows it no more."""
    servers = Servers(postgres_database)
    connection = await servers.connect()
    waiting = asyncio.create_task(connection.execute("SELECT pg_sleep(60)"))
    await asyncio.sleep(0.1)
    standing = servers._standing
    servers._learn(postgres_database, Standing(True, standing.cluster, standing.timeline))
    assert not waiting.done()
    servers._learn(postgres_database, Standing(True, standing.cluster, standing.timeline + 1))
    with pytest.raises(asyncpg.ConnectionDoesNotExistError):
        await asyncio.wait_for(waiting, 5)
