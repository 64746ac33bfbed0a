"""Reads what the ``stamp`` task wrote down: which run was started when."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.tasks import RECORD


class Stamp(msgspec.Struct, frozen=True):
    """One start of a handler; times in microseconds since 1970."""

    run: str
    due: int
    started: int
    #: The process that started it.
    pid: int

    @property
    def late_ms(self) -> float:
        return (self.started - self.due) / 1_000


class Stamps:
    """All starts since ``clear`` was called last."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._seen: dict[str, int] = {}

    def clear(self) -> None:
        self._seen = {path.name: path.stat().st_size for path in self.directory.glob("*.stamps")}

    def read(self) -> list[Stamp]:
        found = []
        for path in self.directory.glob("*.stamps"):
            data = path.read_bytes()[self._seen.get(path.name, 0) :]
            whole = len(data) - len(data) % RECORD.size
            pid = int(path.stem)
            found += [Stamp(run.hex(), due, started, pid) for run, due, started in RECORD.iter_unpack(data[:whole])]
        return found

    def count(self) -> int:
        sizes = ((path.name, path.stat().st_size) for path in self.directory.glob("*.stamps"))
        return sum((size - self._seen.get(name, 0)) // RECORD.size for name, size in sizes)

    async def wait_for(
        self, count: int, timeout: float, *, progress: Callable[[int], None] | None = None
    ) -> list[Stamp]:
        """Return when there are this many, or after ``timeout`` seconds with what there is."""
        give_up_at = time.monotonic() + timeout
        while (found := self.count()) < count and time.monotonic() < give_up_at:
            if progress is not None:
                progress(found)
            await asyncio.sleep(0.05)
        return self.read()
