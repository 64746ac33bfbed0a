"""The HTTP server of one process: an ASGI application on one address."""

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.ports.clock import Clock

if TYPE_CHECKING:
    from granian.server.embed import Server

#: Connections beyond this number wait to be accepted.
_MOST_CONNECTIONS = 4_096
#: How long requests are still accepted before a stop, and how long active requests may continue after it.
_FAREWELL: Micros = SECOND
_ANSWERING_SECONDS = 10


class HttpServer:
    """Serves an ASGI application as a service."""

    def __init__(
        self,
        host: str,
        port: int,
        app: Any,
        clock: Clock,
        *,
        leave: Callable[[], None] | None = None,
        share_port: bool = False,
    ) -> None:
        """Configure the server.

        - ``leave`` is called shortly before the stop, and ends streams and waiting requests.
        - ``share_port``: several processes may listen on the port, and the system distributes connections.
        """
        self._host = _resolve(host)
        self._port = port
        self._app = app
        self._clock = clock
        self._leave = leave
        self._share_port = share_port
        self._server: Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        if not self._share_port:
            check_port_free(self._host, self._port)
        # Imported here, because commands that serve nothing load this module, too.
        from granian.constants import HTTPModes, Interfaces
        from granian.server.embed import Server

        self._server = Server(
            self._app,
            address=self._host,
            port=self._port,
            interface=Interfaces.ASGINL,
            log_enabled=False,
            # HTTP/2 would allow an unbounded number of concurrent requests on one connection.
            http=HTTPModes.http1,
            backpressure=_MOST_CONNECTIONS,
        )
        self._task = asyncio.create_task(self._server.serve())
        try:
            while not self._task.done() and not await _is_reachable(self._host, self._port):
                await self._clock.sleep(10 * MILLISECOND)
            if self._task.done():
                self._task.result()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        server, self._server = self._server, None
        task, self._task = self._task, None
        if server is None or task is None:
            return
        if self._leave is not None and not task.done():
            self._leave()
            # Load balancers see the failing readiness probe and route elsewhere. Requests are answered until then.
            await self._clock.sleep(_FAREWELL)
        stop: Callable[[], None] = server.stop
        stop()
        # The server accepts no more connections, and ends when active requests are answered.
        done, _ = await asyncio.wait([task], timeout=_ANSWERING_SECONDS)
        if not done:
            task.cancel()
        await asyncio.gather(task, return_exceptions=not done)


def format_address(host: str, port: int) -> str:
    """Return the address as it is written in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _resolve(host: str) -> str:
    """Return an address, because the server accepts no names.

    The hosts file could map localhost to another machine.
    """
    return "127.0.0.1" if host == "localhost" else host


def check_port_free(host: str, port: int) -> None:
    """Raise a clear error before anything starts if the port is in use."""
    host = _resolve(host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise Invalid(
            "port",
            f"{format_address(host, port)} cannot be used: {error.strerror}",
            "choose another with --port, or with MAINSPRING_PORT in the environment",
        ) from None


async def _is_reachable(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True
