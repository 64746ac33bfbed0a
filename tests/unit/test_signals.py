"""The last resort: it ends a process that does not end by itself, and no other."""

import subprocess
import sys

CALLED_OFF = """
import time
from mainspring.adapters.clock.system import SystemClock
from mainspring.runtime.signals import LastResort

with LastResort(SystemClock()) as last_resort:
    last_resort.end_within(100_000, status=7)
time.sleep(0.3)
print("still here")
"""

NEEDED = """
import threading, time
from mainspring.adapters.clock.system import SystemClock
from mainspring.runtime.signals import LastResort

with LastResort(SystemClock()) as last_resort:
    threading.Thread(target=time.sleep, args=(60,)).start()
    last_resort.end_within(60_000_000, status=1)
    last_resort.end_within(100_000, status=7)
print("not lost", end="")
"""


def run(program: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=False)


def test_it_is_called_off_when_nothing_has_remained() -> None:
    found = run(CALLED_OFF)
    assert (found.returncode, found.stdout, found.stderr) == (0, "still here\n", "")


def test_it_ends_a_process_that_a_thread_holds_up() -> None:
    found = run(NEEDED)
    assert (found.returncode, found.stdout) == (7, "not lost")
    assert "ended by force" in found.stderr
