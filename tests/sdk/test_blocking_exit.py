"""A script that submits ends quietly, also where the interpreter starts no more threads while it exits."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = """
import atexit, threading
from mainspring import Mainspring

app = Mainspring()

@app.task
def ship(number: int) -> int:
    return number

ship.sync.submit(2)

def start(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")

def refuse_threads():
    threading.Thread.start = start

# Python 3.12 and newer refuse them from here on. Registered last, so it is called first.
atexit.register(refuse_threads)
print("submitted")
"""


@pytest.mark.parametrize("store", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_a_script_that_submits_prints_nothing_when_it_exits(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    address = "exit.db"
    if store == "postgres":
        # A name is resolved on a thread of the loop.
        address = request.getfixturevalue("postgres_database").replace("127.0.0.1", "localhost")
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        cwd=tmp_path,
        env={**os.environ, "MAINSPRING_STORE": address},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "submitted\n", "")
