"""A standby is not promoted while another server may still write."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import asyncpg
import pytest

from mainspring.core.model.base.errors import Conflict, StoreUnavailable
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.upkeep.promotion import _at, _parse_conninfo, _parse_endpoint, promote
from tests.support.processes import free_port
from tests.support.standbys import Standby, primary_and_standbys
from tests.support.waiting import eventually
from tools.services.local_postgres import ROLE, LocalPostgres


@asynccontextmanager
async def answering(code: str) -> AsyncIterator[int]:
    """The port of a server that answers every client with an error."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int.from_bytes(await reader.readexactly(4))
        if await reader.readexactly(size - 4) == bytes.fromhex("04d2162f"):
            # The client asks for TLS first.
            writer.write(b"N")
            size = int.from_bytes(await reader.readexactly(4))
            await reader.readexactly(size - 4)
        fields = b"".join(f"{kind}{text}\0".encode() for kind, text in (("S", "FATAL"), ("C", code), ("M", "no")))
        writer.write(b"E" + (len(fields) + 5).to_bytes(4) + fields + b"\0")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def at(port: int) -> str:
    return f"postgresql://me@127.0.0.1:{port}/jobs"


async def try_to_promote(store: Callable[[str], str]) -> None:
    """Promote a standby that is away itself. It is only asked if no check refuses the promotion."""
    far = at(free_port())
    await promote(far, store(far), "mainspring", SystemClock(), force=False)


@pytest.mark.parametrize("code", ["53300", "28P01", "28000", "3D000", "42501"])
async def test_promotion_is_refused_while_a_server_answers_with_an_error(code: str) -> None:
    async with answering(code) as port:
        with pytest.raises(Conflict, match=rf"127.0.0.1:{port} answers \(no\): stop it first.*--force"):
            await try_to_promote(lambda far: f"postgresql://me@127.0.0.1:{port},{far.rpartition('@')[2]}")
        with pytest.raises(Conflict, match="answers"):
            await try_to_promote(lambda _: f"{at(port)}?sslmode=require")


async def test_promotion_is_allowed_when_a_server_does_not_answer_or_is_shutting_down() -> None:
    with pytest.raises(StoreUnavailable):
        await try_to_promote(lambda _: at(free_port()))
    async with answering("57P03") as port:
        with pytest.raises(StoreUnavailable):
            await try_to_promote(lambda _: at(port))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("postgresql://postgres@far/jobs", "postgresql://me@FAR:5432/jobs"),
        ("postgresql:///jobs?host=far&port=5433", "postgresql://far:5433/jobs"),
        ("postgresql://[::1]/jobs", "postgresql://[::1]:5432/jobs"),
        ("postgresql:///jobs", "postgresql://localhost/jobs"),
    ],
)
def test_two_addresses_of_one_server_are_recognized(one: str, other: str) -> None:
    assert _parse_endpoint(one) == _parse_endpoint(other)
    assert _parse_endpoint(one) != _parse_endpoint("postgresql://near/jobs")


@pytest.mark.parametrize(
    ("conninfo", "places"),
    [
        ("user=postgres passfile='/x y/pass' host=near port=5433 sslmode=prefer", [("near", "5433")]),
        ("host = 'near,nearer' user=a", [("near", "5432"), ("nearer", "5432")]),
        ("hostaddr=10.0.0.1,10.0.0.2 port=1,2", [("10.0.0.1", "1"), ("10.0.0.2", "2")]),
        ("postgresql://a@near:5433,nearer/x", [("near", "5433"), ("nearer", "5432")]),
        ("host=/run/postgresql", [("/run/postgresql", "5432")]),
        ("", []),
    ],
)
def test_the_primaries_of_a_standby_are_read_from_its_conninfo(conninfo: str, places: list[tuple[str, str]]) -> None:
    assert _parse_conninfo(conninfo) == places
    for place in places:
        dsn = _at("postgresql://me:secret@far:1/jobs?sslmode=require", *place)
        assert _parse_endpoint(dsn) == place
        assert dsn.startswith("postgresql://me:secret@")
        assert "sslmode=require" in dsn


@asynccontextmanager
async def near_and_far() -> AsyncIterator[tuple[LocalPostgres, Standby]]:
    context = primary_and_standbys("far")
    near, (far,) = await asyncio.to_thread(context.__enter__)
    try:
        store = PostgresStore(near.dsn)
        await store.open()
        await store.close()
        await wait_for(far, "SELECT to_regclass('mainspring.meta') IS NOT NULL")
        yield near, far
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


async def query(server: LocalPostgres, *statements: str) -> object:
    """The result of the last statement."""
    connection = await asyncpg.connect(f"postgresql://postgres@127.0.0.1:{server.port}/{ROLE}")
    try:
        for statement in statements:
            answer = await connection.fetchval(statement)
        return answer
    finally:
        await connection.close()


async def wait_for(server: LocalPostgres, condition: str) -> None:
    await eventually(lambda: query(server, condition), condition)


async def follow(far: Standby, conninfo: str) -> None:
    await query(far, f"ALTER SYSTEM SET primary_conninfo = '{conninfo}'", "SELECT pg_reload_conf()")
    await wait_for(far, f"SELECT current_setting('primary_conninfo') = '{conninfo}'")


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.xdist_group("failover")
async def test_promotion_with_an_address_of_the_standby_alone_does_not_make_two_primaries(postgres_dsn: str) -> None:
    async with near_and_far() as (near, far):
        address = f"postgresql://postgres@127.0.0.1:{far.port}/{ROLE}"
        source = f"host=127.0.0.1 port={near.port} user="

        async def promote_far() -> int:
            return (await promote(address, address, "mainspring", SystemClock(), force=False)).epoch

        await wait_for(far, "SELECT status = 'streaming' FROM pg_stat_wal_receiver")
        with pytest.raises(Conflict, match=rf"127.0.0.1:{near.port} still sends to it, last .* ago: stop it first"):
            await promote_far()
        # The standby receives nothing any more, but its primary answers.
        await follow(far, source + "nobody")
        await wait_for(far, "SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming')")
        with pytest.raises(Conflict, match=f"127.0.0.1:{near.port} still writes: stop it first"):
            await promote_far()
        await asyncio.to_thread(near.stop, "immediate")
        # Neither the address nor the standby names a primary that could be asked.
        await follow(far, "")
        with pytest.raises(Conflict, match=r"nobody could be asked .* name both servers in --store.* --force"):
            await promote_far()
        assert await query(far, "SELECT pg_is_in_recovery()")
        # Its primary is away.
        await follow(far, source + "postgres")
        epoch = await promote_far()
        assert not await query(far, "SELECT pg_is_in_recovery()")
        # A second promotion does no harm.
        assert await promote_far() == epoch + 1
