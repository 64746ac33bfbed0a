"""The client of the API when the server closes a kept connection in the moment of a request."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.sdk.backends.client import ApiClient


class ClosingServer:
    """Answers the first request of each connection, and closes the connection at the second one."""

    def __init__(self) -> None:
        self.requests = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            await self._read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            await self._read_request(reader)
        writer.close()
        await writer.wait_closed()

    async def _read_request(self, reader: asyncio.StreamReader) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.requests += 1


@pytest.fixture
async def server() -> ClosingServer:
    return ClosingServer()


@pytest.fixture
async def client(server: ClosingServer) -> AsyncIterator[ApiClient]:
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        client = ApiClient(f"http://127.0.0.1:{port}", None, SystemClock())
        yield client
        await client.close()


@pytest.mark.parametrize(("method", "repeatable"), [("GET", None), ("POST", True)])
async def test_a_repeatable_request_is_sent_again_if_the_connection_closes(
    client: ApiClient, server: ClosingServer, method: str, repeatable: bool | None
) -> None:
    assert [await client.ask(method, "/", dict, repeatable=repeatable) for _ in range(2)] == [{}, {}]
    assert server.requests == 3


async def test_another_request_fails_if_the_connection_closes(client: ApiClient, server: ClosingServer) -> None:
    assert await client.ask("POST", "/", dict) == {}
    with pytest.raises(StoreUnavailable, match="disconnected without sending a response"):
        await client.ask("POST", "/", dict)
    assert server.requests == 2
