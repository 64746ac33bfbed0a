"""Bound how much work code does, without a clock: the number of lines it executes is the same on every machine."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def at_most_lines(limit: int) -> Iterator[None]:
    """Fail as soon as functions called in the block have executed more than ``limit`` lines of Python."""
    executed = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal executed
        if event == "line":
            executed += 1
            if executed > limit:
                raise AssertionError(f"more than {limit} lines were executed")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
