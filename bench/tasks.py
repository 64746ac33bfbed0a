"""The tasks that are measured. Their cost is Mainspring's: they do nothing, or tell when they were started."""

import asyncio
import os
import struct
import time
from pathlib import Path

from bench.sizes import QUEUE
from mainspring import Context, Mainspring

#: The directory in which every process writes down what it started; without it nothing is written.
DIRECTORY = "MAINSPRING_BENCH_STAMPS"
#: Run id, when it was due and when the handler's first line ran, in microseconds since 1970.
RECORD = struct.Struct("<16sqq")

app = Mainspring()
_files: dict[str, int] = {}


@app.task(queue=QUEUE)
async def nothing(user_id: int, email: str, note: str) -> None:
    """The no-op."""


@app.task(queue=QUEUE)
async def stamp(context: Context) -> None:
    """Tell when it was started, on the clock of this machine."""
    _write(time.time_ns() // 1_000, context)


@app.task(queue=QUEUE)
async def nap(context: Context, seconds: float) -> None:
    """Tell when it was started, and take a while."""
    _write(time.time_ns() // 1_000, context)
    await asyncio.sleep(seconds)


def _write(now: int, context: Context) -> None:
    # One small write, appended whole by the system: no lock, no round trip, and nothing that the database would see.
    os.write(_file(os.environ[DIRECTORY]), RECORD.pack(bytes.fromhex(context.run_id), context.due, now))


def _file(directory: str) -> int:
    descriptor = _files.get(directory)
    if descriptor is None:
        path = Path(directory) / f"{os.getpid()}.stamps"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        _files[directory] = descriptor
    return descriptor
