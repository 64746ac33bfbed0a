"""The SDK is typed: mypy and pyright find a wrong argument before anything runs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def find_errors(checker: str, file: Path) -> set[int]:
    if checker == "mypy":
        command = ["mypy", "--strict", "--no-error-summary", "--no-incremental", str(file)]
        found = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
        return {int(line) for line in re.findall(rf"{re.escape(file.name)}:(\d+): error", found.stdout)}
    command = ["pyright", "--outputjson", "--pythonpath", sys.executable, str(file)]
    found = subprocess.run(
        [sys.executable, "-m", *command], cwd=HERE, capture_output=True, text=True, check=False, env=os.environ
    )
    report = json.loads(found.stdout)
    return {item["range"]["start"]["line"] + 1 for item in report["generalDiagnostics"] if item["severity"] == "error"}


def read_expected(file: Path) -> set[int]:
    return {number for number, line in enumerate(file.read_text().splitlines(), 1) if line.endswith("# wrong")}


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
@pytest.mark.parametrize("name", ["right.py", "wrong.py"])
def test_wrong_calls_are_errors_and_right_ones_are_not(checker: str, name: str) -> None:
    file = HERE / name
    assert find_errors(checker, file) == read_expected(file)
