"""A mutant: one edit of one file, with an id that stays the same when lines move."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

#: A longer text needs no context.
_SHORT = 12


@dataclass(frozen=True)
class Edit:
    """Replace ``text[start:end]`` by ``new``; ``operator`` says which kind of change it is.

    ``around``: the lines of the statement or function around it, if the tests of its own line are not known.
    """

    operator: str
    start: int
    end: int
    new: str
    around: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Mutant:
    """``key``: the SQL statement it is in. ``name``: the constant that it defines, outside of any function."""

    id: str
    file: str
    operator: str
    start: int
    end: int
    new: str
    line: int
    last_line: int
    around: tuple[int, int] = (0, 0)
    key: str = ""
    name: str = ""

    def apply(self, text: str) -> str:
        return text[: self.start] + self.new + text[self.end :]

    def describe(self, text: str) -> str:
        """``old → new``, and where it is in its line if it is short."""
        old = " ".join(text[self.start : self.end].split())
        new = " ".join(self.new.split()) or "(removed)"
        if len(old) > _SHORT:
            return f"{_shorten(old)} → {_shorten(new)}"
        before = text[max(text.rfind("\n", 0, self.start) + 1, self.start - 30) : self.start].lstrip()
        after = text[self.end : self.end + 30].partition("\n")[0].rstrip()
        return f"{old} → {new} in {before}[{old}]{after}"


@dataclass(frozen=True)
class Unit:
    """A function, a constant or a SQL statement. ``identity``: the text that its hash is made of."""

    name: str
    identity: str
    key: str = ""
    is_constant: bool = False


def build_mutants(file: str, text: str, found: Iterable[tuple[Unit, Edit]]) -> Iterator[Mutant]:
    """Give each edit its id: file, unit, operator, ordinal in the unit, and a hash of the unit."""
    ordinals: Counter[str] = Counter()
    for unit, edit in found:
        hash_ = hashlib.sha256(unit.identity.encode()).hexdigest()[:6]
        short = file.removeprefix("src/mainspring/").removeprefix("stores/")
        base = f"{short}:{unit.name}:{edit.operator}"
        ordinals[f"{base}@{hash_}"] += 1
        yield Mutant(
            id=f"{base}.{ordinals[f'{base}@{hash_}']}@{hash_}",
            file=file,
            operator=edit.operator,
            start=edit.start,
            end=edit.end,
            new=edit.new,
            line=text.count("\n", 0, edit.start) + 1,
            last_line=text.count("\n", 0, edit.end) + 1,
            around=edit.around,
            key=unit.key,
            name=unit.name.rpartition(".")[2] if unit.is_constant else "",
        )


def _shorten(text: str, longest: int = 90) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
