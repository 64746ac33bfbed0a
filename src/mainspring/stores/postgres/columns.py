"""Turns rows into the parameters of a statement that takes one array for each column."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec


def columns(rows: Iterable[Sequence[object]], *names: str) -> dict[str, Any]:
    """Return the columns of rows by name. There must be a row."""
    return dict(zip(names, zip(*rows, strict=True), strict=True))


def columns_of_structs(rows: Sequence[msgspec.Struct]) -> dict[str, Any]:
    """Return the columns of structs, named after their fields. There must be a row."""
    return {name: [getattr(row, name) for row in rows] for name in rows[0].__struct_fields__}
