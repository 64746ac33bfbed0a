"""Runs SQL of its own in Python code, and decodes its rows by the names of their columns."""

from collections.abc import Iterator, Mapping
from typing import TypeAlias, TypeVar

import apsw
import msgspec

T = TypeVar("T", bound=msgspec.Struct)

Parameters: TypeAlias = Mapping[str, str | int | float | None]


def fetch_rows(connection: apsw.Connection, kind: type[T], statement: str, values: Parameters | None = None) -> list[T]:
    """Return the rows as structs. SQLite's 0 and 1 become booleans where the struct has one."""
    return list(_decode(connection.cursor().execute(statement, values), kind))


def fetch_row(connection: apsw.Connection, kind: type[T], statement: str, values: Parameters | None = None) -> T | None:
    """Return the first row; None if there is none."""
    return next(_decode(connection.cursor().execute(statement, values), kind), None)


def fetch_texts(connection: apsw.Connection, statement: str, values: Parameters | None = None) -> list[str]:
    """Return the only column of the rows, which is text."""
    return [str(text) for (text,) in connection.execute(statement, values)]


def _decode(cursor: apsw.Cursor, kind: type[T]) -> Iterator[T]:
    names: list[str] = []
    for row in cursor:
        names = names or [column[0] for column in cursor.get_description()]
        yield msgspec.convert(dict(zip(names, row, strict=True)), kind, strict=False)
