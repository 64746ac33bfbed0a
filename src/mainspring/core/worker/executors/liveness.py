"""How child processes detect that their worker is gone or has lost its lease.

There are two mechanisms for the two cases:
- The worker is gone. The kernel then closes the write end of a pipe that only the worker holds. On request of the child
  (``O_ASYNC`` with ``F_SETSIG``) the kernel kills the child's whole process group, grandchildren included. This works
  even if the child hangs in C code that never lets Python run. Where the kernel cannot do that, the child sees its
  connection closed and ends. Each child has its own pipe, because the process to kill is stored with the open pipe.
- The worker is frozen, or lost its lease. Every answered heartbeat changes a number in a file that both can read. A
  child that has not seen it change for almost a lease ends: its runs are about to start elsewhere.
"""

import ctypes
import fcntl
import os
import signal
import sys
import tempfile
import threading

#: The exit code of a child that cannot reach its worker because its task closed the descriptors for that.
CUT_OFF = 247
_NUMBER = 8
#: From Linux's fcntl.h; missing in Python's ``fcntl``.
_F_SETSIG = 10
_PR_SET_PDEATHSIG = 1
#: In a child: the process id of its worker.
_worker = 0


class LivenessFile:
    """The worker's side of the number, one for all children."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="mainspring-liveness-")  # noqa: SIM115 (lives as long as we do)
        self._number = 0
        self.record_renewal()

    def fileno(self) -> int:
        return self._file.fileno()

    def record_renewal(self) -> None:
        """Record that the lease was renewed. Called from the heartbeat's thread."""
        self._number += 1
        os.pwrite(self._file.fileno(), self._number.to_bytes(_NUMBER, "big"), 0)

    def close(self) -> None:
        self._file.close()


def exit_with_worker(worker: int, read_end: int) -> None:
    """End this process with its worker. Called by a child at its start."""
    global _worker
    _worker = worker
    if sys.platform == "linux":
        fcntl.fcntl(read_end, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(read_end, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(read_end, fcntl.F_SETFL, fcntl.fcntl(read_end, fcntl.F_GETFL) | os.O_ASYNC)
        # For the case that a process forked by the worker keeps the pipe open. Not KILL: we might die of it before the
        # kernel handles the pipe, and then our own children would survive.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    # While the worker lives, SIGTERM is meant for processes started by handlers.
    signal.signal(signal.SIGTERM, lambda *_: kill_process_group() if os.getppid() != worker else None)
    if os.getppid() != worker:
        # The worker ended before we could ask the kernel for the signal.
        kill_process_group()


def exit_when_stale(descriptor: int, silence: int) -> None:
    """Exit when the number has not changed for ``silence`` checks, one per second. Called by a child when it serves."""
    threading.Thread(target=_watch, args=(descriptor, silence), name="mainspring liveness", daemon=True).start()


def _watch(descriptor: int, silence: int) -> None:
    file = identify_file(descriptor)
    seen = b""
    still = 0
    second = threading.Event()
    while True:
        try:
            number = os.pread(descriptor, _NUMBER, 0)
        except OSError:
            number = b""
        if identify_file(descriptor) != file:
            exit_cut_off()
        still = still + 1 if number == seen else 0
        if still >= silence:
            break
        seen = number
        second.wait(1)
    sys.stderr.write(f"mainspring: child {os.getpid()} ends, because its worker shows no life\n")
    kill_process_group()


def identify_file(descriptor: int) -> tuple[int, int] | None:
    """Return the device and the inode behind a descriptor; None if it is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def exit_cut_off() -> None:
    """End because a task closed the descriptors that lead to the worker, which then kills what is left here."""
    if os.getppid() == _worker:
        os._exit(CUT_OFF)
    kill_process_group()


def kill_process_group() -> None:
    """End at once, together with all processes started by handlers: the process group is the child's own."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
