"""The navigation of the documentation site follows from the README and the folders."""

from pathlib import Path

import pytest

from tools.site.sources import assemble, parts


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    files = {
        "README.md": "# It\n\n[b](docs/how-to/b.md#x) [a](docs/how-to/a.md) ![p](docs/p.png) [w](examples/w.sh)",
        "CHANGELOG.md": "# Changes",
        "docs/how-to/a.md": "# A",
        "docs/how-to/b.md": "# B\n\n## X",
        "docs/how-to/aa.md": "# AA",
        "docs/operations/disk.md": "# Disk",
        "docs/operations/runbooks/lag.md": "# Lag",
        "docs/adr/0001-one.md": "# 1",
        "docs/adr/README.md": "# Decisions",
        "docs/stray.md": "# Stray",
        "docs/p.png": "png",
        "examples/w.sh": "echo",
        "examples/unlinked.sh": "echo",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_pages_come_in_the_order_of_the_readme_and_then_by_name(root: Path) -> None:
    found = {title: [page.stem for page in pages] for title, pages in parts(root).items()}
    assert found["How to"] == ["b", "a", "aa"]
    assert found["Decisions"] == ["README", "0001-one"]


def test_runbooks_are_a_separate_section_and_stray_pages_are_listed_under_more(root: Path) -> None:
    found = {title: [page.stem for page in pages] for title, pages in parts(root).items()}
    assert (found["Operations"], found["Runbooks"], found["More"]) == (["disk"], ["lag"], ["stray"])
    assert "Examples" not in found


def test_linked_files_are_copied_and_the_readme_is_the_first_page(root: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    assemble(root, source)
    assert {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()} == {
        "index.md",
        "CHANGELOG.md",
        "docs/how-to/a.md",
        "docs/how-to/b.md",
        "docs/how-to/aa.md",
        "docs/operations/disk.md",
        "docs/operations/runbooks/lag.md",
        "docs/adr/0001-one.md",
        "docs/adr/README.md",
        "docs/stray.md",
        "docs/p.png",
        "examples/w.sh",
    }
    index = (source / "index.md").read_text()
    assert index.startswith("# It\n")
    assert ":caption: How to\n\ndocs/how-to/b\ndocs/how-to/a\ndocs/how-to/aa\n```" in index
