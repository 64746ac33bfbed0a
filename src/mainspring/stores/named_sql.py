"""Loads SQL statements by name from .sql files, where they can be read and explained."""

import functools
from importlib.resources import files


def load(package: str, file: str) -> dict[str, str]:
    """Return the ``-- name: claim`` sections of a file of a package, by name."""
    return dict(_sections(package, file))


@functools.cache
def _sections(package: str, file: str) -> dict[str, str]:
    statements: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for line in files(package).joinpath(file).read_text("utf-8").splitlines():
        if line.startswith("-- name:"):
            lines = statements.setdefault(line.removeprefix("-- name:").strip(), [])
        elif lines is not None:
            lines.append(line)
    return {name: "\n".join(body).strip() for name, body in statements.items()}


def migrations(package: str) -> list[tuple[int, str, str]]:
    """Return the numbered migrations of a package, in order: number, file name, text."""
    found = [entry for entry in files(package).joinpath("migrations").iterdir() if entry.name.endswith(".sql")]
    return sorted((int(entry.name.split("_")[0]), entry.name, entry.read_text("utf-8")) for entry in found)
