"""A herd: thousands of runs due at the same instant; how late each of them starts."""

import time

from bench.engine.full_cycle import LostOrDoubled
from bench.engine.load import Load
from bench.figures import Figures, spread
from bench.measurement import Bench
from bench.sizes import STAMP, Sizes

_AHEAD_SECONDS = 3
_TIMEOUT = 30


async def measure(bench: Bench) -> Figures:
    count = bench.sizes.herd
    system = await bench.shared_system()
    bench.say(f"herd: {count:,} runs due at one instant")
    await system.call(schedule, count=count)
    stamps = await system.stamps.wait_for(count, timeout=_AHEAD_SECONDS + _TIMEOUT)
    if len(stamps) != count or len({stamp.run for stamp in stamps}) != count:
        raise LostOrDoubled(f"{count} due, {len(stamps)} started")
    return spread("herd_5000_lateness", [stamp.late_ms for stamp in stamps])


async def schedule(load: Load, count: int) -> None:
    jobs = (await load.runtime()).jobs
    at = time.time_ns() // 1_000 + _AHEAD_SECONDS * 1_000_000
    await jobs.submit_many(await load.new_runs(count, STAMP, b"{}", at=at))


def estimate(sizes: Sizes) -> float:
    return _AHEAD_SECONDS + 2
