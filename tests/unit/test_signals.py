"""The last resort: it ends a process that does not end by itself, and no other."""

import subprocess
import sys

HEADER = """
import threading, time
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.core.runtime import signals
HOUR = 3_600_000_000
"""


def run(program: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", HEADER + program], capture_output=True, text=True, timeout=120, check=False
    )


def test_the_last_resort_is_called_off_if_the_process_can_end_by_itself() -> None:
    found = run("""
with signals.LastResort(SystemClock()) as last_resort:
    [watcher] = [thread for thread in threading.enumerate() if thread.name == "mainspring last resort"]
    last_resort.end_within(HOUR, status=7)
watcher.join()
print("still here")
""")
    assert (found.returncode, found.stdout, found.stderr) == (0, "still here\n", "")


def test_the_last_resort_ends_a_process_that_a_thread_holds_up() -> None:
    found = run("""
signals._FLUSHING_SECONDS = 100
with signals.LastResort(SystemClock()) as last_resort:
    threading.Thread(target=time.sleep, args=(60,)).start()
    last_resort.end_within(HOUR, status=1)
print("not lost", end="")
last_resort.end_within(0, status=7)
""")
    assert (found.returncode, found.stdout) == (7, "not lost")
    assert "ended by force" in found.stderr
