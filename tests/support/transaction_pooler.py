"""A pooler of PostgreSQL connections in transaction mode, as small as can be: a server process belongs to a client only
while a transaction is under way."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

_READY_IDLE = b"Z\x00\x00\x00\x05I"


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


class _Server:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def answer(self) -> bytes:
        """A whole message."""
        head = await self.reader.readexactly(5)
        return head + await self.reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)


class TransactionPooler:
    def __init__(self, dsn: str) -> None:
        self._address = urlsplit(dsn)
        self._free: list[_Server] = []
        self._all: list[_Server] = []

    async def _server(self) -> _Server:
        if self._free:
            return self._free.pop()
        reader, writer = await asyncio.open_connection(self._address.hostname, self._address.port)
        server = _Server(reader, writer)
        words = ["user", self._address.username or "", "database", self._address.path.strip("/")]
        body = struct.pack("!i", 196608) + b"".join(word.encode() + b"\x00" for word in words) + b"\x00"
        writer.write(struct.pack("!i", len(body) + 4) + body)
        while (await server.answer())[:1] != b"Z":
            pass
        self._all.append(server)
        return server

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size, code = struct.unpack("!ii", await reader.readexactly(8))
        if code == 80877103:
            writer.write(b"N")
            size, _ = struct.unpack("!ii", await reader.readexactly(8))
        # The settings that the client asks for are dropped, as they are where each client has others.
        await reader.readexactly(size - 8)
        said = [("server_version", "17.0"), ("client_encoding", "UTF8"), ("standard_conforming_strings", "on")]
        writer.write(_message(b"R", struct.pack("!i", 0)))
        writer.writelines(_message(b"S", f"{name}\x00{value}\x00".encode()) for name, value in said)
        writer.write(_message(b"K", struct.pack("!ii", 424242, 1)) + _READY_IDLE)
        answering: asyncio.Task[None] | None = None
        server: _Server | None = None
        while True:
            head = await reader.readexactly(5)
            message = head + await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)
            if head[:1] == b"X":
                return
            if server is None or answering is None or answering.done():
                server = await self._server()
                answering = asyncio.create_task(self._answer(server, writer))
            server.writer.write(message)

    async def _answer(self, server: _Server, writer: asyncio.StreamWriter) -> None:
        """Until no transaction is under way any more; then the server is anybody's."""
        answer = b""
        while answer != _READY_IDLE:
            answer = await server.answer()
            if answer == _READY_IDLE:
                self._free.append(server)
            writer.write(answer)

    def close(self) -> None:
        for server in self._all:
            server.writer.close()


@asynccontextmanager
async def transaction_pooler(dsn: str) -> AsyncIterator[str]:
    """The address of a pooler in front of this database."""
    pooler = TransactionPooler(dsn)
    listening = await asyncio.start_server(pooler.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    address = urlsplit(dsn)
    try:
        yield urlunsplit(address._replace(netloc=f"{address.username}@127.0.0.1:{port}"))
    finally:
        listening.close()
        pooler.close()
