"""Real processes of the command line, started and ended by their ids."""

import asyncio
import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

import httpx2
import psutil

from tests.support.waiting import DEADLINE_SECONDS, eventually

ROOT = Path(__file__).parents[2]
#: A deadline for waits that include the start of a process: importing takes seconds of processor time, and a busy
#: machine gives a new process little of it.
START_SECONDS = 400.0
#: Processes run this checkout, wherever the package is installed from.
PYTHONPATH = f"{ROOT / 'src'}{os.pathsep}{ROOT}"


#: Below the ports that the kernel chooses for outgoing connections. Each process begins somewhere else.
_PORTS = range(10_000, 20_000)
_FIRST = os.getpid() * 97 % len(_PORTS)
_ports = iter([*_PORTS[_FIRST:], *_PORTS[:_FIRST]])
_locks: list[TextIO] = []


class Processes:
    """Starts ``mainspring`` commands on one store, and kills those that are left at the end."""

    def __init__(self, store: str, logs: Path, environment: Mapping[str, str] | None = None) -> None:
        """``environment``: variables of every process, in addition to those of this one."""
        logs.mkdir(exist_ok=True)
        self._store = store
        self._logs = logs
        self._environment = dict(environment or {})
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str, **settings: str) -> "subprocess.Popen[bytes]":
        """``settings``: environment variables of this process alone."""
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
        return "\n".join(f"== {path.name}\n{path.read_text()[-2_000:]}" for path in sorted(self._logs.glob("*.log")))

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
        # pytest shows it if the test has failed.
        sys.stdout.write(self.logs())


def api_client(port: int) -> httpx2.AsyncClient:
    """A client of an API on this machine. A request fails only if it hangs."""
    return httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_SECONDS, trust_env=False)


async def until_ready(client: httpx2.AsyncClient, process: "subprocess.Popen[bytes]", processes: Processes) -> None:
    """Wait until an API is ready. Fail as soon as its process has ended."""

    async def ready() -> bool:
        assert process.poll() is None, processes.logs()
        with suppress(httpx2.TransportError):
            return (await client.get("/readyz")).status_code == 200
        return False

    await eventually(ready, processes.logs, deadline=START_SECONDS)


async def until_ended(process: "subprocess.Popen[bytes]", processes: Processes) -> int:
    """Wait until a process ends; its exit code."""
    await eventually(lambda: process.poll() is not None, processes.logs, deadline=START_SECONDS)
    return int(process.returncode)


def kill(process: "subprocess.Popen[bytes]") -> None:
    """End a process without a chance to clean up."""
    process.send_signal(signal.SIGKILL)
    process.wait()


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def until_gone(*pids: int) -> None:
    await eventually(lambda: not any(map(is_alive, pids)), lambda: [pid for pid in pids if is_alive(pid)])


async def until_written(path: Path) -> str:
    """Wait until another process has written a file; its text."""

    def text() -> str:
        return path.read_text() if path.exists() else ""

    return await eventually(text, f"{path.name} was not written", deadline=START_SECONDS)


def free_port() -> int:
    """Return a port that no other test process gets, and that no outgoing connection uses."""
    locks = Path(tempfile.gettempdir()) / "mainspring-test-ports"
    locks.mkdir(exist_ok=True)
    for port in _ports:
        lock = (locks / str(port)).open("w")
        try:
            # Held until this process ends: a server that is started later may bind the port after a while.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            lock.close()
            continue
        _locks.append(lock)
        return port
    raise AssertionError("no port is free")
