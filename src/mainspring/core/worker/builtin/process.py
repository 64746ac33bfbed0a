"""Runs an external program so that none of its processes can be left behind."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO

import msgspec

from mainspring.core.model.base.instant import Micros
from mainspring.core.worker.builtin import launcher
from mainspring.core.worker.executors.marks import kill_marked

_CHUNK = 64 * 1024
#: The number of bytes of a line that are reported. The rest of the line only goes into the kept output.
_LONGEST_LINE = 64 * 1024
#: Seconds that a launcher may take to kill the whole tree.
_PATIENCE = 2.0


class ProgramSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, as which user, and with which limits."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    #: The ids of the user, the group and further groups; empty for those of the worker.
    identity: Sequence[int] = ()
    #: Keyed by the last part of the resource name, as in ``RLIMIT_NOFILE``.
    limits: Mapping[str, int] = {}
    #: The launcher kills a program with more processes than this; 0 for no limit.
    processes: int = 0
    #: A cgroup v2 folder to create for this program, and what to write into it.
    cgroup: str = ""
    cgroup_limits: Mapping[str, str] = {}
    no_new_privileges: bool = True
    #: Open files of the worker that the program inherits, under the same numbers.
    descriptors: Sequence[int] = ()

    def encode(self) -> bytes:
        """Encode for the launcher, in a format simple enough that it need not import a parser."""
        words = [
            *(("argument", word) for word in self.argv),
            *(("variable", f"{name}={value}") for name, value in self.environment.items()),
            ("folder", self.folder),
            *(("identity", str(number)) for number in self.identity),
            *(("limit", f"{name}={value}") for name, value in self.limits.items()),
            ("processes", str(self.processes)),
            ("cgroup", self.cgroup),
            *(("cgroup limit", f"{name}={value}") for name, value in self.cgroup_limits.items()),
            ("no new privileges", "yes" if self.no_new_privileges else "no"),
        ]
        return b"\0".join(os.fsencode(word) for pair in words for word in pair)


class ProgramResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a program."""

    #: The exit code as Python has it: a negative number for a signal.
    code: int = 0
    #: How many processes were left behind and killed.
    left: int = 0
    #: The processor time of the whole tree.
    cpu: Micros = 0
    out_of_memory: bool = False
    #: The program was killed for having more than ``Order.processes`` processes.
    too_many_processes: bool = False
    #: Why the program could not be started.
    errno: int = 0


class Output:
    """Reads a stream to its end, so that the program never blocks on us.

    Keeps the last bytes and reports every line.
    """

    def __init__(self, stream: IO[bytes], keep: int, on_line: Callable[[bytes, bool], None]) -> None:
        """``on_line`` is called with each line, and with True if the line was longer than what is reported."""
        self._stream = stream
        self._keep = keep
        self._on_line = on_line
        self._kept = bytearray()
        self._line = bytearray()
        self._loop = asyncio.get_running_loop()
        self.cut = False
        os.set_blocking(stream.fileno(), False)
        self._loop.add_reader(stream.fileno(), self._read)

    def close(self) -> bytes:
        """Read what is left in the pipe and return the kept output.

        Does not read to the end of the stream: an unrelated process may hold it open.
        """
        for _ in range(32):
            if self._stream.closed or not self._read():
                break
        self._finish()
        if self._line:
            self._end_line()
        return bytes(self._kept[-self._keep :])

    def _read(self) -> bool:
        try:
            data = os.read(self._stream.fileno(), _CHUNK)
        except (BlockingIOError, InterruptedError):
            return False
        if not data:
            self._finish()
            return False
        self._kept += data
        if len(self._kept) > self._keep:
            self.cut = True
            del self._kept[: -self._keep]
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._add(line)
            self._end_line()
        self._add(rest)
        return True

    def _add(self, data: bytes) -> None:
        # Keep one byte more than is reported, so that a cut is visible.
        self._line += data[: max(0, _LONGEST_LINE + 1 - len(self._line))]

    def _end_line(self) -> None:
        line, self._line = bytes(self._line), bytearray()
        self._on_line(line[:_LONGEST_LINE], len(line) > _LONGEST_LINE)

    def _finish(self) -> None:
        if not self._stream.closed:
            self._loop.remove_reader(self._stream.fileno())
            self._stream.close()


class Program:
    """A program that starts on construction, under a launcher. ``ended`` has the result once the whole tree is gone.

    - Signals go to the whole tree: every process the program starts, also in other sessions. Processes left at its end
      are killed.
    - If the worker dies, the launcher sees its socket closed and kills the tree. If the launcher is killed, the kernel
      kills the program (on Linux), and the worker kills every process with the mark of the run.
    """

    def __init__(self, order: ProgramSpec, *, stdin: bytes, keep: int, on_line: Callable[[bytes, bool], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[ProgramResult] = self._loop.create_future()
        self._marks = _marks(order.environment)
        ours, theirs = socket.socketpair()
        try:
            # Files instead of pipes: a program that does not read cannot block us. In memory: there may be secrets.
            with theirs, in_memory(stdin) as given, in_memory(order.encode()) as ordered:
                line, file = theirs.fileno(), ordered.fileno()
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", launcher.__file__, str(file), str(line)],
                    stdin=given,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env={},
                    cwd="/",
                    pass_fds=(file, line, *order.descriptors),
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            raise
        self._line = ours
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.stdout = Output(self._process.stdout, keep, on_line)
        self.stderr = Output(self._process.stderr, keep, on_line)
        threading.Thread(target=self._await_end, name=f"mainspring script {self._process.pid}", daemon=True).start()

    async def stop(self, grace: float) -> None:
        """Ask the tree to end; kill it after the grace, or when this task is cancelled a second time."""
        asked = asyncio.current_task()
        patience = grace if asked is None or asked.cancelling() < 2 else 0
        self._send(b"T")
        with suppress(asyncio.CancelledError):
            await asyncio.wait([self.ended], timeout=patience)
        while not self.ended.done():
            self._send(b"K")
            with suppress(asyncio.CancelledError):
                await asyncio.wait([self.ended], timeout=_PATIENCE)
            if not self.ended.done():
                # The program may have stopped its launcher. Without it the worker cleans up the rest.
                self._process.kill()

    def _send(self, order: bytes) -> None:
        with suppress(OSError):  # The program has ended.
            self._line.send(order, socket.MSG_DONTWAIT)

    def _await_end(self) -> None:
        """Wait on a separate thread, which works the same on every system and under every event loop."""
        received = bytearray()
        with suppress(OSError):
            while data := self._line.recv(_CHUNK):
                received += data
        code = self._process.wait()
        try:
            ended = msgspec.json.decode(bytes(received), type=ProgramResult)
        except msgspec.MsgspecError:
            # The launcher was killed.
            kill_marked(self._marks)
            ended = ProgramResult(code=code if code < 0 else -signal.SIGKILL)
        self._line.close()
        with suppress(RuntimeError):  # The loop is closed: there is no receiver left.
            self._loop.call_soon_threadsafe(self._set_ended, ended)

    def _set_ended(self, ended: ProgramResult) -> None:
        if not self.ended.done():
            self.ended.set_result(ended)


def _marks(environment: Mapping[str, str]) -> list[bytes]:
    """Return the environment entries that only this attempt has."""
    return [f"{name}={environment[name]}\0".encode() for name in ("MAINSPRING_RUN_ID", "MAINSPRING_FENCE")]


def in_memory(data: bytes) -> IO[bytes]:
    """Open an unnamed file with this content."""
    file: IO[bytes]
    if hasattr(os, "memfd_create"):
        file = os.fdopen(os.memfd_create("mainspring"), "w+b")
    else:
        file = tempfile.TemporaryFile(prefix="mainspring-")  # noqa: SIM115
    file.write(data)
    file.flush()
    file.seek(0)
    return file
