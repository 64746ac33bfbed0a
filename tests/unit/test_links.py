"""The link checker, and the links of the documentation."""

from pathlib import Path

import pytest

from tools.links import anchors_of, broken, links_of, pages, slug_of


def test_the_documentation_has_no_broken_links() -> None:
    assert len(pages()) > 60
    assert broken() == []


def check_page(
    root: Path, text: str, other: str = "# Other\n\n## The `way` of a job\n\n## Twice\n\n## Twice\n"
) -> list[str]:
    (root / "docs").mkdir()
    (root / "docs" / "page.md").write_text(text)
    (root / "docs" / "other.md").write_text(other)
    return broken(root)


@pytest.mark.parametrize(
    "text",
    [
        "[a](other.md)",
        "[a](other.md#the-way-of-a-job)",
        "[a](other.md#twice-1) and ![b](other.md)",
        "# Here\n[a](#here)",
        "[a](https://example.org/nowhere) <https://example.org> [b](mailto:a@example.org)",
        "`[a](nowhere.md)`",
        "```\n[a](nowhere.md)\n```",
        "[a][b]\n\n[b]: other.md",
        '[a](other.md "a title")',
    ],
)
def test_a_valid_link_is_accepted(tmp_path: Path, text: str) -> None:
    assert check_page(tmp_path, text) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("one\n\n[a](nowhere.md)", "docs/page.md:3: nowhere.md is not there"),
        ("[a](other.md#nothing)", "docs/page.md:1: other.md#nothing has no such heading"),
        ("[a](#nothing)", "docs/page.md:1: #nothing has no such heading"),
        ("[a](other.md#twice-2)", "docs/page.md:1: other.md#twice-2 has no such heading"),
        ("[a](../docs)", "docs/page.md:1: ../docs is a folder: name a page in it"),
        ("[a](../../../etc/passwd)", "docs/page.md:1: ../../../etc/passwd leads out of the repository"),
        ("[![a](other.md)](gone.md)", "docs/page.md:1: gone.md is not there"),
        ("```\ncode\n```\n[a](gone.md)", "docs/page.md:4: gone.md is not there"),
        ("[a][b]\n\n[b]: gone.md", "docs/page.md:3: gone.md is not there"),
    ],
)
def test_a_broken_link_is_reported_with_its_line(tmp_path: Path, text: str, why: str) -> None:
    assert check_page(tmp_path, text) == [why]


def test_a_heading_in_a_code_block_has_no_anchor(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One\n```sh\n# two\n```\n")
    assert anchors_of(page) == {"one"}
    assert list(links_of(page)) == []


@pytest.mark.parametrize(
    ("heading", "slug"),
    [("What one job takes", "what-one-job-takes"), ("`a_b`: it's [a](b.md)!", "a_b-its-a"), ("A – b", "a--b")],
)
def test_anchors_of_headings_are_those_of_github(heading: str, slug: str) -> None:
    assert slug_of(heading) == slug
