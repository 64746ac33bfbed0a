"""The ceiling: the very statements of the store in a bare loop, with no task, no slots, no leases, no wake-ups.

On PostgreSQL a producer, a claimer and a completer have a connection each and wait only for each other. On SQLite,
where a statement is a call of a function, the store's own methods are called in the same way.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from bench.engine.bare import SUBMIT, open_bare
from bench.engine.load import Load
from bench.figures import Figures, minutes
from bench.measurement import Bench

Held = TypeVar("Held")

_BACKLOG = 20_000


async def measure(bench: Bench) -> Figures:
    async with bench.system("bare") as system:
        bench.say(f"the ceiling, bare statements: {minutes(bench.sizes.ceiling_seconds)}")
        rate = await system.call(run, seconds=bench.sizes.ceiling_seconds)
    return {"bare_sql_jobs_per_s": rate}


async def run(load: Load, seconds: float) -> int:
    """Completed jobs a second."""
    bare = await open_bare(load)
    try:
        return await pipeline(bare.submit, bare.claim, bare.complete, seconds)
    finally:
        await bare.close()


async def pipeline(
    submit: Callable[[], Awaitable[int]],
    claim: Callable[[], Awaitable[list[Held]]],
    complete: Callable[[list[Held]], Awaitable[None]],
    seconds: float,
) -> int:
    """Three loops that hand on to each other, over a backlog that stays what it is; completed jobs a second."""
    submitted = completed = 0
    claimed: asyncio.Queue[list[Held]] = asyncio.Queue(4)
    while submitted < _BACKLOG:
        submitted += await submit()

    async def submitting() -> None:
        nonlocal submitted
        while True:
            if submitted - completed > _BACKLOG + 2 * SUBMIT:
                await asyncio.sleep(0.001)
            else:
                submitted += await submit()

    async def claiming() -> None:
        while True:
            if batch := await claim():
                await claimed.put(batch)
            else:
                await asyncio.sleep(0.001)

    async def settling() -> None:
        nonlocal completed
        while True:
            batch = await claimed.get()
            await complete(batch)
            completed += len(batch)

    loops = [asyncio.create_task(loop()) for loop in (submitting, claiming, settling)]
    try:
        # The first tenth warms up: plans, caches, the tail of the backlog.
        await asyncio.wait(loops, timeout=seconds / 10)
        before, started = completed, time.perf_counter()
        await asyncio.wait(loops, timeout=seconds * 0.9, return_when=asyncio.FIRST_EXCEPTION)
        # In a short window a slow machine may have nothing to show.
        while completed == before and not any(loop.done() for loop in loops):
            await asyncio.wait(loops, timeout=0.1, return_when=asyncio.FIRST_EXCEPTION)
        rate = (completed - before) / (time.perf_counter() - started)
    finally:
        for loop in loops:
            loop.cancel()
        ended = await asyncio.gather(*loops, return_exceptions=True)
    for outcome in ended:
        if isinstance(outcome, Exception):
            raise outcome
    return round(rate)
