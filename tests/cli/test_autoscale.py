"""``worker --autoscale`` and ``worker --drain``, on real processes."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mainspring.cli.autoscale import bounds_of, command_of
from mainspring.domain.autoscale import Bounds
from mainspring.domain.errors import Invalid
from tests.support.command_line import Site

TASKS = """
import asyncio
from mainspring import Mainspring
app = Mainspring()

@app.task
async def nap(seconds: float) -> None:
    await asyncio.sleep(seconds)
"""


def test_a_range_is_least_and_most() -> None:
    assert bounds_of("1:16") == Bounds(1, 16)
    for text in ("16", "2:1", "0:0", "a:b", "1:", "-1:4"):
        with pytest.raises(Invalid, match="--autoscale"):
            bounds_of(text)


def test_a_worker_of_the_fleet_has_the_same_options_but_the_range_and_the_name() -> None:
    given = ["worker", "t:app", "--autoscale", "1:4", "--name", "x", "--queue", "mail:2", "--autoscale=1:4", "--name=y"]
    assert command_of(given) == [sys.executable, "-m", "mainspring", "worker", "t:app", "--queue", "mail:2"]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A folder with an application and a store. Only what must be a process of its own is one: each start is dear."""
    (tmp_path / "t.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MAINSPRING_STORE", str(tmp_path / "m.db"))
    monkeypatch.setenv("MAINSPRING_LOG_LEVEL", "warning")
    site = Site(tmp_path, monkeypatch)
    site.done("migrate")
    return site


def start(*words: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-m", "mainspring", *words], stderr=subprocess.DEVNULL)


def workers(site: Site) -> list[str]:
    return re.findall(r"fleet\S*", site.done("workers", "list").out)


@pytest.mark.timeout(180)
def test_a_fleet_grows_with_the_load_and_leaves_with_its_parent(site: Site) -> None:
    for _ in range(3):
        site.done("jobs", "submit", "nap", "--arg", "seconds=60")
    parent = start("worker", "t:app", "--queue", "default:1", "--autoscale", "1:2", "--name", "fleet")
    try:
        until(lambda: len(workers(site)) == 2)
    finally:
        parent.send_signal(signal.SIGTERM)
        time.sleep(1)
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(60) == 0
    assert workers(site) == []


@pytest.mark.timeout(180)
def test_a_worker_is_drained_and_waited_for(site: Site) -> None:
    unknown = site.call("worker", "--drain", "fleet")
    assert (unknown.code, unknown.err.count("there is no worker 'fleet'")) == (4, 1)
    worker = start("worker", "t:app", "--name", "fleet")
    try:
        until(lambda: workers(site) == ["fleet"])
        drained = site.done("worker", "--drain", "fleet")
        assert drained.err.splitlines()[-1] == "worker fleet has left"
        assert worker.wait(60) == 0
    finally:
        worker.kill()
        worker.wait()


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.1)
