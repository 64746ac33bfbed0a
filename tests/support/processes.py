"""Real processes of the command line, started and ended by their ids."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx2

ROOT = Path(__file__).parents[2]
#: What a process is to run is this tree, wherever the package is installed from.
PYTHONPATH = f"{ROOT / 'src'}{os.pathsep}{ROOT}"


class Processes:
    """Starts ``mainspring`` commands on one store; whatever is left at the end is killed."""

    def __init__(self, store: str, logs: Path, environment: Mapping[str, str] | None = None) -> None:
        """``environment``: of all of them, beyond ours."""
        self._store = store
        self._logs = logs
        self._environment = dict(environment or {})
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str, **settings: str) -> "subprocess.Popen[bytes]":
        """``settings``: of this one, as variables of the environment."""
        log = (self._logs / f"{len(self._started)}-{arguments[0]}.log").open("wb")
        environment = {
            **os.environ,
            "MAINSPRING_STORE": self._store,
            "PYTHONPATH": PYTHONPATH,
            **self._environment,
            **settings,
        }
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


async def until_ready(client: httpx2.AsyncClient, process: "subprocess.Popen[bytes]", processes: Processes) -> None:
    """Wait for an API, as long as a busy machine may take."""
    until = time.monotonic() + 100
    while True:
        with suppress(httpx2.TransportError):
            if (await client.get("/readyz")).status_code == 200:
                return
        assert time.monotonic() < until, processes.logs()
        assert process.poll() is None, processes.logs()
        await asyncio.sleep(0.05)


def kill(process: "subprocess.Popen[bytes]") -> None:
    """As the kernel does it: no farewell."""
    process.send_signal(signal.SIGKILL)
    process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
