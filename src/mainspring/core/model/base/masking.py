"""Masking of secret values in the output and the result of a run.

A value is found in plain form and in these encodings, nested up to ``_DEPTH`` deep:

- escaped (JSON, Go, Python), as HTML, and percent-encoded;
- as hexadecimal digits and as base64, also where these are wrapped into lines.

The text is decoded, and each decoded form is searched: encoders vary in their output, but a decoder reads it all.
"""

import base64
import html
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, TypeAlias

MASK = "***"
#: The minimum length in bytes of a line of a multi-line value, and of a partial value at the end of an encoded line.
_SHORTEST_PART = 8
#: Shorter values are not searched in digits and base64, where a few bytes occur by chance.
_SHORTEST_ENCODED = 6
#: The maximum number of nested encodings that are decoded.
_DEPTH = 3
#: The limit of decoded bytes: per byte of the text, and a minimum for any text. Only unusual texts reach it.
_MOST_DECODED = 300
_LEAST_DECODED = 64 * 1024
#: The maximum number of characters of a byte that was encoded twice, as in digits of an escape. HTML with a number for
#: each character, encoded once more, can be longer.
_LONGEST_FORM = 12
#: Replacing a value can join its surroundings into another value, so masking is repeated.
_ROUNDS = 4

Span: TypeAlias = tuple[int, int]


class Mask:
    """Replaces secret values in texts and in JSON."""

    def __init__(self, values: Iterable[str]) -> None:
        units = {unit for value in values for unit in list_units(value)}
        #: The longest part of a text that can contain a value, or a line of one.
        self.longest = _LONGEST_FORM * max((len(_encode(unit)) for unit in units if "\n" not in unit), default=0)
        # A backslash right before an escaped value hides it from the decoder, so the escaped form is searched, too.
        self._written = _longest_first(form for unit in units for form in _escaped(unit))
        self._plain = _longest_first(_encode(unit) for unit in units)
        self._encoded = [each for each in self._plain if len(each) >= _SHORTEST_ENCODED]
        self._all = b"\0".join(self._encoded)

    def text(self, text: str) -> str:
        for _ in range(_ROUNDS):
            data = _encode(text)
            if not (spans := _merge(self._spans(data))):
                return text
            pieces, end = [], 0
            for start, stop in spans:
                pieces.append(data[end:start])
                end = stop
            pieces.append(data[end:])
            masked = MASK.encode().join(pieces).decode("utf-8", "surrogatepass")
            if masked == text:
                return text
            text = masked
        return text

    def found_in(self, text: str) -> bool:
        return next(self._spans(_encode(text)), None) is not None

    def json(self, value: Any) -> Any:
        """Mask the strings and the keys of a decoded JSON value, and its numbers, which become strings."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.json(each) for each in value]
        if isinstance(value, dict):
            return {self.text(key): self.json(each) for key, each in value.items()}
        if isinstance(value, int | float) and not isinstance(value, bool) and self.found_in(str(value)):
            return MASK
        return value

    def _spans(self, data: bytes) -> Iterator[Span]:
        """Yield the spans of values in any order; some may overlap."""
        if not self._plain or not data:
            return
        yield from _all_in(data, self._written)
        for view in find_views(data):
            for start, stop in _all_in(view.data, self._encoded if view.packed else self._plain):
                yield view.locate(start, stop)
            # Search for all values at once first: there is nearly always no partial value.
            ends = view.data[:_SHORTEST_PART], view.data[-_SHORTEST_PART:]
            if view.packed and len(ends[0]) == _SHORTEST_PART and (ends[0] in self._all or ends[1] in self._all):
                for start, stop in _parts_at_ends(view.data, self._encoded):
                    yield view.locate(start, stop)


def list_units(value: str) -> set[str]:
    """Return a value and its longer lines, as output is stored line by line."""
    lines = (line.strip() for line in value.splitlines())
    return {unit for unit in (value, *(line for line in lines if len(line) >= _SHORTEST_PART)) if unit}


def _escaped(value: str) -> Iterator[bytes]:
    for form in (json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]):
        if form != value:
            yield _encode(form)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _longest_first(forms: Iterable[bytes]) -> list[bytes]:
    return sorted(set(forms), key=lambda form: (-len(form), form))


def _all_in(data: bytes, values: list[bytes]) -> Iterator[Span]:
    # Separate searches are a hundred times as fast as one regular expression for all values.
    for value in values:
        at = data.find(value)
        while at >= 0:
            yield at, at + len(value)
            at = data.find(value, at + len(value))


def _parts_at_ends(data: bytes, values: list[bytes]) -> Iterator[Span]:
    """Yield partial values at the ends of decoded data: each line of a wrapped value decodes to a part."""
    for value in values:
        if len(data) < len(value) and data in value:
            yield 0, len(data)
            continue
        at = data.rfind(value[-_SHORTEST_PART:], 0, len(value) - 1)
        if at >= 0 and value.endswith(data[: at + _SHORTEST_PART]):
            yield 0, at + _SHORTEST_PART
        at = data.find(value[:_SHORTEST_PART], max(0, len(data) - len(value) + 1))
        if at >= 0 and value.startswith(data[at:]):
            yield at, len(data)


def _merge(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, stop in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


class _View:
    """A text or a decoded form of it, with the mapping from its parts to the original text."""

    #: Decoded from digits or base64. The bytes around the value may be noise.
    packed = False

    def __init__(self, data: bytes) -> None:
        self.data = data

    def locate(self, start: int, stop: int) -> Span:
        return start, stop


class _Replaced(_View):
    """A form decoded by replacing each match."""

    def __init__(self, parent: _View, data: bytes, code: "_Code") -> None:
        super().__init__(data)
        self.packed = parent.packed
        self._parent = parent
        self._code = code

    @cached_property
    def _pieces(self) -> tuple[list[int], list[Span], list[bool]]:
        """The start of each piece, its source span, and whether it was a match."""
        begins: list[int] = []
        sources: list[Span] = []
        matches: list[bool] = []
        position = end = 0
        for found in self._code.pattern.finditer(self._parent.data):
            for start, stop, text in (
                (end, found.start(), None),
                (found.start(), found.end(), self._code.decode(found)),
            ):
                begins.append(position)
                sources.append((start, stop))
                matches.append(text is not None)
                position += stop - start if text is None else len(text)
            end = found.end()
        begins.append(position)
        sources.append((end, len(self._parent.data)))
        matches.append(False)
        return begins, sources, matches

    def locate(self, start: int, stop: int) -> Span:
        begins, sources, matches = self._pieces
        first, last = bisect_right(begins, start) - 1, bisect_right(begins, stop - 1) - 1
        begin = sources[first][0] if matches[first] else sources[first][0] + start - begins[first]
        end = sources[last][1] if matches[last] else sources[last][0] + stop - begins[last]
        return self._parent.locate(begin, end)


class _Packed(_View):
    """A form decoded from the characters of an alphabet, ignoring others and the first ``skipped`` of them."""

    packed = True

    def __init__(self, parent: _View, data: bytes, alphabet: frozenset[int], skipped: int, bits: int) -> None:
        super().__init__(data)
        self._parent = parent
        self._alphabet = alphabet
        self._skipped = skipped
        self._bits = bits

    @cached_property
    def _positions(self) -> list[int]:
        return [at for at, character in enumerate(self._parent.data) if character in self._alphabet]

    def locate(self, start: int, stop: int) -> Span:
        first = self._skipped + start * 8 // self._bits
        last = self._skipped - (-stop * 8 // self._bits) - 1
        return self._parent.locate(self._positions[first], self._positions[last] + 1)


class _Code:
    """An encoding that replaces some characters by others."""

    def __init__(self, marker: bytes, pattern: str, decode: Callable[[re.Match[bytes]], bytes]) -> None:
        self.marker = marker
        self.pattern = re.compile(pattern.encode(), re.DOTALL)
        self.decode = decode

    def decoded(self, view: _View) -> _View | None:
        if self.marker not in view.data:
            return None
        data = self.pattern.sub(self.decode, view.data)
        return None if data == view.data else _Replaced(view, data, self)


_SIMPLE = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f", b"v": b"\v", b"a": b"\a", b"0": b"\0"}
_ESCAPE = (
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|[nrtbfva0\"'/\\])"
)


def _character(number: int) -> bytes:
    return _encode(chr(number)) if number <= 0x10FFFF else b"?"


def _unescape(found: re.Match[bytes], *, x_is_byte: bool) -> bytes:
    text = found[0][1:]
    kind, digits = text[:1], text[1:]
    if kind == b"x" and x_is_byte:
        return bytes([int(digits, 16)])
    if kind == b"u" and len(digits) > 4:
        high, low = int(digits[:4], 16), int(digits[6:], 16)
        return _character(0x10000 + ((high - 0xD800) << 10) + low - 0xDC00)
    if kind in (b"x", b"u", b"U"):
        return _character(int(digits, 16))
    return _SIMPLE.get(text, text)


def _unescape_html(text: str) -> bytes:
    """Decode numeric references literally: a browser would replace some of them."""
    if text[1] != "#":
        return _encode(html.unescape(text))
    return _character(int(text[3:-1], 16) if text[2] in "xX" else int(text[2:-1]))


def _unquote(found: re.Match[bytes]) -> bytes:
    return b" " if found[0] == b"+" else bytes([int(found[0][1:], 16)])


_ESCAPES = _Code(b"\\", _ESCAPE, lambda found: _unescape(found, x_is_byte=False))
#: The notation of Python bytes, in which ``\xe9`` is a byte and not a character.
_BYTES = _Code(b"\\x", _ESCAPE, lambda found: _unescape(found, x_is_byte=True))
_HTML = _Code(
    b"&",
    "&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});",
    lambda found: _unescape_html(found[0].decode()),
)
_URL = _Code(b"%", "%[0-9a-fA-F]{2}", _unquote)
_FORM = _Code(b"+", r"%[0-9a-fA-F]{2}|\+", _unquote)
_CODES = (_ESCAPES, _BYTES, _HTML, _URL, _FORM)

_DIGITS = frozenset(b"0123456789abcdefABCDEF")
_BASE64 = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_")
_NOT_DIGITS = bytes(set(range(256)) - _DIGITS)
_NOT_BASE64 = bytes(set(range(256)) - _BASE64)
_STANDARD = bytes.maketrans(b"-_", b"+/")
#: Noise rarely has so many consecutive characters of an alphabet, and encoded lines are not shorter.
_DIGIT_RUN = re.compile(rb"(?:[0-9a-fA-F]{2}[^0-9a-fA-F]?){5}")
_BASE64_RUN = re.compile(rb"[A-Za-z0-9+/_-]{8}")


def _from_digits(view: _View) -> Iterator[_View]:
    if not _DIGIT_RUN.search(view.data):
        return
    digits = view.data.translate(None, _NOT_DIGITS)
    for skipped in range(2):
        if count := (len(digits) - skipped) // 2 * 2:
            data = bytes.fromhex(digits[skipped : skipped + count].decode())
            yield _Packed(view, data, _DIGITS, skipped, 4)


def _from_base64(view: _View) -> Iterator[_View]:
    if not _BASE64_RUN.search(view.data):
        return
    characters = view.data.translate(_STANDARD, _NOT_BASE64)
    for skipped in range(4):
        rest = characters[skipped:]
        data = base64.b64decode(rest + b"A" * (-len(rest) % 4))
        yield _Packed(view, data[: len(rest) * 6 // 8], _BASE64, skipped, 6)


def find_views(data: bytes) -> Iterator[_View]:
    """Yield the text and all its decoded forms, the least encoded first."""
    left = _MOST_DECODED * len(data) + _LEAST_DECODED
    seen = {data}
    views = [_View(data)]
    yield views[0]
    for _ in range(_DEPTH):
        found: list[_View] = []
        for view in views:
            decoded = [each for code in _CODES if (each := code.decoded(view)) is not None]
            for each in (*decoded, *_from_digits(view), *_from_base64(view)):
                left -= len(each.data)
                if left < 0:
                    return
                if len(each.data) >= _SHORTEST_ENCODED and each.data not in seen:
                    seen.add(each.data)
                    found.append(each)
                    yield each
        views = found
