"""Find the markers of hard-to-read prose in code, pages and templates; there may be none. ``make check`` runs it.

``--pages`` prints, for each page of the documentation, the markers and the words "you" and "your" per 1,000 words.
"""

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


#: No guide addresses the reader less often: per 1,000 words.
LEAST_YOU = 10.0
_READER = re.compile(r"\b(?:you|your|yours|yourself)\b", re.IGNORECASE)
_BLOCK = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
_TARGET = re.compile(r"\]\([^)]*\)|<[^>]*>")


def main(arguments: list[str]) -> int:
    if "--pages" in arguments:
        for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
            size, markers, reader = measure(page.read_text("utf-8"))
            print(f"{markers:5.1f} markers  {reader:5.1f} you  {size:6,} words  {page.relative_to(ROOT)}")
        return 0
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


def measure(text: str) -> tuple[int, float, float]:
    """The words of a page without code, and its markers and words to the reader per 1,000 of them."""
    prose = _CODE_SPAN.sub("x", _TARGET.sub("]", _BLOCK.sub("", text)))
    words = len(re.findall(r"[\w'’-]*[A-Za-z][\w'’-]*", prose))
    markers = len(_MARKER.findall(prose))
    return words, 1_000 * markers / max(words, 1), 1_000 * len(_READER.findall(prose)) / max(words, 1)


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
    sys.exit(main(sys.argv[1:]))
