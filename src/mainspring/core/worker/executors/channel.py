"""The worker's end of the connection to a child process: frames over a socket, on the event loop."""

import asyncio
import socket
from collections.abc import Callable

from mainspring.core.worker.executors.frames import Frames, FromChild, ToChild, decode_from_child, encode

_CHUNK = 256 * 1024


class Channel:
    """A non-blocking connection.

    It uses plain ``add_reader`` instead of a transport. After a child has died, its last messages can then be read
    completely before the outcome of its runs is decided.
    """

    def __init__(self, line: socket.socket, received: Callable[[FromChild], None], hung_up: Callable[[], None]) -> None:
        self._line = line
        self._received = received
        self._hung_up = hung_up
        self._frames = Frames()
        self._unsent = bytearray()
        self._open = True
        self._loop = asyncio.get_running_loop()
        line.setblocking(False)
        self._loop.add_reader(line.fileno(), self._read)

    def send(self, message: ToChild) -> None:
        if not self._open:
            return
        frame = encode(message)
        if self._unsent:
            self._unsent += frame
            return
        sent = self._write(frame)
        if sent < len(frame):
            self._unsent += frame[sent:]
            self._loop.add_writer(self._line.fileno(), self._flush)

    def read_the_rest(self) -> None:
        """Read the remaining data, then close."""
        while self._open and self._read():
            pass
        self.close()

    def close(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._line.fileno())
            self._loop.remove_writer(self._line.fileno())
            self._line.close()

    def _read(self) -> bool:
        """Take one chunk; False when there is nothing (more) to read."""
        try:
            data = self._line.recv(_CHUNK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        for frame in self._frames.feed(data):
            self._received(decode_from_child(frame))
        if not data and self._open:
            self.close()
            self._hung_up()
        return bool(data)

    def _flush(self) -> None:
        del self._unsent[: self._write(bytes(self._unsent))]
        if not self._unsent and self._open:
            self._loop.remove_writer(self._line.fileno())

    def _write(self, data: bytes) -> int:
        try:
            return self._line.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            # The child is gone. Reading reports that too, and it is handled there.
            return len(data)
