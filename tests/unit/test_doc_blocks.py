"""The files of a page are written without a trace in this process."""

import sys
from pathlib import Path

from tests.support.doc_blocks import write_blocks


def test_a_page_may_have_a_file_with_the_name_of_an_imported_module(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\n# shop/tests.py\nx = 1\n```\n")
    imported = dict(sys.modules)
    [written] = write_blocks(page, tmp_path)
    assert written.read_text() == "# shop/tests.py\nx = 1\n"
    assert sys.modules == imported
