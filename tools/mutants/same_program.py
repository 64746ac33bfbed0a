"""Mutants of SQLite's procedures that SQLite compiles to the same program: no test can tell them apart."""

from __future__ import annotations

import functools
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

import apsw

from mainspring.stores.sqlite import connection as connections
from mainspring.stores.sqlite.constants import CONSTANTS
from mainspring.stores.sqlite.work.limiters import create_limit_functions
from mainspring.stores.statements import insert_constants
from tools.mutants.mutant import Mutant
from tools.mutants.paths import ROOT, STORES

_PROCEDURES = f"{STORES}/sqlite/procedures"
_SHARDS = 4
#: One instruction: its name, three numbers, a text and flags.
_Program = list[tuple[object, ...]]


def compiles_to_the_same(mutant: Mutant, text: str) -> bool:
    """Whether the program of all procedures stays the same. ``text``: of the mutant's file, unchanged.

    SQLite sorts nothing if an index is read in the wanted order. Without that ORDER BY, only the numbers of cursors and
    addresses differ, so these are not compared then. The names of the instructions still show the direction.
    """
    if not mutant.file.startswith(_PROCEDURES):
        return False
    texts = read_procedures()
    assert texts[mutant.file] == text
    try:
        mutated = _compile((texts | {mutant.file: mutant.apply(text)}).values())
    except apsw.Error:
        return False
    original = _compile_original()
    if mutant.operator == "drop-order":
        return _without_numbers(mutated) == _without_numbers(original)
    return mutated == original


@functools.cache
def read_procedures() -> dict[str, str]:
    """The texts of all procedures by their paths, in the order in which they are created."""
    files = sorted((ROOT / _PROCEDURES).glob("*.sql"))
    return {file.relative_to(ROOT).as_posix(): file.read_text() for file in files}


@functools.cache
def _compile_original() -> _Program:
    return _compile(read_procedures().values())


def _compile(procedures: Iterable[str]) -> _Program:
    """The instructions of a call and of all procedures, without those that carry the text of a statement."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        connections.open_for_writing(path, _SHARDS).close()
        connection = apsw.Connection(str(path))
        create_limit_functions(connection)
        for text in procedures:
            connection.execute(insert_constants(text, CONSTANTS))
        rows = list(connection.execute("EXPLAIN INSERT INTO call VALUES (?, ?, ?, ?, ?, ?)", (0,) * 6))
        connection.close()
    # The address of a virtual table differs between connections.
    return [(*row[1:5], re.sub(r"vtab:\w+", "vtab", str(row[5])), row[6]) for row in rows if row[1] != "Trace"]


def _without_numbers(program: _Program) -> _Program:
    """A sorter that is not needed leaves an instruction that does nothing."""
    return [(name, text, flags) for name, _, _, _, text, flags in program if name != "Noop"]
