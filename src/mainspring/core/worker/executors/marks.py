"""Processes that are found by what they were started with in their environment, wherever they have gone since.

A group or a session can be left, and a parent can end first; the environment goes along. Only where there is ``/proc``.
"""

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


def kill_marked(marks: Sequence[bytes]) -> None:
    """Kill whoever was started with these in its environment, until nobody is found. Only where there is ``/proc``."""
    for _ in range(100):
        if not (found := marked(marks)):
            return
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def marked(marks: Sequence[bytes]) -> list[int]:
    """The processes with these in their environment; those that are dead have none any more."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            environment = path.read_bytes()
            if all(mark in environment for mark in marks):
                found.append(int(path.parent.name))
    return found
