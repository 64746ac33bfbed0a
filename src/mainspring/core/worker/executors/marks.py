"""Finds processes by entries in the environment they were started with, wherever they have moved since.

A process can leave its group or session, and its parent can end first; the environment stays. Requires ``/proc``.
"""

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


def kill_marked(marks: Sequence[bytes]) -> None:
    """Kill processes with these environment entries until none is found. Without ``/proc`` it does nothing."""
    for _ in range(100):
        if not (found := marked(marks)):
            return
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def marked(marks: Sequence[bytes]) -> list[int]:
    """Return the processes with these entries in their environment. Dead processes have no environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            environment = path.read_bytes()
            if all(mark in environment for mark in marks):
                found.append(int(path.parent.name))
    return found
