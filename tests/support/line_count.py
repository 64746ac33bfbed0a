"""Bound how much work code does, without a clock: the number of lines it executes is the same on every machine."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Count:
    """How many lines were executed so far."""

    lines = 0


@contextmanager
def counted_lines(limit: int | None = None) -> Iterator[Count]:
    """Count the lines of Python that functions called in the block execute."""
    count = Count()

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            count.lines += 1
            if limit is not None and count.lines > limit:
                raise AssertionError(f"more than {limit} lines were executed")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(before)


@contextmanager
def at_most_lines(limit: int) -> Iterator[None]:
    """Fail as soon as functions called in the block have executed more than ``limit`` lines of Python.

    In code on an event loop, compare the result of ``counted_lines`` instead: an error in a callback may end nothing.
    """
    with counted_lines(limit):
        yield
