"""The fuzz targets: a number of inputs each, the same every time, in a process with limited memory."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import strategies as st

from mainspring.config.resources import RESOURCES
from tests.support.line_count import at_most_lines
from tools.fuzz.__main__ import TARGETS, search
from tools.fuzz.requests import LISTS
from tools.fuzz.target import Target

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_every_input_is_accepted_or_refused_with_a_documented_error(name: str) -> None:
    command = [sys.executable, "-m", "tools.fuzz", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{name}: {TARGETS[name].examples} inputs" in done.stdout


def test_an_unexpected_error_is_found_and_reduced() -> None:
    def check(text: str) -> None:
        if len(text) > 3:
            raise KeyError(text)

    with pytest.raises(KeyError, match="'0000'"):
        search(Target(st.text(), check, examples=200), 200)


def test_too_much_work_and_too_much_memory_are_found() -> None:
    def loop(number: int) -> None:
        while number >= 0:
            number += 1

    def check(number: int) -> None:
        # Only functions that are called in the block are counted.
        with at_most_lines(1_000):
            loop(number)

    with pytest.raises(AssertionError, match="more than 1000 lines"):
        search(Target(st.integers(0), check, examples=5), 5)
    script = "from tools.fuzz.__main__ import bounded_memory\nwith bounded_memory(): bytearray(2**31)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "MemoryError" in done.stderr


def test_the_filters_of_every_list_are_tried() -> None:
    paths = {operation.path for resource in RESOURCES for operation in resource.operations}
    assert {"/v1/runs", "/v1/jobs", "/v1/dead-letters", "/v1/audit"} <= LISTS.keys() <= paths
