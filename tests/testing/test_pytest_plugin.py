"""The pytest plugin, in a separate pytest process as in a user's project."""

import subprocess
import sys
import tomllib
from importlib import import_module
from inspect import signature
from pathlib import Path

import mainspring_pytest
from mainspring.testing import TestScheduler
from tests.support.inner_pytest import run_pytest

A_TEST_FILE = """
from mainspring import Mainspring
from mainspring.testing import TestScheduler

app = Mainspring()

@app.cron("0 * * * *")
async def hourly() -> None: ...


async def test_with_a_loop(mainspring_scheduler):
    s = mainspring_scheduler(app, start="2026-03-28T00:00:00Z")
    await s.advance("1 day")
    assert s.runs(hourly).succeeded == 24


def test_without(mainspring_blocking_scheduler):
    s = mainspring_blocking_scheduler(app)
    s.advance("2 days")
    assert s.runs(hourly).succeeded == 48


def test_the_first_has_ended(mainspring_blocking_scheduler):
    assert not mainspring_blocking_scheduler(app).runs()
"""


def test_the_fixtures_run_in_a_separate_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(A_TEST_FILE)
    run_pytest(tmp_path, "3 passed")


def test_the_plugin_does_not_import_mainspring_until_it_is_used() -> None:
    script = "import sys, mainspring_pytest; print('mainspring' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


def test_the_plugin_is_registered_as_an_entry_point() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text())
    (module,) = project["project"]["entry-points"]["pytest11"].values()
    assert import_module(module) is mainspring_pytest
    assert f"src/{module}" in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


def test_the_fixtures_start_at_the_default_time_of_the_test_scheduler() -> None:
    assert signature(TestScheduler).parameters["start"].default == mainspring_pytest.START
