"""Every code block of the guide to retries runs."""

from pathlib import Path

from tests.support.doc_blocks import write_blocks
from tests.support.inner_pytest import run_pytest


def test_every_block_of_the_retries_guide(tmp_path: Path) -> None:
    tasks, tests = write_blocks(Path("docs/guides/retries.md"), tmp_path)
    assert (tasks.name, tests.name) == ("tasks.py", "test_tasks.py")
    run_pytest(tmp_path, "4 passed")
