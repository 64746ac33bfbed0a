"""Child processes of the benchmark: the same commands that run in production, and none of them outlives it."""

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from bench.machine import processor_seconds, resident_mb

#: What a process prints when it is ready, and how long it may take.
READY = "mainspring: ready"
START_SECONDS = 30
#: How long a process may take to leave when it is asked to.
STOP_SECONDS = 10
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_CHECKOUT = Path(__file__).parents[1]


class ChildFailed(Exception):
    """A process ended, or did not come up. The message has the end of its log."""


class Child:
    """One process. What it writes to stderr is kept in a file."""

    def __init__(self, kind: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.kind = kind
        self.process = process
        self.log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def resident_mb(self) -> float | None:
        return resident_mb(self.pid)

    @property
    def processor_seconds(self) -> float:
        return processor_seconds(self.pid)

    def check(self) -> None:
        """Raise when it has ended."""
        if self.process.poll() is not None:
            raise ChildFailed(f"the {self.kind} process ended with {self.process.returncode}:\n{self.last_words()}")

    async def ready(self) -> None:
        give_up_at = time.monotonic() + START_SECONDS
        while READY not in self.log.read_text(errors="replace"):
            self.check()
            if time.monotonic() > give_up_at:
                raise ChildFailed(f"the {self.kind} process is not ready after {START_SECONDS} s:\n{self.last_words()}")
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """Ask it to leave; after a while, make it. Idempotent."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self.process.wait, STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """At once, as a crash would."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def last_words(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])


class Children:
    """``async with Children(directory) as children``: every process that was started inside has ended afterwards."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: list[Child] = []
        self._started = 0

    def start(
        self, kind: str, *arguments: str, environment: Mapping[str, str] | None = None, pipes: bool = False
    ) -> Child:
        """Start ``python -m …``; with ``pipes`` its stdin and stdout are ours."""
        return self.run(kind, [sys.executable, "-m", *arguments], environment=environment, pipes=pipes)

    def run(
        self, kind: str, command: Sequence[str], *, environment: Mapping[str, str] | None = None, pipes: bool = False
    ) -> Child:
        """The same for any command."""
        self._started += 1
        log = self._directory / f"{self._started}-{kind}.log"
        pipe: int | IO[bytes] = subprocess.PIPE if pipes else subprocess.DEVNULL
        with log.open("wb") as file:
            process = subprocess.Popen(
                command,
                stdin=pipe,
                stdout=pipe,
                stderr=file,
                env={**_inherited(), **(environment or {})},
                start_new_session=True,  # Ctrl-C is ours: we end them in order
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        child = Child(kind, process, log)
        self._running.append(child)
        return child

    def of(self, kind: str) -> list[Child]:
        return [child for child in self._running if child.kind == kind and child.process.poll() is None]

    def check(self) -> None:
        for child in self._running:
            child.check()

    async def stop(self, *kinds: str) -> None:
        """Stop those of these kinds, or all, in the opposite order of their start."""
        chosen = [child for child in reversed(self._running) if not kinds or child.kind in kinds]
        self._running = [child for child in self._running if child not in chosen]
        for child in chosen:
            try:
                await child.stop()
            finally:
                child.kill()
                for stream in (child.process.stdin, child.process.stdout):
                    if stream is not None:
                        with contextlib.suppress(OSError):
                            stream.close()

    def forget(self, child: Child) -> None:
        """It was killed on purpose."""
        child.kill()
        self._running.remove(child)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            for child in self._running:
                child.kill()
        await self.stop()


def _inherited() -> dict[str, str]:
    """Return the environment without settings, and with the path on which processes find the benchmark's tasks."""
    path = os.pathsep.join(filter(None, [str(_CHECKOUT), os.environ.get("PYTHONPATH")]))
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")},
        "PYTHONPATH": path,
    }


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
