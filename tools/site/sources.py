"""What the site is built from: the pages of the repository where they are, and a way through them.

Pages keep their places, so that their links hold as they are. Nobody keeps a list of them: the order in which the
README names them is their order, and a page that it does not name comes after.
"""

import re
import shutil
from pathlib import Path
from typing import NamedTuple

from tools.links import links_of, pages
from tools.site.sequence import with_pictures

_HEADING = re.compile(r"^# +(.+)$", re.MULTILINE)


class Part(NamedTuple):
    title: str
    #: Pages, or folders with pages.
    places: tuple[str, ...]


PARTS = (
    Part("Start", ("docs/tutorial.md",)),
    Part("How to", ("docs/how-to",)),
    Part("Explanation", ("docs/explanation",)),
    Part("Reference", ("docs/reference",)),
    Part("Operations", ("docs/operations",)),
    Part("Runbooks", ("docs/runbooks", "docs/operations/runbooks")),
    Part("Decisions", ("docs/adr",)),
    Part("Examples", ("examples",)),
    Part("The project", ("CONTRIBUTING.md", "docs/contributing", "SECURITY.md", "CHANGELOG.md")),
)


def assemble(root: Path, source: Path) -> None:
    """Copy what is read, and what it links to; the README becomes the first page."""
    for page in pages(root):
        inside = page.relative_to(root)
        text = page.read_text("utf-8")
        if inside == Path("README.md"):
            inside, text = Path("index.md"), text + _ways(root)
        _write(source / inside, with_pictures(text, _title(page)))
        for link in links_of(page):
            target = (page.parent / link.target.partition("#")[0]).resolve()
            if target.is_file() and target.suffix != ".md":
                copy = source / target.relative_to(root.resolve())
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(target, copy)


def parts(root: Path) -> dict[str, list[Path]]:
    """The pages of each part, in order; each page once, and none left out."""
    named = [(root / link.target.partition("#")[0]).resolve() for link in links_of(root / "README.md")]
    order = {page: position for position, page in reversed(list(enumerate(named)))}
    taken: set[Path] = set()
    found: dict[str, list[Path]] = {}
    for part in PARTS:
        here = [page for place in part.places for page in pages(root) if _lies_in(page.relative_to(root), place)]
        # A part further down is inside this one: its pages are left to it.
        nearer = [place for other in PARTS for place in other.places if any(_is_below(place, p) for p in part.places)]
        here = [
            page
            for page in here
            if page not in taken and not any(_lies_in(page.relative_to(root), place) for place in nearer)
        ]
        here.sort(key=lambda page: (order.get(page.resolve(), len(order)), page.name != "README.md", page.name))
        taken.update(here)
        if here:
            found[part.title] = here
    rest = [page for page in pages(root) if page not in taken and page != root / "README.md"]
    return {**found, "More": rest} if rest else found


def _lies_in(page: Path, place: str) -> bool:
    return page == Path(place) or Path(place) in page.parents


def _is_below(place: str, other: str) -> bool:
    return Path(other) in Path(place).parents


def _ways(root: Path) -> str:
    blocks = [
        f"```{{toctree}}\n:hidden:\n:caption: {title}\n\n"
        + "\n".join(page.relative_to(root).with_suffix("").as_posix() for page in found)
        + "\n```"
        for title, found in parts(root).items()
    ]
    return "\n\n" + "\n\n".join(blocks) + "\n"


def _title(page: Path) -> str:
    found = _HEADING.search(page.read_text("utf-8"))
    return found[1] if found else page.stem


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")
