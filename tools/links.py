"""Links of the documentation that lead nowhere: files that are not there, headings that have another name.

python -m tools.links

Only what is in the repository is looked at, and nothing is asked of a network.
"""

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

ROOT = Path(__file__).parents[1]
_FENCE = re.compile(r"^ *(`{3,}|~{3,})[^\n]*\n.*?^ *\1 *$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(
    r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(\s*(<[^>]*>|[^\s()]*(?:\([^\s()]*\)[^\s()]*)*)(?:\s+\"[^\"]*\")?\s*\)"
)
_REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s+(\S+)", re.MULTILINE)
_HEADING = re.compile(r"^#{1,6} +(.*?)(?: +#+)? *$", re.MULTILINE)
_NAMED = re.compile(r"<a +(?:id|name)=\"([^\"]+)\"")
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_MARKUP = re.compile(r"!?\[([^\]]*)\]\([^)]*\)|[`*]")


class Link(NamedTuple):
    page: Path
    line: int
    target: str


def pages(root: Path = ROOT) -> list[Path]:
    """All that people read here."""
    found = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "examples").rglob("*.md")]
    return sorted(found)


def links_of(page: Path) -> Iterator[Link]:
    """Those into the repository, from text: what stands in code is no link."""
    text = _blank(_CODE, _blank(_FENCE, page.read_text("utf-8")))
    for pattern in (_LINK, _REFERENCE):
        for found in pattern.finditer(text):
            target = found[1].strip("<>")
            if target and not _ELSEWHERE.match(target):
                yield Link(page, text.count("\n", 0, found.start()) + 1, target)


def wrong_with(link: Link, root: Path = ROOT) -> str | None:
    path, _, anchor = link.target.partition("#")
    file = (link.page.parent / unquote(path)).resolve() if path else link.page
    if not file.is_relative_to(root.resolve()):
        return "leads out of the repository"
    if not file.is_file():
        return "is a folder: name a page in it" if file.is_dir() else "is not there"
    if anchor and file.suffix == ".md" and unquote(anchor) not in anchors_of(file):
        return "has no such heading"
    return None


@cache
def anchors_of(page: Path) -> frozenset[str]:
    """As GitHub and the site make them of headings."""
    text = _blank(_FENCE, page.read_text("utf-8"))
    seen: dict[str, int] = {}
    found = set(_NAMED.findall(text))
    for heading in _HEADING.findall(text):
        slug = slug_of(heading)
        times = seen.get(slug, 0)
        seen[slug] = times + 1
        found.add(f"{slug}-{times}" if times else slug)
    return frozenset(found)


def slug_of(heading: str) -> str:
    plain = _MARKUP.sub(lambda found: found[1] or "", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def broken(root: Path = ROOT) -> list[str]:
    """A line for each."""
    found = []
    for page in pages(root):
        for link in links_of(page):
            why = wrong_with(link, root)
            if why is not None:
                found.append(f"{page.relative_to(root)}:{link.line}: {link.target} {why}")
    return found


def _blank(pattern: re.Pattern[str], text: str) -> str:
    """The same without what matches; lines keep their numbers."""
    return pattern.sub(lambda found: "\n" * found[0].count("\n"), text)


if __name__ == "__main__":
    lines = broken()
    print("\n".join(lines) or f"{len(pages())} pages: every link leads somewhere")
    sys.exit(1 if lines else 0)
