"""Drain: how fast a queue that is full already is worked off, and what the processes weigh after it."""

import asyncio
import time

from bench.engine.full_cycle import LostOrDoubled
from bench.engine.load import Load
from bench.figures import Figures
from bench.measurement import Bench
from bench.sizes import Sizes

_BATCH = 1_000
_SLOWEST = 500


async def measure(bench: Bench) -> Figures:
    count = bench.sizes.drain
    async with bench.system("drain") as system:
        bench.say(f"drain: queueing {count:,} runs")
        await system.call(fill, count=count)
        bench.say(f"drain: working off {count:,} runs")
        await system.start_services(workers=bench.sizes.drain_workers)
        give_up_at = time.monotonic() + count / _SLOWEST + 30
        while await system.site.live() and time.monotonic() < give_up_at:
            system.children.check()
            await asyncio.sleep(0.25)
        memory = system.memory()
        span = await system.site.span()
        unfinished, doubles = await system.site.unfinished(), await system.site.doubles()
    if span.runs != count or unfinished or doubles:
        raise LostOrDoubled(f"{count} queued, {span.runs} ended, {unfinished} unfinished, {doubles} recorded twice")
    return {
        # From the first claim to the last recorded end: starting the processes does not count.
        "drain_jobs_per_s": round(count / span.seconds),
        "memory_mb": memory,
    }


async def fill(load: Load, count: int) -> None:
    """Queue runs, as fast as it goes."""
    runtime = await load.runtime()
    left = count
    while left:
        size = min(left, _BATCH)
        await runtime.jobs.submit_many(await load.new_runs(size))
        left -= size


def estimate(sizes: Sizes) -> float:
    return sizes.drain / 35_000 + sizes.drain / 14_000 + 4
