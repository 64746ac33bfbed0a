"""A program that somebody else wrote, run so that nothing of it can be left behind."""

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

_CHUNK = 64 * 1024
#: From Linux's fcntl.h; Python does not name it.
_F_SETSIG = 10


class Output:
    """Takes all of a stream, so that the program never waits for us, and keeps its end."""

    def __init__(self, stream: IO[bytes], keep: int) -> None:
        self._stream = stream
        self._keep = keep
        self._kept = bytearray()
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
        return True

    def _finish(self) -> None:
        if not self._stream.closed:
            self._loop.remove_reader(self._stream.fileno())
            self._stream.close()


class Program:
    """Starts when it is made, in a session and process group of its own. ``ended`` is its exit code, when it is gone.

    - Signals go to the whole group. What the program leaves running there when it ends is killed.
    - Should the worker die, the kernel kills the group (on Linux): the program holds the reading end of a pipe that the
      worker holds the writing end of, and the pipe's owner, to be signalled when it closes, is the group.
    """

    def __init__(
        self, argv: Sequence[str], *, stdin: bytes, environment: Mapping[str, str], folder: Path, keep: int
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self._reaping = threading.Lock()
        self._dead = False
        read_end, self._write_end = os.pipe()
        try:
            if sys.platform == "linux":
                fcntl.fcntl(read_end, _F_SETSIG, signal.SIGKILL)
                fcntl.fcntl(read_end, fcntl.F_SETFL, fcntl.fcntl(read_end, fcntl.F_GETFL) | os.O_ASYNC)
            # A file and not a pipe: a program that does not read it cannot make us wait.
            with tempfile.TemporaryFile(prefix="mainspring-stdin-") as file:
                file.write(stdin)
                file.seek(0)
                self._process = subprocess.Popen(
                    argv,
                    stdin=file,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=dict(environment),
                    cwd=folder,
                    pass_fds=(read_end,),
                    start_new_session=True,
                )
            if sys.platform == "linux":
                with suppress(OSError):  # It has ended already.
                    fcntl.fcntl(read_end, fcntl.F_SETOWN, -self._process.pid)
        except BaseException:
            os.close(self._write_end)
            raise
        finally:
            os.close(read_end)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.stdout = Output(self._process.stdout, keep)
        self.stderr = Output(self._process.stderr, keep)
        threading.Thread(target=self._await_end, name=f"mainspring script {self._process.pid}", daemon=True).start()

    def signal(self, number: signal.Signals) -> None:
        """To everybody in the group."""
        # While the leader is not reaped, the group's number cannot belong to anybody else.
        with self._reaping, suppress(ProcessLookupError, PermissionError):
            if not self._dead:
                os.killpg(self._process.pid, number)

    async def stop(self, grace: float) -> None:
        """Ask the group to end, and kill it when it has not after the grace, or when we are told to stop again."""
        asked = asyncio.current_task()
        patience = grace if asked is None or asked.cancelling() < 2 else 0
        self.signal(signal.SIGTERM)
        with suppress(asyncio.CancelledError):
            await asyncio.wait([self.ended], timeout=patience)
        while not self.ended.done():
            self.signal(signal.SIGKILL)
            with suppress(asyncio.CancelledError):
                await asyncio.wait([self.ended])

    def _await_end(self) -> None:
        """On a thread of its own, the same on every system and under every event loop."""
        if hasattr(os, "waitid"):
            # Dead but not reaped: now its group can be emptied without hitting a stranger.
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            self.signal(signal.SIGKILL)
            with self._reaping:
                self._dead = True
        code = self._process.wait()
        self._dead = True
        os.close(self._write_end)
        with suppress(RuntimeError):  # The loop is closed: nobody is left to tell.
            self._loop.call_soon_threadsafe(self.ended.set_result, code)
