"""Serves ``/metrics`` and ``/healthz`` of a process without an API, on a port of its own."""

import asyncio
import concurrent.futures
import errno
import hmac
import socket
import socketserver
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias, TypeVar

import msgspec

from mainspring.core.runtime.log import get_logger
from mainspring.core.runtime.metrics.exposition import CONTENT_TYPE
from mainspring.core.runtime.threads import joined

Answer = TypeVar("Answer")
_Request: TypeAlias = socket.socket | tuple[bytes, socket.socket]

#: A client that sends no request within this time is disconnected; so is each connection beyond this number.
_SECONDS_TO_ASK = 5
_MOST_AT_ONCE = 16
#: The time limit of the event loop. If it takes longer it is blocked, which the health check should report.
_SECONDS_TO_ANSWER = 8

_log = get_logger("mainspring.metrics")


class MetricsListener:
    """A service that listens on the first free port of its range. If none is free, the process runs without metrics.

    It uses a thread, so that requests are answered even while the event loop is blocked.
    """

    def __init__(
        self,
        host: str,
        ports: range,
        render: Callable[[], Coroutine[None, None, bytes]],
        health: Callable[[], Coroutine[None, None, Mapping[str, object]]],
        token: str = "",
    ) -> None:
        """``token``: required in requests for metrics. Empty: no token is required."""
        self._host = "127.0.0.1" if host == "localhost" else host
        self._ports = ports
        self._render = render
        self._health = health
        self._token = token.encode()
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> tuple[str, int] | None:
        """The address it listens on."""
        return None if self._server is None else (self._host, self._server.server_address[1])

    async def start(self) -> None:
        self._server = self._bind()
        if self._server is None:
            _log.warning(
                "no port is free for metrics: this process is not seen",
                host=self._host,
                first=self._ports.start,
                last=self._ports.stop - 1,
            )
            return
        self._server.page = self._page
        self._server.loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._server.serve, name="mainspring metrics", daemon=True)
        self._thread.start()
        _log.info("metrics", url=f"http://{_in_url(self._host)}:{self._server.server_address[1]}/metrics")

    async def stop(self) -> None:
        server, self._server = self._server, None
        thread, self._thread = self._thread, None
        if server is not None and thread is not None:
            server.wake_to_end()
            await joined(thread)

    def _bind(self) -> "_Server | None":
        for port in self._ports:
            try:
                return _Server((self._host, port), ipv6=":" in self._host)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    _log.warning("cannot serve metrics", host=self._host, port=port, error=str(error))
                    return None
        return None

    async def _page(self, path: str, credentials: str) -> "_Page":
        if path == "/healthz":
            return _Page(200, "application/json", msgspec.json.encode(await self._health()))
        if path != "/metrics":
            return _Page(404, "text/plain", b"there is /metrics and /healthz\n")
        if self._token and not hmac.compare_digest(credentials.encode(), b"Bearer " + self._token):
            return _Page(401, "text/plain", b"metrics.token is missing or wrong\n")
        return _Page(200, CONTENT_TYPE, await self._render())


class _Page:
    def __init__(self, status: int, media_type: str, content: bytes) -> None:
        self.status = status
        self.media_type = media_type
        self.content = content


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    page: Callable[[str, str], Awaitable[_Page]]
    loop: asyncio.AbstractEventLoop

    def __init__(self, address: tuple[str, int], *, ipv6: bool) -> None:
        self.address_family = socket.AF_INET6 if ipv6 else socket.AF_INET
        self._room = threading.BoundedSemaphore(_MOST_AT_ONCE)
        self._ending = False
        self._address = address
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # Not via HTTPServer, which resolves its own host name.
        socketserver.TCPServer.server_bind(self)

    def serve(self) -> None:
        """Serve requests on its thread, without the half-second polling of ``serve_forever``."""
        try:
            while not self._ending:
                self.handle_request()
        finally:
            self.server_close()

    def wake_to_end(self) -> None:
        self._ending = True
        host, port = self._address
        with suppress(OSError), socket.create_connection((host, port), timeout=1):
            pass

    def process_request(self, request: _Request, client_address: Any) -> None:
        if self._ending or not self._room.acquire(blocking=False):
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def process_request_thread(self, request: _Request, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: _Request, client_address: Any) -> None:
        """Ignore the error: the client has disconnected."""

    def ask(self, path: str, credentials: str) -> _Page:
        """Render a page on the event loop, from the thread of a request."""
        asked = asyncio.run_coroutine_threadsafe(_awaited(self.page(path, credentials)), self.loop)
        try:
            return asked.result(_SECONDS_TO_ANSWER)
        except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            asked.cancel()
            return _Page(503, "text/plain", b"the event loop does not answer\n")
        except Exception:
            _log.exception("metrics request failed", path=path)
            return _Page(500, "text/plain", b"it failed; the log says why\n")


class _Handler(BaseHTTPRequestHandler):
    timeout = _SECONDS_TO_ASK
    server_version = "mainspring"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(with_content=True)

    def do_HEAD(self) -> None:
        self._answer(with_content=False)

    def _answer(self, *, with_content: bool) -> None:
        assert isinstance(self.server, _Server)
        page = self.server.ask(self.path.partition("?")[0], self.headers.get("authorization", ""))
        self.send_response(page.status)
        self.send_header("content-type", page.media_type)
        self.send_header("content-length", str(len(page.content)))
        if page.status == 401:
            self.send_header("www-authenticate", "Bearer")
        self.end_headers()
        if with_content:
            self.wfile.write(page.content)

    def log_message(self, *_: object) -> None:
        """Do not log scrapes."""


async def _awaited(what: Awaitable[Answer]) -> Answer:
    return await what


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
