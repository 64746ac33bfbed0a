"""The guides to plan and apply, doctor, costs, explain and move: their files, commands and outputs work as shown."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^ *```(\w+)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# ([\w.-]+)\n")


def follow(page: str, folder: Path, **environment: str) -> int:
    """Write the files and run the commands of a page, compare their outputs, and return the number of commands."""
    printed, count = "", 0
    for kind, text in _BLOCK.findall((DOCS / page).read_text()):
        file = _FILE.match(text)
        if kind == "sh":
            found = subprocess.run(
                ["/bin/sh", "-ec", text],
                cwd=folder,
                env={
                    **os.environ,
                    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                    "MAINSPRING_STORE": "mainspring.db",
                    "PYTHONDONTWRITEBYTECODE": "1",
                    **environment,
                },
                capture_output=True,
                text=True,
                check=False,
            )
            assert found.returncode in (0, 3), (text, found.stderr, found.stdout)
            printed, count = found.stdout, count + 1
        elif file is not None:
            (folder / file[1]).write_text(text)
        else:
            assert [line.rstrip() for line in printed.splitlines()] == text.splitlines()
    return count


def test_the_guide_to_schedules_as_code_works(tmp_path: Path) -> None:
    assert follow("guides/schedules-as-code.md", tmp_path) == 5


def test_the_guide_to_pause_and_versions_works(tmp_path: Path) -> None:
    assert follow("guides/pause-and-versions.md", tmp_path) == 7


def test_the_guide_to_cancel_works(tmp_path: Path) -> None:
    assert follow("guides/cancel.md", tmp_path) == 1


def test_the_guide_to_doctor_works(tmp_path: Path) -> None:
    assert follow("operate/doctor.md", tmp_path) == 1


def test_the_guide_to_cost_works(tmp_path: Path) -> None:
    assert follow("guides/usage-and-budgets.md", tmp_path) == 2
    subprocess.run([sys.executable, "tasks.py"], cwd=tmp_path, check=True, capture_output=True)


def test_the_guide_to_explain_works(tmp_path: Path) -> None:
    assert follow("guides/explain.md", tmp_path) == 2


def test_the_guide_to_deadlines_works(tmp_path: Path) -> None:
    assert follow("guides/deadlines.md", tmp_path) == 1
    submits = [sys.executable, "-c", "import asyncio, submit; asyncio.run(submit.submit())"]
    subprocess.run(submits, check=True, cwd=tmp_path, env={**os.environ, "MAINSPRING_STORE": "mainspring.db"})


def test_the_guide_to_calendars_works(tmp_path: Path) -> None:
    assert follow("guides/calendars.md", tmp_path) == 5


@pytest.mark.postgres
def test_the_guide_to_move_works(tmp_path: Path, postgres_database: str) -> None:
    made = [sys.executable, "-m", "mainspring", "migrate", "--store", str(tmp_path / "mainspring.db")]
    subprocess.run(made, check=True, capture_output=True)
    assert follow("deploy/move-to-postgresql.md", tmp_path, NEW_STORE=postgres_database) == 1
