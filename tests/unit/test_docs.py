"""Documentation pages: every link has a target, and every page is linked."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
_BLOCK = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def _text(page: Path) -> str:
    return _BLOCK.sub("", page.read_text())


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub generates for the headings."""
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in _HEADING.findall(_text(page))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_has_a_target(page: Path) -> None:
    for link in _LINK.findall(_text(page)):
        if link.startswith(("https://", "http://")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in _anchors(target), link


def test_every_page_is_linked_from_the_index_of_the_documentation_or_of_its_kind() -> None:
    indexes = {
        "runbooks": DOCS / "operate" / "runbooks" / "README.md",
        "adr": DOCS / "design" / "adr" / "README.md",
    }
    for page in DOCS.rglob("*.md"):
        index = indexes.get(page.parent.name, DOCS / "README.md")
        if page.name != "README.md":
            assert f"({page.relative_to(index.parent)})" in index.read_text(), page


def test_the_walk_through_the_code_names_files_that_exist() -> None:
    text = (ROOT / "docs/design/architecture.md").read_text()
    named = {name for name in re.findall(r"`([a-z_/]+\.(?:py|html|sql))`", text) if "/" in name}
    assert len(named) > 30
    package = ROOT / "src/mainspring"
    assert {name for name in named if not (package / name).exists() and not (ROOT / name).exists()} == set()
