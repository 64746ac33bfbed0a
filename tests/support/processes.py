"""Real processes of the command line, started and ended by their ids."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[2]


class Processes:
    """Starts ``mainspring`` commands on one store; whatever is left at the end is killed."""

    def __init__(self, store: str, logs: Path) -> None:
        self._store = store
        self._logs = logs
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        log = (self._logs / f"{len(self._started)}-{arguments[0]}.log").open("wb")
        environment = {**os.environ, "MAINSPRING_STORE": self._store, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            [sys.executable, "-m", "mainspring", *arguments], cwd=ROOT, env=environment, stdout=log, stderr=log
        )
        log.close()
        self._started.append(process)
        return process

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-2_000:]}" for path in sorted(self._logs.iterdir()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
        for process in self._started:
            await asyncio.to_thread(process.wait)


def kill(process: "subprocess.Popen[bytes]") -> None:
    """As the kernel does it: no farewell."""
    process.send_signal(signal.SIGKILL)
    process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
