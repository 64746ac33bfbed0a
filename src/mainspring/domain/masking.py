"""Hiding values that must not be seen in what comes out of a run.

A value is looked for as it is and in the forms that programs print it in: quoted, escaped, percent-encoded, as
hexadecimal digits, and as base64 also where it is only a part of what was encoded (``user:password``).
"""

import base64
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus

MASK = "***"
#: A line of a value of several lines, or a part of an encoded value, is looked for if it has so many characters.
_SHORTEST_PART = 8


class Mask:
    """Replaces values in texts and in JSON."""

    def __init__(self, values: Iterable[str]) -> None:
        forms = {form for value in values for form in forms_of(value)}
        #: No form is longer.
        self.longest = max(map(len, forms), default=0)
        # The longest first: of two that begin alike the whole of the longer one has to go.
        self._forms = sorted(forms, key=lambda form: (-len(form), form))

    def text(self, text: str) -> str:
        # One after the other is a hundred times as fast as all of them in one expression.
        for form in self._forms:
            if form in text:
                text = text.replace(form, MASK)
        return text

    def found_in(self, text: str) -> bool:
        return any(form in text for form in self._forms)

    def json(self, value: Any) -> Any:
        """A decoded JSON value, masked in its strings, its keys, and in numbers, which become strings."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.json(each) for each in value]
        if isinstance(value, dict):
            return {self.text(key): self.json(each) for key, each in value.items()}
        if isinstance(value, int | float) and not isinstance(value, bool) and self.found_in(str(value)):
            return MASK
        return value


def forms_of(value: str) -> set[str]:
    """Every spelling to look for. Lines of a long value count by themselves: output is kept line by line."""
    forms = set(_spellings(value))
    lines = value.splitlines()
    if len(lines) > 1:
        for line in lines:
            if len(line.strip()) >= _SHORTEST_PART:
                forms |= set(_spellings(line.strip()))
    return {form for form in forms if form}


def _spellings(value: str) -> Iterator[str]:
    yield value
    # As JSON, with and without letters beyond ASCII, and as Python shows it in a traceback.
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield repr(value)[1:-1]
    data = value.encode("utf-8", "surrogatepass")
    for escaped in (quote(data, safe=""), quote(data), quote_plus(data)):
        yield escaped
        yield re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), escaped)
    yield from (data.hex(), data.hex().upper())
    yield from _in_base64(data)


def _in_base64(data: bytes) -> Iterator[str]:
    """The characters that are the same whatever stands before and after, for each of the three places to begin."""
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + data).decode()
        first = -(-before * 8 // 6)
        last = (before + len(data)) * 8 // 6
        if last - first >= _SHORTEST_PART:
            yield encoded[first:last]
            yield encoded[first:last].replace("+", "-").replace("/", "_")
