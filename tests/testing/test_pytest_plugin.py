"""The fixtures, in a pytest of their own, as users have it."""

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


def test_the_fixtures(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(A_TEST_FILE)
    run_pytest(tmp_path, "3 passed")


def test_it_costs_nothing_where_it_is_not_used() -> None:
    script = "import sys, mainspring_pytest; print('mainspring' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


def test_it_is_found_by_pytest() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text())
    (module,) = project["project"]["entry-points"]["pytest11"].values()
    assert import_module(module) is mainspring_pytest
    assert f"src/{module}" in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


def test_time_begins_where_it_does_without_a_fixture() -> None:
    assert signature(TestScheduler).parameters["start"].default == mainspring_pytest.START
