"""A standby is not promoted while another server may still write."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from mainspring.adapters.clock.system import SystemClock
from mainspring.adapters.store.postgres.promotion import _place, promote
from mainspring.domain.errors import Conflict, StoreUnavailable
from tests.support.processes import free_port


@asynccontextmanager
async def answering(code: str) -> AsyncIterator[int]:
    """The port of a server that answers whoever comes with an error."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int.from_bytes(await reader.readexactly(4))
        if await reader.readexactly(size - 4) == bytes.fromhex("04d2162f"):
            # It was asked whether it can do TLS.
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


async def promoted(store: Callable[[str], str]) -> None:
    """A standby that is away itself: whoever is not refused comes so far."""
    far = at(free_port())
    await promote(far, store(far), "mainspring", SystemClock(), force=False)


@pytest.mark.parametrize("code", ["53300", "28P01", "28000", "3D000", "42501"])
async def test_a_server_that_answers_with_an_error_is_not_dead(code: str) -> None:
    async with answering(code) as port:
        with pytest.raises(Conflict, match=rf"127.0.0.1:{port} answers \(no\): stop it first.*--force"):
            await promoted(lambda far: f"postgresql://me@127.0.0.1:{port},{far.rpartition('@')[2]}")
        with pytest.raises(Conflict, match="answers"):
            await promoted(lambda _: f"{at(port)}?sslmode=require")


async def test_one_that_does_not_answer_or_is_going_down_is() -> None:
    with pytest.raises(StoreUnavailable):
        await promoted(lambda _: at(free_port()))
    async with answering("57P03") as port:
        with pytest.raises(StoreUnavailable):
            await promoted(lambda _: at(port))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("postgresql://postgres@far/jobs", "postgresql://me@FAR:5432/jobs"),
        ("postgresql:///jobs?host=far&port=5433", "postgresql://far:5433/jobs"),
        ("postgresql://[::1]/jobs", "postgresql://[::1]:5432/jobs"),
        ("postgresql:///jobs", "postgresql://localhost/jobs"),
    ],
)
def test_one_server_by_two_addresses(one: str, other: str) -> None:
    assert _place(one) == _place(other)
    assert _place(one) != _place("postgresql://near/jobs")
