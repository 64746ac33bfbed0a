"""The processes of an example: ``mainspring`` commands that are started with it and end with it."""

import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import Coroutine
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from mainspring.cli import start as command_line

#: Each would need a second to load what all of them need. So one process loads it, and is copied.
_COPIES = multiprocessing.get_context("forkserver")


class Processes:
    """What they say goes into a file. They find their settings where the example does."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._started: list[ForkServerProcess] = []

    def start(self, *arguments: str) -> ForkServerProcess:
        """As ``mainspring …`` in another terminal."""
        process = _COPIES.Process(target=_run_command, args=(arguments, self._log))
        process.start()
        self._started.append(process)
        return process

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ask all to leave: they finish what they run, or give it back when they were asked by Ctrl-C before."""
        for process in self._started:
            process.terminate()
        for process in self._started:
            process.join()


def _run_command(arguments: tuple[str, ...], log: Path) -> None:
    with log.open("ab") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    sys.argv = ["mainspring", *arguments]
    command_line()


def kill(process: ForkServerProcess) -> None:
    """As a power cut would: no farewell."""
    process.kill()
    process.join()


def run(package: str, work: Coroutine[None, None, bool]) -> NoReturn:
    """Until it is done, or Ctrl-C: what it has started ends with it. Its settings are those of the example, in its
    processes too, unless the environment names others."""
    os.environ.setdefault("MAINSPRING_CONFIG", str(Path(__file__).parent / package / "mainspring.toml"))
    _COPIES.set_forkserver_preload(["mainspring.cli.main", "mainspring.core.worker.worker", f"examples.{package}"])
    # It loads while we start.
    forkserver.ensure_running()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(0 if asyncio.run(work) else 1)
    except KeyboardInterrupt:
        sys.exit(130)


def say(text: str) -> None:
    print(text, flush=True)
