"""The guides to plan and apply, to doctor, to cost, to why and to move: their files, commands and answers are these."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs" / "how-to"
_BLOCK = re.compile(r"^ *```(\w+)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# ([\w.-]+)\n")


def follow(page: str, folder: Path, **environment: str) -> int:
    """Files are written, commands are run, and the text after one is what it prints; how many commands there were."""
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
                timeout=50,
                check=False,
            )
            assert found.returncode in (0, 3), (text, found.stderr, found.stdout)
            printed, count = found.stdout, count + 1
        elif file is not None:
            (folder / file[1]).write_text(text)
        else:
            assert [line.rstrip() for line in printed.splitlines()] == text.splitlines()
    return count


def test_schedules_as_code(tmp_path: Path) -> None:
    assert follow("schedules-as-code.md", tmp_path) == 5


@pytest.mark.timeout(180)
def test_pause_and_versions(tmp_path: Path) -> None:
    assert follow("pause-and-versions.md", tmp_path) == 7


def test_cancel(tmp_path: Path) -> None:
    assert follow("cancel.md", tmp_path) == 1


def test_doctor(tmp_path: Path) -> None:
    assert follow("doctor.md", tmp_path) == 1


@pytest.mark.timeout(300)
def test_cost(tmp_path: Path) -> None:
    assert follow("cost.md", tmp_path) == 2
    subprocess.run([sys.executable, "tasks.py"], cwd=tmp_path, check=True, capture_output=True)


@pytest.mark.timeout(300)
def test_explain(tmp_path: Path) -> None:
    assert follow("explain.md", tmp_path) == 2


@pytest.mark.timeout(180)
def test_deadlines(tmp_path: Path) -> None:
    assert follow("deadlines.md", tmp_path) == 1
    submits = [sys.executable, "-c", "import asyncio, submit; asyncio.run(submit.submit())"]
    subprocess.run(submits, check=True, cwd=tmp_path, env={**os.environ, "MAINSPRING_STORE": "mainspring.db"})


@pytest.mark.timeout(180)
def test_calendars(tmp_path: Path) -> None:
    assert follow("calendars.md", tmp_path) == 5


@pytest.mark.postgres
def test_move(tmp_path: Path, postgres_database: str) -> None:
    made = [sys.executable, "-m", "mainspring", "migrate", "--store", str(tmp_path / "mainspring.db")]
    subprocess.run(made, check=True, capture_output=True)
    assert follow("move-to-postgresql.md", tmp_path, NEW_STORE=postgres_database) == 1
