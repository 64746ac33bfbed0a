"""Read the code blocks of a page, and decide how each is checked."""

import ast
import re
import textwrap
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from mainspring.core.runtime.plain_yaml import read_yaml

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(
    r"^(?P<marks>(?: *<!-- [a-z ]+: .*? -->\n)*)(?P<indent> *)```(?P<kind>\w*)[^\n]*\n(?P<text>.*?)^ *```$",
    re.DOTALL | re.MULTILINE,
)
_MARK = re.compile(r"<!-- ([a-z ]+): (.*?) -->")
_NAME = re.compile(r"(?:#|//|--) ([\w./-]+\.\w+)\n")
_FILES = {"python", "toml", "yaml", "text"}
_SHOWN = ("text", "json")


class Block(msgspec.Struct, frozen=True):
    kind: str
    text: str
    #: The comments before it, by name: ``not run``, ``no output``, ``exit``, ``log``.
    marks: dict[str, str]
    #: How far the block is indented in its page.
    indent: str
    #: Where the text stands in the page.
    start: int
    end: int
    line: int
    #: The block shows the output of the ``sh`` block before it.
    is_output: bool = False

    @property
    def file(self) -> str:
        """The file that the block begins; empty if it names none."""
        named = _NAME.match(self.text) if self.kind in _FILES and not self.is_output else None
        return named[1] if named is not None else ""

    @property
    def is_played(self) -> bool:
        return "not run" not in self.marks and (self.kind == "sh" or self.is_output or "log" in self.marks)


class PagePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """What a page needs to be played, from ``pages.toml``."""

    #: A script that prepares the installation. Its upper-case variables replace the same words in commands.
    before: str = ""
    #: A script that uses the files of the page, at its end.
    after: str = ""
    #: Files that the page expects, by name: a path in the repository.
    files: dict[str, str] = {}
    #: Arguments of the Mainspring processes that run from the start.
    processes: list[str] = []
    #: The width of the terminal.
    columns: int = 80
    #: Exit codes that commands may have besides 0: ``doctor`` has findings about the servers of the tests.
    accepts: list[int] = []
    #: Play on PostgreSQL instead of SQLite.
    postgres: bool = False
    #: Install the package from a wheel: the page installs Mainspring itself.
    wheel: bool = False
    #: Play up to this heading.
    until: str = ""
    #: Kinds of blocks that a test of their own checks, and the test; with ``until``, only after that heading.
    tested_by: dict[str, str] = {}
    settings: dict[str, str] = {}


class Plans(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    #: Kinds of blocks that a test checks on every page.
    tested_by: dict[str, str]
    pages: dict[str, PagePlan]


@cache
def read_plans() -> Plans:
    return msgspec.convert(tomllib.loads((Path(__file__).parent / "pages.toml").read_text()), Plans)


def find_plan_name(page: Path) -> str:
    """The name of the plan in ``pages.toml``: the page's, or that of its folder."""
    name = page.relative_to(ROOT).as_posix()
    folder = f"{page.parent.relative_to(ROOT).as_posix()}/*"
    return folder if name not in read_plans().pages and folder in read_plans().pages else name


def find_plan(name: str) -> PagePlan:
    return read_plans().pages.get(name) or PagePlan()


def list_pages() -> list[Path]:
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if "```" in page.read_text()]


def read_blocks(text: str) -> Iterator[Block]:
    command: dict[str, str] | None = None
    for found in _BLOCK.finditer(text):
        kind, indent = found["kind"], found["indent"]
        marks = dict(_MARK.findall(found["marks"]))
        is_output = kind in _SHOWN and command is not None and "log" not in marks
        if is_output and command is not None and "not run" in command:
            # The output of a command that is not run is not compared.
            marks["not run"] = command["not run"]
        command = marks if kind == "sh" else None
        yield Block(
            kind=kind,
            text=textwrap.dedent(found["text"]) if indent else found["text"],
            marks=marks,
            indent=indent,
            start=found.start("text"),
            end=found.end("text"),
            line=text.count("\n", 0, found.start("text")),
            is_output=is_output,
        )


def explain_check(page: Path, block: Block) -> str:
    """How a block is checked; empty if it is not."""
    plan = find_plan(find_plan_name(page))
    if reason := block.marks.get("not run"):
        return f"not run: {reason}"
    is_after = block.start >= find_end(page.read_text(), plan.until)
    tested_by = {**read_plans().tested_by, **(plan.tested_by if is_after or not plan.until else {})}
    name = block.kind or "none"
    if test := tested_by.get(name) or tested_by.get("all"):
        return f"tested by {test}"
    if is_after and (block.kind == "sh" or block.is_output):
        return ""
    if block.is_played:
        return "played"
    if block.file:
        return "played"
    return "parsed" if block.kind in ("python", "toml", "yaml", "json") else ""


def find_end(text: str, heading: str) -> int:
    """Where the part of a page ends that is played."""
    at = text.find(f"\n{heading}", 1) if heading else -1
    return at if at >= 0 else len(text)


def parse(block: Block) -> None:
    """Raise if a block that is not run is no valid text of its language."""
    text: Any = block.text
    if block.kind == "python":
        compile(text, "block", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    elif block.kind == "toml":
        tomllib.loads(text)
    elif block.kind == "yaml":
        read_yaml(text, "block")
    elif block.kind == "json":
        for value in text.split("\n\n"):
            msgspec.json.decode(re.sub(r"…(?=\s*[\]}])", '"…"', value))


def list_without_output(page: Path) -> list[Block]:
    """The commands of a page that show no output and have no reason for it.

    A played command without one must print nothing: playing it checks that. Commands after the part that is played,
    such as the fixes of a runbook, need none.
    """
    text = page.read_text()
    end = find_end(text, find_plan(find_plan_name(page)).until)
    blocks = [block for block in read_blocks(text) if block.start < end]
    found = []
    for block, follower in zip(blocks, [*blocks[1:], None], strict=True):
        has_output = follower is not None and (follower.is_output or "log" in follower.marks)
        is_explained = block.marks.keys() & {"not run", "no output"} or explain_check(page, block) == "played"
        if block.kind == "sh" and not has_output and not is_explained:
            found.append(block)
    return found
