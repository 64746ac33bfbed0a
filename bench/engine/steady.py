"""A steady stream of delayed runs: each due two seconds after it was submitted; how late they start."""

import asyncio
import time

from bench.engine.full_cycle import LostOrDoubled
from bench.engine.load import Load
from bench.figures import Figures, minutes, spread
from bench.measurement import Bench
from bench.sizes import STAMP, Sizes

_DELAY_SECONDS = 2
#: The stream comes in small batches, this far apart.
_EVERY = 0.010


async def measure(bench: Bench) -> Figures:
    sizes = bench.sizes
    system = await bench.shared_system()
    bench.say(f"steady: {sizes.steady_rate:,} delayed runs a second for {minutes(sizes.steady_seconds)}")
    count = await system.call(stream, rate=sizes.steady_rate, seconds=sizes.steady_seconds)
    stamps = await system.stamps.wait_for(count, timeout=_DELAY_SECONDS + 10)
    if len(stamps) != count:
        raise LostOrDoubled(f"{count} submitted, {len(stamps)} started")
    return spread("steady_1000_lateness", [stamp.late_ms for stamp in stamps])


async def stream(load: Load, rate: int, seconds: float) -> int:
    """Submit so many a second; how many they were."""
    jobs = (await load.runtime()).jobs
    started = time.monotonic()
    submitted = 0
    while (gone := time.monotonic() - started) < seconds:
        wanted = round(gone * rate) - submitted
        if wanted > 0:
            runs = await load.new_runs(wanted, STAMP, b"{}", delay=_DELAY_SECONDS * 1_000_000)
            await jobs.submit_many(runs)
            submitted += wanted
        await asyncio.sleep(_EVERY)
    return submitted


def estimate(sizes: Sizes) -> float:
    return sizes.steady_seconds + _DELAY_SECONDS + 1
