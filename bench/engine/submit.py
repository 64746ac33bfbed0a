"""Submitting: one after the other, many at once, and in batches, without workers."""

import asyncio
import time

from bench.engine.load import Load
from bench.figures import Figures, minutes
from bench.measurement import Bench
from bench.sizes import Sizes


async def measure(bench: Bench) -> Figures:
    sizes = bench.sizes
    async with bench.system("submit") as system:
        bench.say(f"submit: one by one, {minutes(sizes.submit_seconds)}")
        single = await system.call(concurrently, seconds=sizes.submit_seconds, tasks=1)
        bench.say(f"submit: {sizes.submit_tasks} at once, {minutes(sizes.submit_seconds)}")
        concurrent = await system.call(concurrently, seconds=sizes.submit_seconds, tasks=sizes.submit_tasks)
        bench.say(f"submit: batches of {sizes.submit_batch:,}, {minutes(sizes.submit_seconds)}")
        batch = await system.call(in_batches, seconds=sizes.submit_seconds, size=sizes.submit_batch)
    return {
        "submit_single_jobs_per_s": single,
        "submit_concurrent_jobs_per_s": concurrent,
        "submit_batch_jobs_per_s": batch,
    }


async def concurrently(load: Load, seconds: float, tasks: int) -> int:
    """So many tasks, each of which submits a run when its last one is committed."""
    jobs = (await load.runtime()).jobs
    await jobs.submit((await load.new_runs(1))[0])
    submitted = 0
    started = time.perf_counter()
    until = started + seconds

    async def submitting() -> None:
        nonlocal submitted
        while time.perf_counter() < until:
            await jobs.submit((await load.new_runs(1))[0])
            submitted += 1

    await asyncio.gather(*(submitting() for _ in range(tasks)))
    return round(submitted / (time.perf_counter() - started))


async def in_batches(load: Load, seconds: float, size: int) -> int:
    jobs = (await load.runtime()).jobs
    await jobs.submit_many(await load.new_runs(size))
    submitted = 0
    started = time.perf_counter()
    while time.perf_counter() < started + seconds:
        await jobs.submit_many(await load.new_runs(size))
        submitted += size
    return round(submitted / (time.perf_counter() - started))


def estimate(sizes: Sizes) -> float:
    return 3 * sizes.submit_seconds + 2
