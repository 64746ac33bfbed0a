"""The testing guide: every block of it runs."""

from pathlib import Path

import pytest

from tests.support.doc_blocks import write_blocks
from tests.support.inner_pytest import run_pytest


@pytest.mark.slow
def test_every_block_of_the_testing_guide_runs(tmp_path: Path) -> None:
    tasks, tests = write_blocks(Path("docs/guides/testing.md"), tmp_path)
    assert (tasks.name, tests.name) == ("tasks.py", "test_tasks.py")
    count = tests.read_text().count("def test_")
    assert count >= 10
    run_pytest(tmp_path, f"{count} passed")
