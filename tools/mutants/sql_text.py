"""Read SQL files: tokens, and the units that a mutant belongs to.

A unit is a named statement (``-- name: claim``) of a query file, or one statement in the body of a trigger of SQLite's
procedures. Comments, strings and quoted names are single tokens, so that no operator looks into them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from mainspring.stores.sqlite.constants import CONSTANTS
from mainspring.stores.statements import insert_constants

_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
    | (?P<comment>--[^\n]*|/\*.*?\*/)
    | (?P<string>[eE]?'(?:[^']|'')*'|\$(?P<tag>[A-Za-z_]*)\$.*?\$(?P=tag)\$|"[^"]*")
    | (?P<parameter>[$:@?][A-Za-z0-9_]+|\?)
    | (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<operator>::|:=|=>|->>|->|<>|<=|>=|!=|\|\||<<|>>|@>|<@|[-+*/%<>=|&~^!?])
    | (?P<mark>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_NAME = re.compile(r"^-- name:(.*)$", re.MULTILINE)
_TRIGGER = re.compile(r"^CREATE TEMP TRIGGER (\w+).*?\bBEGIN\b(.*?)^END;", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    start: int
    depth: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    @property
    def upper(self) -> str:
        return self.text.upper() if self.kind == "word" else self.text


@dataclass(frozen=True)
class SqlUnit:
    """``key`` is the name under which the recorder knows the tests that run it."""

    name: str
    key: str
    start: int
    text: str


def tokenize(text: str) -> list[Token]:
    """The tokens that mean something, with the depth of their parentheses; a pair has the depth of its outside."""
    tokens: list[Token] = []
    depth = 0
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "mark"
        # A dollar-quoted string ends with its tag group.
        kind = "string" if kind == "tag" else kind
        if kind in ("space", "comment"):
            continue
        if match[0] in (")", "]"):
            depth -= 1
        tokens.append(Token(kind, match[0], match.start(), depth))
        if match[0] in ("(", "["):
            depth += 1
    return tokens


def list_units(file: str, text: str) -> Iterator[SqlUnit]:
    """``file``: relative to the folder of the stores, such as ``postgres/queries/claim.sql``."""
    if "/procedures/" in file:
        yield from _list_trigger_statements(text)
        return
    names = list(_NAME.finditer(text))
    for index, match in enumerate(names):
        end = names[index + 1].start() if index + 1 < len(names) else len(text)
        name = match[1].strip()
        yield SqlUnit(name, f"{file}::{name}", match.end(), text[match.end() : end])


def _list_trigger_statements(text: str) -> Iterator[SqlUnit]:
    for trigger in _TRIGGER.finditer(text):
        start = trigger.start(2)
        body = trigger[2]
        first: Token | None = None
        for token in tokenize(body):
            if token.text == ";" and first is not None:
                statement = body[first.start : token.start]
                key = hash_statement(insert_constants(statement, CONSTANTS))
                yield SqlUnit(trigger[1], key, start + first.start, statement)
                first = None
            elif first is None:
                first = token


def hash_statement(text: str) -> str:
    """SQLite reports the statements of a trigger on one line each."""
    return "trigger::" + hashlib.sha256(" ".join(text.split()).encode()).hexdigest()[:16]
