"""The wire between a process and a server: it can be cut, fall silent in one direction or both, or lead elsewhere."""

import asyncio
from contextlib import suppress
from typing import Literal

Way = Literal["there", "back"]
BOTH: tuple[Way, Way] = ("there", "back")
_CHUNK = 256 * 1024


class Link:
    """Listens on a port of its own. Bytes that are sent while it is silent arrive later, also if the
    sender has stopped waiting: this is how a late write happens."""

    def __init__(self, host: str, port: int) -> None:
        self.target = host, port
        self.port = 0
        self._server: asyncio.Server | None = None
        self._flows = {way: asyncio.Event() for way in BOTH}
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Accept connections and forward all bytes."""
        for flow in self._flows.values():
            flow.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    def silence(self, *ways: Way) -> None:
        """Stop forwarding without closing connections."""
        for way in ways:
            self._flows[way].clear()

    async def cut(self) -> None:
        """Refuse new connections and close the open ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()

    async def close(self) -> None:
        await self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._connect(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = {writer}
        self._writers |= ends
        try:
            for way in BOTH:
                await self._flows[way].wait()
            there, to_there = await asyncio.open_connection(*self.target)
            ends.add(to_there)
            self._writers |= ends
            await asyncio.gather(self._carry(reader, to_there, "there"), self._carry(there, writer, "back"))
        except OSError:
            # The server is away, and so are we.
            return
        finally:
            self._writers -= ends
            for end in ends:
                end.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way) -> None:
        flow = self._flows[way]
        # uvloop says RuntimeError of a wire that was just closed at the other end.
        with suppress(OSError, RuntimeError):
            while data := await reader.read(_CHUNK):
                await flow.wait()
                writer.write(data)
                await writer.drain()
        # Gracefully: what was just written must still arrive.
        await flow.wait()
        writer.close()
