"""The check of prose finds what it should, and only in prose."""

from pathlib import Path

import pytest

from tools.words import LEAST_YOU, ROOT, find, measure


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('"""Whoever holds it says so."""\n', [1]),
        ("# Nobody looks at it.\nnobody = 1\n", [1]),
        ('def f() -> None:\n    """Return the name.\n\n    What waits for it goes on.\n    """\n', [4]),
        ('told = "nobody is told"\n', []),
        ('"""The worker renews its lease every 3 s."""\n', []),
    ],
)
def test_markers_are_found_in_comments_and_docstrings_only(text: str, lines: list[int], tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(text)
    assert [number for number, _ in find(file)] == lines


def test_every_line_of_a_page_is_prose(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\nYou submit a job.\nIt is made anew.\n")
    assert list(find(page)) == [(4, "anew")]


def test_names_in_code_spans_are_not_prose(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("The field `told` is now `notified`.\n")
    assert list(find(page)) == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs/guides").glob("*.md")), ids=lambda page: str(page.name))
def test_every_guide_speaks_to_the_reader(page: Path) -> None:
    _, markers, reader = measure(page.read_text())
    assert (markers, reader >= LEAST_YOU) == (0, True)
