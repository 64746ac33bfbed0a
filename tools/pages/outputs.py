"""Compare what a page shows with what its commands print."""

import difflib
import json
import re
from typing import Any

import msgspec

from tools.pages.blocks import Block

MORE = "…"
#: What differs from one play to the next.
_MASKS = (
    (r"\b[0-9a-f]{32}\b|\b[0-9a-f]{12}\b|\b(?=[0-9a-z]*\d)(?=[0-9a-z]*[a-z])[0-9a-z]{10,16}\b", "ID"),
    (r"\d{4}-\d\d-\d\dT[\d:.]+Z|\d\d:\d\d:\d\d\b", "TIME"),
    (r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) \d{4}-\d\d-\d\d TIME [+-]\d\d:\d\d", "TIME"),
    (r"\bin \d+ (?:second|minute|hour|day)s?\b", "in SPAN"),
    (r"\b[\d.]+ ?(?:us|µs|ms|s|m|h|d)\b(?: ?\d+ ?(?:us|µs|ms|s|m|h)\b)*", "SPAN"),
    (r"(?m)^mainspring \d\S*$", "mainspring VERSION"),
    (r"\b[\w.-]+:\d{3,}\b(?!/)(?:#\d+)?", "PROCESS"),
    (r"[ \t]+", " "),
    (r"─+", "─"),
    (r"(?m) +$", ""),
)
_ID = re.compile(r"\b[0-9a-f]{32}\b|\b[0-9a-f]{12}\b|\b(?=[0-9a-z]*\d)(?=[0-9a-z]*[a-z])[0-9a-z]{10,16}\b")
_FACT = re.compile(
    r"http://[^\s)]+|attempt=\d+/\d+|mainspring: ready|(?<=task=)\w+|(?<=schedule )\w+|\w+Error: [^\"'\n]+"
)
#: A JSON value of one of these forms stands for any other value of that form.
_FORMS = (
    r"[0-9a-f]{32}",
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z",
    r"[0-9a-f]{16}",
    r"[0-9a-z]{12}",
    r"\d+",
    r"[\d.]+(us|µs|ms|s|m)",
    r"[\w.-]+[:#]\d+",
    r"/v1/runs/[0-9a-f]{32}/logs",
)
#: Numbers that differ between runs of the examples.
_LOOSE = {"claim", "fence", "position", "nextAfter", "lagMs"}


class Output(msgspec.Struct, frozen=True):
    """What a page shows, and what was printed this time."""

    block: Block
    printed: str
    #: Whether the long-running ``mainspring up`` has printed it.
    logged: bool = False


def mask(text: str) -> str:
    """The text without what differs each time: ids, times, durations and versions."""
    for pattern, word in _MASKS:
        text = re.sub(pattern, word, text)
    return text.strip()


def find_difference(output: Output) -> str:
    """What the page shows and this play did not print; nothing if they are alike."""
    if output.logged:
        # A log has more lines than a page shows. Their addresses, tasks, attempts and errors must be there.
        return ", ".join(sorted({fact for fact in _FACT.findall(output.block.text) if fact not in output.printed}))
    if output.block.kind == "json":
        try:
            compare_json(json.loads(output.block.text), json.loads(output.printed))
        except (AssertionError, ValueError) as error:
            return f"{error}\n{output.printed}"
        return ""
    shown, printed = mask(output.block.text), mask(output.printed)
    if _compile(shown).fullmatch(printed):
        return ""
    return "\n".join(difflib.unified_diff(shown.splitlines(), printed.splitlines(), "page", "printed"))


def _compile(shown: str) -> re.Pattern[str]:
    """A line that is ``…`` stands for any lines, ``…`` in a line for any text."""
    lines = [
        r"(?:.*\n)*?" if line.strip() == MORE else ".*".join(map(re.escape, line.split(MORE))) + r"\n"
        for line in shown.splitlines()
    ]
    pattern = "".join(lines)
    # The last line has no line break.
    return re.compile(pattern.removesuffix(r"\n") if pattern.endswith(r"\n") else pattern + r".*")


def find_ids(output: Output) -> dict[str, str]:
    """The ids of the page, and the ids that were printed in their place."""
    printed = output.printed.splitlines()
    found: dict[str, str] = {}
    for line in output.block.text.splitlines():
        shown = _ID.findall(line)
        alike = next((other for other in printed if shown and mask(other) == mask(line)), None)
        if alike is not None:
            printed.remove(alike)
            found |= dict(zip(shown, _ID.findall(alike), strict=False))
    return found


def compare_json(shown: Any, real: Any, where: str = "answer", name: str = "") -> None:
    """Check that the real answer has the shown fields and values, and others only where the page shows "…"."""
    if isinstance(shown, dict):
        assert isinstance(real, dict), where
        fields = {key for key in shown if key != MORE}
        assert fields <= real.keys(), f"{where}: {fields - real.keys()} are not in the answer {real}"
        assert MORE in shown or fields == real.keys(), f"{where}: {real.keys() - fields} are in the answer too"
        for key in fields:
            compare_json(shown[key], real[key], f"{where}.{key}", key)
    elif isinstance(shown, list):
        assert isinstance(real, list), where
        if shown and shown[-1] == MORE:
            shown, real = shown[:-1], real[: len(shown) - 1]
        assert len(shown) == len(real), f"{where}: {real}"
        for number, (one, other) in enumerate(zip(shown, real, strict=True)):
            compare_json(one, other, f"{where}[{number}]", name)
    elif isinstance(shown, str) and MORE in shown:
        assert shown == MORE or isinstance(real, str), where
        assert shown == MORE or real.startswith(shown.partition(MORE)[0]), f"{where}: {real}"
    elif isinstance(shown, str) and any(re.fullmatch(form, shown) for form in _FORMS):
        assert isinstance(real, str), where
        form = next(form for form in _FORMS if re.fullmatch(form, shown))
        assert re.fullmatch(form, real), f"{where}: {real!r} is not like {shown!r}"
    elif name in _LOOSE:
        assert isinstance(real, int | float), where
    else:
        assert (type(shown), shown) == (type(real), real), f"{where}: {real!r}"
