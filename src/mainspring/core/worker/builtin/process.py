"""A program that somebody else wrote, run so that nothing of it can be left behind."""

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
#: What is read of one line. Whatever follows in it is only counted as kept output.
_LONGEST_LINE = 64 * 1024
#: Seconds that a launcher may take to kill everybody.
_PATIENCE = 2.0


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, as whom, and with which limits."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    #: User, group and further groups, by their numbers; empty for those of the worker.
    identity: Sequence[int] = ()
    #: By the last part of their names, as in ``RLIMIT_NOFILE``.
    limits: Mapping[str, int] = {}
    #: The launcher kills a program that it sees with more processes; 0 for no limit.
    processes: int = 0
    #: A folder of cgroup v2, to be made for this program, and what to write into it.
    cgroup: str = ""
    cgroup_limits: Mapping[str, str] = {}
    no_new_privileges: bool = True
    #: Open files of the worker that the program inherits, by the same numbers.
    descriptors: Sequence[int] = ()

    def encode(self) -> bytes:
        """As the launcher reads it: it has no time to import a parser."""
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


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How it went."""

    #: As Python has it: of a signal, its number below zero.
    code: int = 0
    #: How many processes it left behind, which were killed.
    left: int = 0
    #: Time on a processor that all of it has used.
    cpu: Micros = 0
    out_of_memory: bool = False
    #: It was killed for having more than ``Order.processes``.
    too_many_processes: bool = False
    #: Why it could not be started.
    errno: int = 0


class Output:
    """Takes all of a stream, so that the program never waits for us, keeps its end, and tells every line."""

    def __init__(self, stream: IO[bytes], keep: int, tell: Callable[[bytes, bool], None]) -> None:
        """``tell`` is called with each line, and whether it was longer than what is told."""
        self._stream = stream
        self._keep = keep
        self._tell = tell
        self._kept = bytearray()
        self._line = bytearray()
        self._loop = asyncio.get_running_loop()
        self.cut = False
        os.set_blocking(stream.fileno(), False)
        self._loop.add_reader(stream.fileno(), self._read)

    def close(self) -> bytes:
        """What is left in the pipe, and then the end of it all. Not until it is closed: a stranger may hold it open."""
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
        # One more than is told, so that it shows.
        self._line += data[: max(0, _LONGEST_LINE + 1 - len(self._line))]

    def _end_line(self) -> None:
        line, self._line = bytes(self._line), bytearray()
        self._tell(line[:_LONGEST_LINE], len(line) > _LONGEST_LINE)

    def _finish(self) -> None:
        if not self._stream.closed:
            self._loop.remove_reader(self._stream.fileno())
            self._stream.close()


class Program:
    """Starts when it is made, under a launcher that answers for it. ``ended`` says how it went, when all of it is gone.

    - Signals go to the whole tree: what it starts, also in other sessions. What is left when it ends is killed.
    - Should the worker die, the launcher sees its line closed and kills the tree. Should the launcher be killed, the
      kernel kills the program (on Linux), and the worker whoever carries the mark of the run.
    """

    def __init__(self, order: Order, *, stdin: bytes, keep: int, tell: Callable[[bytes, bool], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[Ended] = self._loop.create_future()
        self._marks = _marks(order.environment)
        ours, theirs = socket.socketpair()
        try:
            # Files and not pipes: a program that does not read cannot make us wait. In memory: there may be secrets.
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
        self.stdout = Output(self._process.stdout, keep, tell)
        self.stderr = Output(self._process.stderr, keep, tell)
        threading.Thread(target=self._await_end, name=f"mainspring script {self._process.pid}", daemon=True).start()

    async def stop(self, grace: float) -> None:
        """Ask the tree to end, and kill it when it has not after the grace, or when we are told to stop again."""
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
                # The program has stopped its launcher, perhaps. Without it the worker looks after the rest.
                self._process.kill()

    def _send(self, order: bytes) -> None:
        with suppress(OSError):  # It has ended.
            self._line.send(order, socket.MSG_DONTWAIT)

    def _await_end(self) -> None:
        """On a thread of its own, the same on every system and under every event loop."""
        told = bytearray()
        with suppress(OSError):
            while data := self._line.recv(_CHUNK):
                told += data
        code = self._process.wait()
        try:
            ended = msgspec.json.decode(bytes(told), type=Ended)
        except msgspec.MsgspecError:
            # Somebody killed the launcher.
            kill_marked(self._marks)
            ended = Ended(code=code if code < 0 else -signal.SIGKILL)
        self._line.close()
        with suppress(RuntimeError):  # The loop is closed: nobody is left to tell.
            self._loop.call_soon_threadsafe(self._tell, ended)

    def _tell(self, ended: Ended) -> None:
        if not self.ended.done():
            self.ended.set_result(ended)


def _marks(environment: Mapping[str, str]) -> list[bytes]:
    """What nobody but this attempt has."""
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
