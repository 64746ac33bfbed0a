"""A session with ZooKeeper, which outlives its connections and ends when it is closed or expires.

Unlike other clients it sends no pings: its owner must send a request before the session expires. So a session
expires if its event loop hangs, which releases the shards.
"""

import asyncio
import ssl
import struct
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from mainspring.core.model.base.errors import Fenced, StoreUnavailable
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.integrations.zookeeper import wire

#: Larger than the largest message that a server sends by default.
_LONGEST = 1 << 22


#: Messages for errors that users can fix.
_ERROR_TEXTS = {
    wire.NO_AUTH: "ZooKeeper has nodes there that are for another user and password",
    wire.AUTH_FAILED: "ZooKeeper does not take this user and password",
}


class Access(msgspec.Struct, frozen=True):
    """The credentials and the TLS context of connections."""

    credentials: tuple[str, str] | None = None
    tls: ssl.SSLContext | None = None


class RequestRejected(Exception):
    """ZooKeeper answered with an error."""

    def __init__(self, code: int) -> None:
        super().__init__(_ERROR_TEXTS.get(code, f"ZooKeeper says {code}"))
        self.code = code


class _Connection:
    """One connection: requests are answered in the order in which they were sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, changed: Callable[[], None]) -> None:
        self.reader = reader
        self._writer = writer
        self._changed = changed
        self._waiting: deque[tuple[int, asyncio.Future[bytes]]] = deque()
        self._xid = 0
        self.last_seen = 0
        self._reading: asyncio.Task[None] | None = None

    @property
    def open(self) -> bool:
        return self._reading is not None and not self._reading.done()

    def read_on(self) -> None:
        self._reading = asyncio.create_task(self._read(), name="zookeeper-session")

    def send(self, frame: bytes) -> None:
        self._writer.write(wire.buffer(frame))

    def ask(self, operation: int, body: bytes) -> "asyncio.Future[bytes]":
        self._xid += 1
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._xid, answer))
        self.send(struct.pack(">ii", self._xid, operation) + body)
        return answer

    async def frame(self) -> bytes:
        (length,) = struct.unpack(">i", await self.reader.readexactly(4))
        if not 0 <= length <= _LONGEST:
            raise OSError(f"a message of {length} bytes")
        return await self.reader.readexactly(length)

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self._fail(StoreUnavailable("the connection to ZooKeeper was closed"))
        # Abort at once: TLS would wait for the other side to close, and nothing is left to send.
        self._writer.transport.abort()

    async def gone(self) -> None:
        """Wait until the closed connection is gone."""
        with suppress(OSError):
            await self._writer.wait_closed()

    async def _read(self) -> None:
        try:
            while True:
                xid, seen, error, body = wire.read_reply(await self.frame())
                self.last_seen = max(self.last_seen, seen)
                if xid == wire.WATCH_XID:
                    self._changed()
                    continue
                if xid == wire.AUTH_XID:
                    if error:
                        raise OSError(RequestRejected(error))
                    continue
                expected, answer = self._waiting.popleft()
                if xid != expected:
                    raise OSError(f"an answer to {xid} instead of {expected}")
                if not answer.done():
                    _complete(answer, error, body)
        except (OSError, asyncio.IncompleteReadError, struct.error, IndexError) as error:
            self._fail(StoreUnavailable(f"the connection to ZooKeeper was lost: {error}"))
            self._writer.transport.abort()

    def _fail(self, error: StoreUnavailable) -> None:
        while self._waiting:
            _, answer = self._waiting.popleft()
            if not answer.done():
                answer.set_exception(error)
                # Mark the exception as retrieved, because the caller may have been cancelled.
                answer.exception()


def _complete(answer: "asyncio.Future[bytes]", error: int, body: bytes) -> None:
    if error == wire.SESSION_EXPIRED:
        answer.set_exception(Fenced("the session with ZooKeeper has expired"))
    elif error:
        answer.set_exception(RequestRejected(error))
    else:
        answer.set_result(body)
    answer.exception()


class Session:
    def __init__(
        self, nodes: Sequence[tuple[str, int]], ttl: Micros, changed: Callable[[], None], access: Access
    ) -> None:
        self._nodes = list(nodes)
        self._access = access
        self._asked = ttl
        self._changed = changed
        self._patience = max(ttl // 6, 300 * MILLISECOND) / SECOND
        self._connecting = asyncio.Lock()
        self._line: _Connection | None = None
        self._password = bytes(16)
        self._last_seen = 0
        self._over = False
        self.id = 0
        #: The session timeout that the server granted: 2 to 20 of its ticks.
        self.timeout: Micros = 0

    async def ask(self, *requests: tuple[int, bytes]) -> list[bytes]:
        """Send requests together on one connection and return their answers.

        Raises the error of the first that fails.
        """
        try:
            async with asyncio.timeout(self._patience * len(self._nodes)):
                line = await self._connected()
            async with asyncio.timeout(self._patience):
                return list(await asyncio.gather(*(line.ask(operation, body) for operation, body in requests)))
        except RequestRejected as refused:
            if refused.code == wire.SESSION_MOVED:
                self._drop()
            raise
        except Fenced:
            self._over = True
            self._drop()
            raise
        except (TimeoutError, StoreUnavailable) as error:
            self._drop()
            # Try the next node first, because this one may accept connections without answering.
            self._nodes.append(self._nodes.pop(0))
            raise StoreUnavailable(f"ZooKeeper does not answer: {str(error) or 'timeout'}") from error

    async def close(self) -> None:
        """End the session, so that its nodes are deleted at once. Without a connection it expires by itself."""
        line, self._over = self._line, True
        if line is not None and line.open:
            try:
                async with asyncio.timeout(self._patience):
                    await line.ask(wire.CLOSE, b"")
            except (TimeoutError, StoreUnavailable, RequestRejected, Fenced) as error:
                raise StoreUnavailable(f"ZooKeeper does not answer: {str(error) or 'timeout'}") from error
            finally:
                self._drop()

    def abandon(self) -> None:
        """Drop the connection without ending the session, which then expires."""
        self._over = True
        self._drop()

    async def abandoned(self) -> None:
        """Drop the connection without ending the session, and wait until the connection is gone."""
        line = self._line
        self.abandon()
        if line is not None:
            await line.gone()

    def _drop(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            self._last_seen = max(self._last_seen, line.last_seen)
            line.close()

    async def _connected(self) -> _Connection:
        async with self._connecting:
            if self._over:
                raise Fenced("the session with ZooKeeper is over")
            if self._line is not None and self._line.open:
                return self._line
            self._drop()
            problem: object = "no node is known"
            for _ in list(self._nodes):
                try:
                    async with asyncio.timeout(self._patience):
                        self._line = await self._connect(*self._nodes[0])
                    return self._line
                except (OSError, asyncio.IncompleteReadError, struct.error, TimeoutError) as error:
                    problem = str(error) or "timeout"
                self._nodes.append(self._nodes.pop(0))
            raise StoreUnavailable(str(problem))

    async def _connect(self, host: str, port: int) -> _Connection:
        reader, writer = await asyncio.open_connection(host, port, ssl=self._access.tls)
        line = _Connection(reader, writer, self._changed)
        try:
            line.send(wire.connect(self._last_seen, self._asked // MILLISECOND, self.id, self._password))
            granted = wire.read_connected(await line.frame())
        except BaseException:
            line.close()
            raise
        if granted.timeout <= 0:
            line.close()
            raise Fenced("the session with ZooKeeper has expired")
        self.id, self._password, self.timeout = granted.session, granted.password, granted.timeout * MILLISECOND
        line.read_on()
        if self._access.credentials is not None:
            # Requests are answered in order, so all later requests use these credentials.
            line.send(wire.digest(*self._access.credentials))
        return line
