"""The pages of the documentation site and their navigation.

Pages keep their paths, so that links work as they are. The navigation is `docs/README.md`: each of its headings is a
section, with the pages in the order of their links. A linked `README.md` is followed by the other pages of its folder.
"""

import re
import shutil
from pathlib import Path

from tools.links import links_of, pages
from tools.site.sequence import with_pictures

_HEADING = re.compile(r"^# +(.+)$", re.MULTILINE)
_SECTION = re.compile(r"^## +(.+)$")
_INDEX = Path("docs/README.md")
#: ``<!-- tabs: pip | uv -->`` before as many code blocks, which may have a comment for ``tools.pages`` of their own.
_TABS = re.compile(
    r"^<!-- tabs: ([^\n]+?) -->\n((?:\n*(?:<!-- [^\n]+ -->\n)?```\w*\n.*?^```$)+)", re.DOTALL | re.MULTILINE
)
#: ``> [!NOTE]`` and the quoted lines after it, as GitHub shows them.
_ADMONITION = re.compile(r"^> \[!(NOTE|TIP|IMPORTANT|WARNING|CAUTION)\]\n((?:^>.*\n?)+)", re.MULTILINE)
#: A picture for light and dark pages, as GitHub shows it.
_PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">\s*'
    r'<img alt="([^"]*)" src="([^"]+)">\s*</picture>'
)
_BLOCK = re.compile(r"^```\w*\n.*?^```$", re.DOTALL | re.MULTILINE)


def assemble(root: Path, source: Path) -> None:
    """Copy the pages and the files that they link to. The README becomes the first page."""
    for page in pages(root):
        inside = page.relative_to(root)
        text = page.read_text("utf-8")
        if inside == Path("README.md"):
            inside, text = Path("index.md"), text + _write_navigation(root)
        elif inside == _INDEX:
            # The navigation replaces it.
            text = f"---\norphan: true\n---\n\n{text}"
        for match in _PICTURE.finditer(text):
            for name in (match[1], match[3]):
                _copy(page.parent / name, root, source)
        _write(source / inside, with_pictures(with_admonitions(with_tabs(with_themed_pictures(text))), _title(page)))
        for link in links_of(page):
            target = (page.parent / link.target.partition("#")[0]).resolve()
            if target.is_file() and target.suffix != ".md":
                _copy(target, root, source)


def with_themed_pictures(text: str) -> str:
    """Return the text with each picture as two images, of which the site shows the one of its theme."""
    image = "```{{image}} {}\n:alt: {}\n:class: only-{}\n```"
    return _PICTURE.sub(
        lambda found: f"{image.format(found[3], found[2], 'light')}\n\n{image.format(found[1], found[2], 'dark')}", text
    )


def with_tabs(text: str) -> str:
    """Return the text with the marked code blocks as tabs. Elsewhere they are read one after the other."""

    def build(match: re.Match[str]) -> str:
        titles, blocks = match[1].split(" | "), _BLOCK.findall(match[2])
        if len(blocks) < len(titles):
            raise ValueError(f"tabs: {match[1]}: {len(blocks)} code blocks follow")
        used = match[2].index(blocks[len(titles) - 1]) + len(blocks[len(titles) - 1])
        tabs = "\n\n".join(f"````{{tab}} {title}\n{block}\n````" for title, block in zip(titles, blocks, strict=False))
        return tabs + match[2][used:]

    return _TABS.sub(build, text)


def with_admonitions(text: str) -> str:
    """Return the text with GitHub's alerts as admonitions."""

    def build(match: re.Match[str]) -> str:
        quoted = re.sub(r"^> ?", "", match[2], flags=re.MULTILINE).rstrip()
        return f"````{{{match[1].lower()}}}\n{quoted}\n````\n"

    return _ADMONITION.sub(build, text)


def list_sections(root: Path) -> dict[str, list[Path]]:
    """The pages of each section, in order. Pages that the index does not name are in "More"."""
    index = root / _INDEX
    titles = _list_titles(index)
    taken = {root / "README.md", index}
    found: dict[str, list[Path]] = {}
    for link in links_of(index):
        page = root / (index.parent / link.target.partition("#")[0]).resolve().relative_to(root.resolve())
        if page.suffix != ".md":
            continue
        folder = sorted(page.parent.glob("*.md")) if page.name == "README.md" and page.parent.name != "docs" else []
        for each in (page, *folder):
            if each not in taken:
                taken.add(each)
                found.setdefault(titles[link.line], []).append(each)
    rest = [page for page in pages(root) if page not in taken]
    return {**found, "More": rest} if rest else found


def _list_titles(index: Path) -> dict[int, str]:
    """The title of the section of each line."""
    title, titles = "", {}
    for number, line in enumerate(index.read_text("utf-8").splitlines(), 1):
        heading = _SECTION.match(line)
        title = heading[1] if heading else title
        titles[number] = title
    return titles


def _write_navigation(root: Path) -> str:
    blocks = [
        f"```{{toctree}}\n:hidden:\n:caption: {title}\n\n"
        + "\n".join(page.relative_to(root).with_suffix("").as_posix() for page in found)
        + "\n```"
        for title, found in list_sections(root).items()
    ]
    return "\n\n" + "\n\n".join(blocks) + "\n"


def _copy(file: Path, root: Path, source: Path) -> None:
    copy = source / file.resolve().relative_to(root.resolve())
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, copy)


def _title(page: Path) -> str:
    found = _HEADING.search(page.read_text("utf-8"))
    return found[1] if found else page.stem


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")
