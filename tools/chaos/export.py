"""``python -m tools.chaos.export directory``: what the store and the handlers know becomes a history for the judge, by
SQL and from files."""

import asyncio
import json
import shutil
import sys
from bisect import bisect
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import asyncpg

#: Files in the directory: the acknowledged submits, the other facts, and the history made of both.
ACKNOWLEDGED, FACTS, HISTORY = "acknowledged.jsonl", "facts.json", "history.jsonl"
#: The directory of what handlers wrote down.
STAMPS = "stamps"

_STATES = {1: "scheduled", 2: "blocked", 3: "queued", 4: "running", 5: "succeeded"}
_ENDED = {5: "succeeded", 6: "failed", 7: "cancelled", 8: "skipped"}

#: Runs that must have ended by now: what was submitted, and the ticks up to the last one that counts.
LEFT = """
    SELECT id::text, state, job_id::text, scheduled_at FROM mainspring.run
    WHERE scheduled_at IS NULL OR scheduled_at <= $1
    UNION ALL
    SELECT id::text, state, job_id::text, scheduled_at FROM mainspring.waiting
    WHERE scheduled_at IS NULL OR scheduled_at <= $1
"""
_HISTORY = """
    SELECT id::text, state, fence, session, finished_at, due, started_at, job_id::text, scheduled_at
    FROM mainspring.history WHERE scheduled_at IS NULL OR scheduled_at <= $1
"""
#: Successes leave no row.
_GIVEN_UP = "SELECT run_id::text, fence FROM mainspring.attempt"
_LEDGER = """
    SELECT job_id::text, scheduled_at, decision, run_id::text, epoch FROM mainspring.ledger
    WHERE scheduled_at <= $1
"""


class Clocks:
    """What the monotonic clock said when the time of day was so: looked at every second."""

    def __init__(self, seen: list[tuple[int, int]] | None = None) -> None:
        #: The monotonic clock, and how far the time of day was ahead of it.
        self.seen = seen or []

    def look(self, monotonic_ns: int, time_ns: int) -> None:
        self.seen.append((monotonic_ns // 1_000, (time_ns - monotonic_ns) // 1_000))

    def time_of(self, monotonic: int) -> int:
        at = min(bisect(self.seen, (monotonic, 0)), len(self.seen) - 1)
        return monotonic + self.seen[at][1]


@dataclass
class Facts:
    """The facts about a cluster that is gone."""

    #: Its store, which is still there.
    dsn: str
    jobs: list[str]
    #: The ticks that count.
    first: int
    last: int
    #: Names and times.
    faults: list[tuple[str, int]]
    #: As ``Clocks`` has it.
    clocks: list[tuple[int, int]]


async def export(directory: Path) -> None:
    facts = Facts(**json.loads((directory / FACTS).read_text()))
    with (directory / HISTORY).open("w") as file:
        for name, at in facts.faults:
            _write(file, kind="fault", name=name, at=at)
        for job in facts.jobs:
            _write(file, kind="expected", job=job, first=facts.first, last=facts.last, every=1_000_000)
        with (directory / ACKNOWLEDGED).open() as lines:
            shutil.copyfileobj(lines, file)
        _starts(file, directory / STAMPS, Clocks([(monotonic, ahead) for monotonic, ahead in facts.clocks]))
        await _store(file, facts.dsn, facts.last)


async def _store(file: TextIO, dsn: str, last: int) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            async for row in connection.cursor(_HISTORY, last):
                _write(
                    file,
                    kind="ended",
                    run=_id(row["id"]),
                    state=_ENDED[row["state"]],
                    fence=row["fence"],
                    session=row["session"],
                    at=row["finished_at"],
                    due=row["due"],
                    started=row["started_at"],
                    job=_id(row["job_id"]),
                    tick=row["scheduled_at"],
                )
        for row in await connection.fetch(LEFT, last):
            state, tick = _STATES.get(row["state"], "blocked"), row["scheduled_at"]
            _write(file, kind="left", run=_id(row["id"]), state=state, job=_id(row["job_id"]), tick=tick)
        for row in await connection.fetch(_GIVEN_UP):
            _write(file, kind="given up", run=_id(row["run_id"]), fence=row["fence"])
        for row in await connection.fetch("SELECT run FROM public.effects"):
            _write(file, kind="effect", run=row["run"])
        for row in await connection.fetch(_LEDGER, last):
            _write(
                file,
                kind="tick",
                job=_id(row["job_id"]),
                tick=row["scheduled_at"],
                decision="run" if row["decision"] == 1 else "skipped",
                run=_id(row["run_id"]),
                epoch=row["epoch"],
            )
    finally:
        await connection.close()


def _starts(file: TextIO, stamps: Path, clocks: Clocks) -> None:
    for path in sorted(stamps.iterdir()):
        for line in path.read_text().splitlines():
            run, fence, monotonic, due, key = line.split()
            at = clocks.time_of(int(monotonic))
            named = {} if key == "-" else {"key": key}
            _write(file, kind="started", run=run, fence=int(fence), at=at, due=int(due), **named)


def _id(text: str | None) -> str | None:
    return None if text is None else text.replace("-", "")


def _write(file: TextIO, **line: Any) -> None:
    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    asyncio.run(export(Path(sys.argv[1])))
