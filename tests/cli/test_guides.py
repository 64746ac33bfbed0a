"""The migration guides: their files, commands and outputs work as shown."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mainspring.core.runtime.plain_yaml import read_yaml
from mainspring.features.schedules import file as schedule_file

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = ("crontab", "celery", "apscheduler")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# ([\w.-]+)\n")


@pytest.mark.parametrize("name", GUIDES)
def test_the_commands_of_a_guide_print_what_it_shows(tmp_path: Path, name: str) -> None:
    """Write the files and run the commands; the block after a command is its output, or part of the file it writes."""
    printed = ""
    seen = set()
    for kind, text in _BLOCK.findall((DOCS / "migrate" / f"{name}.md").read_text()):
        file = _FILE.match(text)
        if kind == "sh":
            found = _run(tmp_path, text)
            assert found.returncode == 3, found.stderr
            printed = found.stdout
        elif kind == "yaml":
            assert file is not None
            written = read_yaml((tmp_path / file[1]).read_text(), "x")[0]["schedules"]
            assert [entry for entry in read_yaml(text, "x")[0]["schedules"] if entry not in written] == []
            assert schedule_file.read_file(tmp_path / file[1])
        elif file is not None:
            (tmp_path / file[1]).write_text(text)
            if file[1] == "tasks.py":
                assert _run(tmp_path, "python tasks.py").returncode == 0
        else:
            assert [line.rstrip() for line in printed.splitlines()] == text.splitlines()
        seen.add(kind)
    assert {"sh", "text", "yaml"} <= seen


def test_the_example_of_the_reference_is_a_valid_schedule_file() -> None:
    [(kind, text)] = _BLOCK.findall((DOCS / "reference" / "schedules-file.md").read_text())
    assert kind == "yaml"
    assert [spec.name for spec, _ in schedule_file.read_text(text)] == ["nightly-report", "poll"]


def test_the_reference_names_every_field() -> None:
    page = (DOCS / "reference" / "schedules-file.md").read_text()
    fields = set(schedule_file.FIELDS) - {"scheduleType", "delay"}
    assert {field for field in fields if f"`{field}`" not in page} == set()


def _run(folder: Path, command: str) -> "subprocess.CompletedProcess[str]":
    binaries = Path(sys.executable).parent
    return subprocess.run(
        ["bash", "-ec", command],
        cwd=folder,
        env={**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}", "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=False,
    )
