"""The command line called in this process, and a real installation for it to speak to."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from mainspring.cli.main import main
from tests.support.processes import free_port

ROOT = Path(__file__).parents[2]
TASKS = """
import asyncio
from mainspring import Mainspring

app = Mainspring()

@app.task
async def send(user_id: int) -> str:
    return f"sent to {user_id}"

@app.task
async def broken(number: int) -> None:
    raise ValueError(f"cannot do {number}")

@app.task
async def slow(seconds: float) -> None:
    await asyncio.sleep(seconds)

@app.cron("0 30 9 * * MON", timezone="Europe/Paris", name="weekly-report")
async def weekly_report(week: int = 0) -> None: ...
"""


class Said(msgspec.Struct, frozen=True):
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Site:
    """``mainspring up`` with keys, in a folder of its own."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.store = str(folder / "jobs.db")
        self.patch = patch
        self._process: subprocess.Popen[bytes] | None = None

    def call(self, *words: str, stdin: str = "") -> Said:
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
        return Said(code or 0, out.getvalue(), err.getvalue())

    def done(self, *words: str, stdin: str = "") -> Said:
        """A command that has to succeed."""
        said = self.call(*words, stdin=stdin)
        assert said.code == 0, said
        return said

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
        end = time.monotonic() + 30
        while True:
            try:
                httpx2.get(f"{self.url}/healthz", timeout=1)
                return
            except httpx2.TransportError:
                assert time.monotonic() < end, (self.folder / "up.log").read_text()
                time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def until(self, check: Callable[[], bool]) -> None:
        end = time.monotonic() + 20
        while not check():
            assert time.monotonic() < end
            time.sleep(0.05)


@contextlib.contextmanager
def a_site(folder: Path) -> Iterator[Site]:
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
