"""``/healthz``: whether this process works, and what is wrong if it does not."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import TypeAlias

import msgspec
from granian.constants import Interfaces
from granian.server.embed import Server

from mainspring.domain.errors import Invalid
from mainspring.domain.instant import MILLISECOND
from mainspring.ports.clock import Clock

Message: TypeAlias = MutableMapping[str, object]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
#: Says how things are; ``status`` is ``ok`` when they are well.
Check: TypeAlias = Callable[[], Awaitable[Mapping[str, object]]]


def address_of(host: str, port: int) -> str:
    """As it stands in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class HealthServer:
    """A service that answers over HTTP on one address."""

    def __init__(self, host: str, port: int, check: Check, clock: Clock) -> None:
        # The server takes addresses only; what a file says about the name could reach further than this machine.
        self._host = "127.0.0.1" if host == "localhost" else host
        self._port = port
        self._check = check
        self._clock = clock
        self._server: Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        _refuse_taken(self._host, self._port)
        self._server = Server(
            self._answer, address=self._host, port=self._port, interface=Interfaces.ASGINL, log_enabled=False
        )
        self._task = asyncio.create_task(self._server.serve())
        try:
            while not self._task.done() and not await _reachable(self._host, self._port):
                await self._clock.sleep(10 * MILLISECOND)
            if self._task.done():
                self._task.result()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        server, self._server = self._server, None
        task, self._task = self._task, None
        if server is not None and task is not None:
            stop: Callable[[], None] = server.stop
            stop()
            await task

    async def _answer(self, scope: Mapping[str, object], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] != "/healthz":
            await _reply(send, 404, {"status": "not found", "hint": "try /healthz"})
            return
        found = await self._check()
        await _reply(send, 200 if found["status"] == "ok" else 503, found)


async def _reply(send: Send, status: int, body: Mapping[str, object]) -> None:
    content = msgspec.json.encode(body)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def _refuse_taken(host: str, port: int) -> None:
    """Say it before anything starts, in words."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise Invalid(
            "port", f"{address_of(host, port)} cannot be used: {error.strerror}", "choose another with --port"
        ) from None


async def _reachable(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True
