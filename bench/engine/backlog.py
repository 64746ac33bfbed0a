"""Submits just ahead of the workers: they always find work, and the queue stays as small as in a healthy system."""

import asyncio
from bisect import bisect_right
from contextlib import closing
from typing import Protocol

import apsw
import msgspec

from bench.engine.load import Load
from bench.sizes import QUEUE

_PAUSE = 0.005


class Kept(msgspec.Struct):
    """What keeping ahead came to."""

    submitted: int = 0
    #: The fewest runs that were found in the queue while it should have been full.
    fewest: int = 0


class Head(Protocol):
    """Finds the oldest queued run, by one step in an index. Its position gives the length of the queue."""

    async def oldest(self) -> str | None: ...

    async def close(self) -> None: ...


class SqliteHead:
    def __init__(self, path: str) -> None:
        self._connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
        self._connection.set_busy_timeout(5_000)

    async def oldest(self) -> str | None:
        row = self._connection.execute(
            "SELECT id FROM run WHERE queue = ? AND claim_group = 0 AND state = 'queued' ORDER BY rank, id LIMIT 1",
            (QUEUE,),
        ).fetchone()
        return None if row is None else str(row[0])

    async def close(self) -> None:
        with closing(self._connection):
            pass


async def open_head(load: Load) -> Head:
    if load.on_postgres:
        from bench.sites.postgres_head import PostgresHead

        return await PostgresHead.open(load.settings.store, load.settings.schema)
    return SqliteHead(load.settings.store)


async def keep_ahead(load: Load, backlog: int, batch: int) -> None:
    """Begin; ``stop_keeping_ahead`` ends it."""
    load.background["backlog"] = asyncio.create_task(_keep_ahead(load, backlog, batch))


async def stop_keeping_ahead(load: Load) -> Kept:
    task = load.background.pop("backlog")
    _stopping.add(task)
    kept: Kept = await task
    return kept


#: Stops after the current batch: a cancelled submit may or may not have happened.
_stopping: set["asyncio.Task[Kept]"] = set()


async def _keep_ahead(load: Load, backlog: int, batch: int) -> Kept:
    runtime = await load.runtime()
    head = await open_head(load)
    kept = Kept(fewest=backlog)
    firsts: list[str] = []
    ahead = 0
    try:
        while asyncio.current_task() not in _stopping:
            if ahead + batch > backlog:
                oldest = await head.oldest()
                ahead = 0 if oldest is None else (len(firsts) - bisect_right(firsts, oldest) + 1) * batch
                kept.fewest = min(kept.fewest, ahead)
                if ahead + batch > backlog:
                    await asyncio.sleep(_PAUSE)
                    continue
            runs = await load.new_runs(batch)
            firsts.append(runs[0].id)
            await runtime.jobs.submit_many(runs)
            kept.submitted += batch
            ahead += batch
    finally:
        await head.close()
    return kept
