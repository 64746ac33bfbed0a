"""Interrupting a sync handler on its thread."""

import subprocess
import sys

import pytest

_INTERRUPTED_CALLS = """
import sys, threading
from mainspring.core.worker.executors.interruption import Call

def interrupt_a_running_call():
    call, started, interrupted = Call(), threading.Event(), threading.Event()

    def handler():
        started.set()
        interrupted.wait()
        while True:
            pass

    thread = threading.Thread(target=call.run, args=(handler,))
    thread.start()
    started.wait()
    call.interrupt()
    interrupted.set()
    thread.join()

def interrupt_a_call_that_ends():
    call = Call()
    call.run(call.interrupt)

{function}()
"""
_TRACE = """
def count():
    return sum(range(3))

sys.settrace(lambda *_: None)
count()
sys.settrace(None)
print("traced")
"""


@pytest.mark.parametrize("function", ["interrupt_a_running_call", "interrupt_a_call_that_ends"])
def test_a_process_can_be_traced_after_an_interrupted_call(function: str) -> None:
    """On Python 3.11 a flag that was left set makes every traced call loop: debuggers and coverage hang."""
    script = _INTERRUPTED_CALLS.format(function=function) + _TRACE
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("traced\n", "")
