"""How child processes know that their worker lives and still has its lease.

Two threads of life, because there are two ways to be left alone:
- The worker is gone. The kernel closes the write end of a pipe that only the worker holds, and, as the child has asked
  it to (``O_ASYNC`` with ``F_SETSIG``), kills the child's whole process group: grandchildren too, and also when the
  child hangs in C code that never lets Python run. Where the kernel cannot do that, the child sees its line closed and
  ends. Each child has a pipe of its own: whom to kill is kept with the open pipe, not with the process.
- The worker is frozen, or lost its lease. Every good beat changes a number in a file both can see. A child that has not
  seen it change for almost a lease ends: its runs are about to be started elsewhere.
"""

import ctypes
import fcntl
import os
import signal
import sys
import tempfile
import threading

_NUMBER = 8
#: From Linux's fcntl.h; Python does not name it.
_F_SETSIG = 10
_PR_SET_PDEATHSIG = 1


class Lifeline:
    """The worker's side of the number. One for all children."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="mainspring-lifeline-")  # noqa: SIM115 (lives as long as we do)
        self._number = 0
        self.pulse()

    def fileno(self) -> int:
        return self._file.fileno()

    def pulse(self) -> None:
        """The lease was renewed. Called from the heartbeat's thread."""
        self._number += 1
        os.pwrite(self._file.fileno(), self._number.to_bytes(_NUMBER, "big"), 0)

    def close(self) -> None:
        self._file.close()


def end_with_worker(worker: int, read_end: int) -> None:
    """Called by a child at its start: never outlive the worker."""
    if sys.platform == "linux":
        fcntl.fcntl(read_end, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(read_end, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(read_end, fcntl.F_SETFL, fcntl.fcntl(read_end, fcntl.F_GETFL) | os.O_ASYNC)
        # Should a process that the worker forked keep the pipe open. Not KILL, or we might die of it before the kernel
        # comes to the pipe, and then nobody would end our own children.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    # While the worker lives it is meant for what handlers have started.
    signal.signal(signal.SIGTERM, lambda *_: leave_nobody_behind() if os.getppid() != worker else None)
    if os.getppid() != worker:
        # It was gone before we could ask to be told.
        leave_nobody_behind()


def end_when_still(descriptor: int, silence: int) -> None:
    """Called by a child when it serves: exit when the number has not changed for ``silence`` looks, one a second."""
    threading.Thread(target=_watch, args=(descriptor, silence), name="mainspring lifeline", daemon=True).start()


def _watch(descriptor: int, silence: int) -> None:
    seen = b""
    still = 0
    second = threading.Event()
    while (still := still + 1 if (number := os.pread(descriptor, _NUMBER, 0)) == seen else 0) < silence:
        seen = number
        second.wait(1)
    sys.stderr.write(f"mainspring: child {os.getpid()} ends, because its worker shows no life\n")
    leave_nobody_behind()


def leave_nobody_behind() -> None:
    """End at once, and take along what handlers have started: the process group is the child's own."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
