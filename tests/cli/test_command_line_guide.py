"""docs/guides/command-line.md, run from top to bottom, and the reference page, which is generated from the code."""

import re
from pathlib import Path

import pytest

from mainspring.cli import exits, reference

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "guides" / "command-line.md").read_text()
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_guide_lists_every_exit_code() -> None:
    codes = [int(code) for code in re.findall(r"^\| (\d+) \|", GUIDE, re.MULTILINE)]
    assert codes == [code for code in exits.WORDS if code < 100]


def test_the_reference_page_is_up_to_date() -> None:
    if (DOCS / "reference" / "cli.md").read_text() != reference.page():
        pytest.fail("docs/reference/cli.md is not what the code says: run make reference", pytrace=False)


def test_every_command_has_an_example_and_every_option_a_help_text() -> None:
    page = reference.page()
    for part in page.split("\n## ")[3:]:
        name = part.partition("\n")[0]
        if name not in ("scheduler", "migrate"):
            assert "```\n" in part, name
    assert "|  |" not in page
