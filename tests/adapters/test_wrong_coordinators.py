"""Servers that are none of Redis, etcd and ZooKeeper at the address of a coordinator: doctor names the problem."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from mainspring.core.model.base.instant import MINUTE, SECOND
from mainspring.core.model.cluster.diagnosis import Level
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.features.doctor.coordinator_health import check_coordinator
from tests.support.coordination_harness import make_registry


class Parrot(asyncio.Protocol):
    """Answers every request with the same bytes."""

    def __init__(self, words: bytes) -> None:
        self._words = words

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(self._words)


@asynccontextmanager
async def a_server_that_says(words: bytes) -> AsyncIterator[int]:
    server = await asyncio.get_running_loop().create_server(lambda: Parrot(words), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def read_finding(address: str, patience: int = MINUTE) -> str:
    finding = await check_coordinator(make_registry(address), "it", patience, SystemClock())
    assert finding.level is Level.PROBLEM
    return finding.says


@pytest.mark.parametrize("coordinator", ["redis", "etcd", "zookeeper"])
async def test_a_silent_server_is_reported_as_not_answering(coordinator: str) -> None:
    async with a_server_that_says(b"") as port:
        assert (await read_finding(f"{coordinator}://127.0.0.1:{port}", SECOND)).endswith(" does not answer: timeout")


@pytest.mark.parametrize("user", ["", "me:password@"])
async def test_a_server_that_is_not_etcd_is_reported_as_such(user: str) -> None:
    page = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"
    async with a_server_that_says(page) as port:
        assert "is not etcd" in await read_finding(f"etcd://{user}127.0.0.1:{port}")
