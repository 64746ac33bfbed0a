"""``worker --autoscale`` and ``worker --drain``, with real processes."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mainspring.cli.autoscale import build_command, parse_bounds
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.cluster.autoscale import Bounds
from tests.support.command_line import Site, wait_for_exit
from tests.support.waiting import wait_until

TASKS = """
import asyncio
from mainspring import Mainspring
from mainspring.core.runtime import signals

# Never end a process by force: a busy machine may need long to leave in order.
signals._LEAVING = 3_600_000_000
app = Mainspring()

@app.task
async def nap(seconds: float) -> None:
    await asyncio.sleep(seconds)
"""


def test_an_autoscale_range_is_a_minimum_and_a_maximum() -> None:
    assert parse_bounds("1:16") == Bounds(1, 16)
    for text in ("16", "2:1", "0:0", "a:b", "1:", "-1:4"):
        with pytest.raises(Invalid, match="--autoscale"):
            parse_bounds(text)


def test_workers_of_a_fleet_inherit_all_options_but_the_range_and_the_name() -> None:
    given = ["worker", "t:app", "--autoscale", "1:4", "--name", "x", "--queue", "mail:2", "--autoscale=1:4", "--name=y"]
    assert build_command(given) == [sys.executable, "-m", "mainspring", "worker", "t:app", "--queue", "mail:2"]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A folder with an application and a store. Commands run in this process: starting one takes long."""
    (tmp_path / "t.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MAINSPRING_STORE", str(tmp_path / "m.db"))
    monkeypatch.setenv("MAINSPRING_WORKER_GRACE", "1h")
    site = Site(tmp_path, monkeypatch)
    site.run("migrate")
    return site


def start(log: Path, *words: str) -> "subprocess.Popen[bytes]":
    with log.open("wb") as file:
        return subprocess.Popen([sys.executable, "-m", "mainspring", *words], stderr=file)


def list_workers(site: Site) -> list[str]:
    return re.findall(r"fleet\S*", site.run("workers", "list").out)


def test_a_fleet_grows_with_the_load_and_leaves_with_its_parent(site: Site, tmp_path: Path) -> None:
    for _ in range(3):
        site.run("jobs", "submit", "nap", "--arg", "seconds=3600")
    log = tmp_path / "fleet.log"
    parent = start(log, "worker", "t:app", "--queue", "default:1", "--autoscale", "1:2", "--name", "fleet")
    try:
        wait_until(lambda: len(list_workers(site)) == 2, log.read_text)
        parent.send_signal(signal.SIGTERM)
        wait_until(lambda: log.read_text().count("worker leaving") == 2, log.read_text)
    finally:
        parent.send_signal(signal.SIGTERM)
        assert wait_for_exit(parent) == 0, log.read_text()
    assert list_workers(site) == []


def test_drain_waits_until_the_worker_has_left(site: Site, tmp_path: Path) -> None:
    unknown = site.call("worker", "--drain", "fleet")
    assert (unknown.code, unknown.err.count("there is no worker 'fleet'")) == (4, 1)
    log = tmp_path / "worker.log"
    worker = start(log, "worker", "t:app", "--name", "fleet")
    try:
        wait_until(lambda: list_workers(site) == ["fleet"], log.read_text)
        drained = site.run("worker", "--drain", "fleet")
        assert drained.err.splitlines()[-1] == "worker fleet has left"
        assert wait_for_exit(worker) == 0
    finally:
        worker.kill()
        worker.wait()
