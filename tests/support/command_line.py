"""Call the command line in this process, on a real installation that runs beside it."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from mainspring.cli.main import main
from tests.support.processes import free_port
from tests.support.waiting import DEADLINE_SECONDS, wait_until

ROOT = Path(__file__).parents[2]
TASKS = '''
import asyncio
from dataclasses import dataclass
from typing import Literal

from mainspring import Limit, Mainspring

app = Mainspring()

@app.task
async def send(user_id: int) -> str:
    if user_id < 0:
        raise ValueError(f"there is no user {user_id}")
    return f"sent to {user_id}"

@app.task
async def broken(number: int) -> None:
    raise ValueError(f"cannot do {number}")

@app.task
async def slow(seconds: float) -> None:
    await asyncio.sleep(seconds)

@dataclass
class Address:
    street: str

@app.task(priority=2, timeout="1m", retries=5, limits=[Limit("customer:{payload.customer}", most=2)])
async def charge(
    customer: int, currency: Literal["EUR", "USD"] = "EUR", to: Address | None = None, notes: list[str] = []
) -> str:
    """Charge a customer."""
    return f"charged {customer}"

@app.cron("0 30 9 * * MON", timezone="Europe/Paris", name="weekly-report")
async def weekly_report(week: int = 0) -> None: ...
'''


class CommandResult(msgspec.Struct, frozen=True):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Site:
    """``mainspring up`` with API keys, in its own folder."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.store = str(folder / "jobs.db")
        self.patch = patch
        self._process: subprocess.Popen[bytes] | None = None

    def call(self, *words: str, stdin: str = "") -> CommandResult:
        out, err = io.StringIO(), io.StringIO()
        self.patch.setattr(sys, "argv", ["mainspring", *words])
        self.patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        code: object = 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
            except SystemExit as left:
                code = left.code
        assert isinstance(code, int | None)
        return CommandResult(code or 0, out.getvalue(), err.getvalue())

    def run(self, *words: str, stdin: str = "") -> CommandResult:
        """Call a command that has to succeed."""
        result = self.call(*words, stdin=stdin)
        assert result.code == 0, result
        return result

    def start(self) -> None:
        (self.folder / "tasks.py").write_text(TASKS)
        with (self.folder / "up.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mainspring", "up", "tasks:app", "--port", str(self.port)],
                cwd=self.folder,
                env={**os.environ, "MAINSPRING_AUTH_MODE": "keys", "MAINSPRING_STORE": self.store},
                stdout=log,
                stderr=log,
            )
        wait_for_http(self.url, self._process, self.folder / "up.log")

    def stop(self) -> None:
        if self._process is not None:
            terminate(self._process)


def run_command(directory: Path, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a command in its own process."""
    return subprocess.run(
        [sys.executable, "-m", "mainspring", *words],
        cwd=directory,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def wait_for_http(url: str, process: "subprocess.Popen[Any]", log: Path | None = None) -> dict[str, Any]:
    """Return the answer of ``/healthz`` as soon as the process serves it."""

    def ask() -> dict[str, Any] | None:
        assert process.poll() is None, log.read_text() if log else "the process has ended"
        with contextlib.suppress(httpx2.TransportError):
            health: dict[str, Any] = httpx2.get(f"{url}/healthz", timeout=DEADLINE_SECONDS, trust_env=False).json()
            return health
        return None

    health = wait_until(ask, lambda: log.read_text() if log else "")
    assert health is not None
    return health


def terminate(process: "subprocess.Popen[Any]") -> int:
    """Send SIGTERM and return the exit code."""
    process.send_signal(signal.SIGTERM)
    return wait_for_exit(process)


def wait_for_exit(process: "subprocess.Popen[Any]") -> int:
    """Return the exit code; a process that hangs is killed and fails the test."""
    try:
        return process.wait(DEADLINE_SECONDS)
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def running_site(folder: Path) -> Iterator[Site]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("MAINSPRING_")]:
            patch.delenv(name)
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        patch.setenv("COLUMNS", "160")
        patch.chdir(folder)
        site = Site(folder, patch)
        site.start()
        try:
            yield site
        finally:
            site.stop()
