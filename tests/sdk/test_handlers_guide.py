"""Every code block of the guide to writing tasks runs."""

from pathlib import Path

import pytest

from tests.support.doc_blocks import write_blocks
from tests.support.inner_pytest import run_pytest


@pytest.mark.slow
def test_every_block_of_the_task_guide(tmp_path: Path) -> None:
    tasks, tests = write_blocks(Path("docs/guides/writing-tasks.md"), tmp_path)
    assert (tasks.name, tests.name) == ("tasks.py", "test_tasks.py")
    run_pytest(tmp_path, f"{tests.read_text().count('def test_')} passed")
