"""The navigation of the documentation site follows from `docs/README.md`."""

from pathlib import Path

import pytest

from tools.site.sources import assemble, list_sections, with_admonitions, with_tabs, with_themed_pictures


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    files = {
        "README.md": "# It\n\n[a](docs/guides/a.md) ![p](docs/p.png) [w](examples/w.sh)",
        "docs/README.md": "# Documentation\n\n## Guides\n\n- [b](guides/b.md#x)\n- [a](guides/a.md)\n\n"
        "## Operate\n\n- [Disk](operate/disk.md)\n- [Runbooks](operate/runbooks/README.md)\n\n"
        "## Project\n\n- [Changes](../CHANGELOG.md)\n",
        "CHANGELOG.md": "# Changes",
        "docs/guides/a.md": "# A",
        "docs/guides/b.md": "# B\n\n## X",
        "docs/operate/disk.md": "# Disk",
        "docs/operate/runbooks/lag.md": "# Lag",
        "docs/operate/runbooks/README.md": "# Runbooks",
        "docs/stray.md": "# Stray",
        "docs/p.png": "png",
        "examples/w.sh": "echo",
        "examples/unlinked.sh": "echo",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_sections_and_pages_come_in_the_order_of_the_index(root: Path) -> None:
    found = {title: [page.stem for page in pages] for title, pages in list_sections(root).items()}
    assert list(found) == ["Guides", "Operate", "Project", "More"]
    assert found["Guides"] == ["b", "a"]


def test_a_folder_follows_its_index_and_pages_without_a_link_are_in_more(root: Path) -> None:
    found = {title: [page.stem for page in pages] for title, pages in list_sections(root).items()}
    assert (found["Operate"], found["More"]) == (["disk", "README", "lag"], ["stray"])


def test_linked_files_are_copied_and_the_readme_is_the_first_page(root: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    assemble(root, source)
    assert {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()} == {
        "index.md",
        "docs/README.md",
        "CHANGELOG.md",
        "docs/guides/a.md",
        "docs/guides/b.md",
        "docs/operate/disk.md",
        "docs/operate/runbooks/lag.md",
        "docs/operate/runbooks/README.md",
        "docs/stray.md",
        "docs/p.png",
        "examples/w.sh",
    }
    index = (source / "index.md").read_text()
    assert index.startswith("# It\n")
    assert (source / "docs/README.md").read_text().startswith("---\norphan: true")
    assert ":caption: Guides\n\ndocs/guides/b\ndocs/guides/a\n```" in index


def test_marked_code_blocks_become_tabs() -> None:
    text = "a\n\n<!-- tabs: pip | uv -->\n```sh\npip install x\n```\n\n```sh\nuv add x\n```\n\n```text\nrest\n```\nb\n"
    assert with_tabs(text) == (
        "a\n\n````{tab} pip\n```sh\npip install x\n```\n````\n\n````{tab} uv\n```sh\nuv add x\n```\n````"
        "\n\n```text\nrest\n```\nb\n"
    )
    with pytest.raises(ValueError, match="1 code blocks follow"):
        with_tabs("<!-- tabs: pip | uv -->\n```sh\npip install x\n```\n")


def test_alerts_of_github_become_admonitions() -> None:
    text = "before\n\n> [!WARNING]\n> First line.\n> Second line.\n\n> a quote\n"
    assert with_admonitions(text) == "before\n\n````{warning}\nFirst line.\nSecond line.\n````\n\n> a quote\n"


def test_a_picture_for_both_themes_becomes_two_images() -> None:
    text = (
        '<picture>\n<source media="(prefers-color-scheme: dark)" srcset="a-dark.png">\n'
        '<img alt="Jobs" src="a.png">\n</picture>\n'
    )
    assert with_themed_pictures(text) == (
        "```{image} a.png\n:alt: Jobs\n:class: only-light\n```\n\n"
        "```{image} a-dark.png\n:alt: Jobs\n:class: only-dark\n```\n"
    )
