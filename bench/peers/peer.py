"""What Python peers have in common: counters, stamps and commands as ``protocol.md`` describes them.

Peers run this file in an environment of their own: it imports only the standard library.
"""

import asyncio
import json
import mmap
import os
import random
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

BATCH = 1_000
DIRECTORY = Path(os.environ.get("PEER_DIRECTORY", "."))
URL = os.environ.get("PEER_URL", "")
PAYLOAD: dict[str, Any] = json.loads(os.environ.get("PEER_PAYLOAD", "{}"))
_RECORD = struct.Struct("<q8xqq")


class Recorder:
    """Counts executions, and appends a record of each stamp. Create one in each process."""

    def __init__(self) -> None:
        file = os.open(DIRECTORY / f"{os.getpid()}.count", os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(file, 8)
        self._shared = memoryview(mmap.mmap(file, 8)).cast("q")
        self._stamps = os.open(DIRECTORY / f"{os.getpid()}.stamps", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def count(self) -> None:
        self._shared[0] += 1

    def stamp(self, n: int, due: int) -> None:
        os.write(self._stamps, _RECORD.pack(n, due, now()))
        self._shared[0] += 1


def ready() -> None:
    # Not print(): Celery redirects it.
    os.write(2, b"mainspring: ready\n")


def now() -> int:
    return time.time_ns() // 1_000


def executed() -> int:
    return sum(int.from_bytes(path.read_bytes(), "little") for path in DIRECTORY.glob("*.count"))


class Submitter(Protocol):
    """A queue, as a peer's submitter sees it."""

    async def install(self) -> None: ...

    async def add(self, task: str, data: dict[str, Any]) -> None:
        """Submit one job."""

    async def add_many(self, task: str, data: Sequence[dict[str, Any]], at: datetime | None = None) -> None:
        """Submit a batch, due now or at this time."""


async def submit(queue: Submitter, what: str, *numbers: float) -> object:
    """Execute one command of the protocol."""
    batch = [PAYLOAD] * BATCH

    async def one() -> int:
        await queue.add("nothing", PAYLOAD)
        return 1

    async def many() -> int:
        await queue.add_many("nothing", batch)
        return BATCH

    match what:
        case "install":
            await queue.install()
        case "fill":
            for first in range(0, int(numbers[0]), BATCH):
                await queue.add_many("nothing", batch[: int(numbers[0]) - first])
            return int(numbers[0])
        case "single":
            return await _timed(numbers[0], 1, one)
        case "concurrent":
            return await _timed(numbers[0], 64, one)
        case "batches":
            return await _timed(numbers[0], 1, many)
        case "ahead":
            return await _ahead(int(numbers[0]), many)
        case "idle":
            for n in range(int(numbers[0])):
                await asyncio.sleep(random.uniform(0.020, 0.060))
                await queue.add("stamp", {"n": n, "due": now()})
            return int(numbers[0])
        case "herd":
            jobs, due = map(int, numbers)
            at = datetime.fromtimestamp(due / 1e6, UTC)
            for first in range(0, jobs, BATCH):
                data = [{"n": n, "due": due} for n in range(first, min(first + BATCH, jobs))]
                await queue.add_many("stamp", data, at)
            return jobs
        case _:
            raise ValueError(f"there is no command {what}")
    return None


async def _timed(seconds: float, tasks: int, each: Callable[[], Awaitable[int]]) -> dict[str, float]:
    await each()
    jobs = 0
    used, started = time.process_time(), time.perf_counter()
    until = started + seconds

    async def submitting() -> None:
        nonlocal jobs
        while time.perf_counter() < until:
            # Awaited first: other tasks add to the sum meanwhile.
            done = await each()
            jobs += done

    await asyncio.gather(*(submitting() for _ in range(tasks)))
    took = time.perf_counter() - started
    return {"jobs": jobs, "seconds": took, "processor_seconds": time.process_time() - used}


async def _ahead(backlog: int, many: Callable[[], Awaitable[int]]) -> int:
    stop = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    submitted = 0
    while not stop.done():
        if submitted - executed() + BATCH > backlog:
            await asyncio.sleep(0.005)
        else:
            submitted += await many()
    return submitted


def answer(value: object) -> None:
    sys.stdout.write(json.dumps(value))


def arguments() -> tuple[str, list[float]]:
    return sys.argv[1], [float(word) for word in sys.argv[2:]]
