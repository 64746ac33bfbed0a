"""Loads SQL statements by name from .sql files, where they can be read and explained.

Parameters are written ``:run_ids``. Constants, such as the number that stands for a state, are written ``:RUNNING`` and
become literals when a file is loaded, so that the planner sees them.
"""

import functools
import re
from collections.abc import Callable, Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Any

# Not the second colon of a cast.
_CONSTANT = re.compile(r"(?<![:\w]):([A-Z][A-Z0-9_]*)\b")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_][a-z0-9_]*)\b")
_NO_CONSTANTS: Mapping[str, int | str] = MappingProxyType({})


class Statement:
    """A statement for a driver with numbered parameters.

    ``bind`` takes all parameters by name, and returns the arguments of the driver's call: the text and the values in
    order.
    """

    __slots__ = ("bind", "parameters", "source", "text")

    def __init__(self, source: str) -> None:
        """``source``: the text with named parameters."""
        self.source = source
        texts_and_names = _PARAMETER.split(source)
        #: The names in the order of their numbers.
        self.parameters = tuple(dict.fromkeys(texts_and_names[1::2]))
        numbers = {name: f"${number}" for number, name in enumerate(self.parameters, 1)}
        texts_and_names[1::2] = [numbers[name] for name in texts_and_names[1::2]]
        self.text = "".join(texts_and_names)
        self.bind: Callable[..., tuple[Any, ...]] = self._bind_first

    def _bind_first(self, *values: object, **named: object) -> tuple[Any, ...]:
        """Compile ``bind`` when it is first called, because a process uses only some of the statements."""
        self.bind = _compile_bind(self.text, self.parameters)
        return self.bind(*values, **named)


def _compile_bind(text: str, parameters: tuple[str, ...]) -> Callable[..., tuple[Any, ...]]:
    # Compiled: picking the values out of a dict would cost a microsecond for each claim and submit.
    if not parameters:
        return lambda *values: (text, *values)
    names = ", ".join(parameters)
    bind: Callable[..., tuple[Any, ...]] = eval(f"lambda *, {names}: (text, {names})", {"text": text})  # noqa: S307
    return bind


def load(package: str, file: str, constants: Mapping[str, int | str] = _NO_CONSTANTS) -> dict[str, str]:
    """Return the ``-- name: claim`` sections of a file of a package, by name, with literals for the constants."""
    return {name: insert_constants(text, constants) for name, text in _sections(package, file).items()}


def insert_constants(text: str, constants: Mapping[str, int | str]) -> str:
    return _CONSTANT.sub(lambda match: str(constants[match[1]]), text)


@functools.cache
def _sections(package: str, file: str) -> dict[str, str]:
    return split_sections(files(package).joinpath(file).read_text("utf-8"))


def split_sections(text: str) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for line in text.splitlines():
        if line.startswith("-- name:"):
            lines = found.setdefault(line.removeprefix("-- name:").strip(), [])
        elif lines is not None:
            lines.append(line)
    return {name: "\n".join(body).strip() for name, body in found.items()}


def migrations(package: str) -> list[tuple[int, str, str]]:
    """Return the numbered migrations of a package, in order: number, file name, text."""
    found = [entry for entry in files(package).joinpath("migrations").iterdir() if entry.name.endswith(".sql")]
    return sorted((int(entry.name.split("_")[0]), entry.name, entry.read_text("utf-8")) for entry in found)
