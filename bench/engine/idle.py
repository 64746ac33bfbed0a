"""Idle latency: one run at a time, from before ``submit`` is called to the first line of its handler."""

import asyncio
import random
import time

from bench.engine.full_cycle import LostOrDoubled
from bench.engine.load import Load
from bench.figures import Figures, spread
from bench.measurement import Bench
from bench.sizes import STAMP, Sizes

_SHORTEST, _LONGEST = 0.020, 0.060
_WARM_UP = 5


async def measure(bench: Bench) -> Figures:
    samples = bench.sizes.idle_samples
    system = await bench.shared_system()
    bench.say(f"idle latency: {samples} runs, one at a time")
    sent: dict[str, int] = await system.call(one_by_one, samples=samples + _WARM_UP)
    stamps = await system.stamps.wait_for(samples + _WARM_UP, timeout=10)
    started = {stamp.run: stamp.started for stamp in stamps}
    if len(started) < len(sent):
        raise LostOrDoubled(f"{len(sent)} submitted, {len(started)} started")
    latencies = [(started[run] - before) / 1_000 for run, before in sent.items()]
    return spread("idle_latency", latencies[_WARM_UP:])


async def one_by_one(load: Load, samples: int) -> dict[str, int]:
    """Submit, wait a random while, submit; when each was about to be submitted, in microseconds since 1970."""
    jobs = (await load.runtime()).jobs
    sent: dict[str, int] = {}
    for _ in range(samples):
        await asyncio.sleep(random.uniform(_SHORTEST, _LONGEST))
        before = time.time_ns() // 1_000
        run = (await load.new_runs(1, STAMP, b"{}"))[0]
        await jobs.submit(run)
        sent[run.id] = before
    return sent


def estimate(sizes: Sizes) -> float:
    return sizes.idle_samples * (_SHORTEST + _LONGEST) / 2 + 3
