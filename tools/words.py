"""Find the markers of hard-to-read prose in code, pages and templates; there may be none. ``make check`` runs it."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Words that peers never use in technical prose, and what to write instead. "nobody" in quotes is a user of the system.
MARKERS = {
    r"whoever|whatever\b(?! is| it)": "name the component",
    r"nobody\b(?!\")|somebody|everybody": "name who: no worker, a caller, every process",
    r"told|tells": "log, report, notify, send, return",
    r"anew": "again",
    r"mend(s|ed|ing)?": "fix",
    r"goes on|go on|went on": "continue",
    r"gives? up|gave up": "drop, stop retrying",
    r"lets? go": "release",
}
_MARKER = re.compile(rf"\b(?:{'|'.join(MARKERS)})\b", re.IGNORECASE)
#: "What waits for it continues.": a free relative as the subject of a sentence.
_FREE_RELATIVE = re.compile(r"(?:^|[.:] )What (?:is|was|has|have|can|may|must|does|did|comes|waits|ends?|needs?)\b")
_CODE_SPAN = re.compile(r"`[^`]*`")
_LEFT_OUT = ("tools/words", "tests/unit/test_words.py")
_SUFFIXES = (".py", ".md", ".html", ".sql")


def main() -> int:
    found = [(file, number, words) for file in _list_files() for number, words in find(ROOT / file)]
    for file, number, words in found:
        print(f"{file}:{number}: {words}")
    if found:
        print("Say it in plain words: " + "; ".join(f"{words}: {advice}" for words, advice in MARKERS.items()))
    return 1 if found else 0


def find(file: Path) -> Iterator[tuple[int, str]]:
    """Each line of prose with a marker: its number and the marker."""
    text = file.read_text("utf-8")
    prose = _python_prose(text) if file.suffix == ".py" else enumerate(text.splitlines(), 1)
    is_page = file.suffix == ".md"
    seen: set[int] = set()
    for number, line in prose:
        if is_page:
            line = _CODE_SPAN.sub("", line)
        marker = _MARKER.search(line) or _FREE_RELATIVE.search(line.lstrip("#: \"'-"))
        if marker and number not in seen:
            seen.add(number)
            yield number, marker.group().strip()


def _python_prose(text: str) -> Iterator[tuple[int, str]]:
    """The lines of comments and docstrings."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from enumerate(node.value.value.splitlines(), node.lineno)


def _list_files() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [
        name
        for name in listed.splitlines()
        if name.endswith(_SUFFIXES) and not name.startswith(_LEFT_OUT) and (ROOT / name).exists()
    ]


if __name__ == "__main__":
    sys.exit(main())
