"""The timing wheel alone, in a fresh process: what a million entries weigh, and what one costs."""

import random
import time

from bench.engine.load import Load
from bench.figures import Figures
from bench.measurement import Bench
from bench.sizes import Sizes
from mainspring.core.model.base.instant import MILLISECOND, SECOND
from mainspring.core.scheduler.wheel import TimingWheel
from mainspring.core.worker.executors.memory import resident_bytes

_HORIZON = 60 * SECOND


async def measure(bench: Bench) -> Figures:
    async with bench.system("wheel", connected=False) as system:
        bench.say(f"wheel: {bench.sizes.wheel:,} entries")
        memory, micros = await system.call(turn, entries=bench.sizes.wheel)
    return {"wheel_1m_memory_mb": round(memory / 1e6, 1), "wheel_insert_fire_us": round(micros, 2)}


async def turn(load: Load, entries: int) -> tuple[int, float]:
    """Put entries due within a minute into a wheel and take them out, a millisecond a time; bytes, and µs for each."""
    now = time.time_ns() // 1_000
    draw = random.Random(1)
    before = resident_bytes()
    wheel: TimingWheel[int] = TimingWheel(now)
    dues = [now + draw.randrange(_HORIZON) for _ in range(entries)]
    started = time.perf_counter()
    for due in dues:
        wheel.insert(due, due)
    took = time.perf_counter() - started
    memory = resident_bytes() - before
    fired = 0
    started = time.perf_counter()
    for moment in range(now, now + _HORIZON + 2 * MILLISECOND, MILLISECOND):
        fired += len(wheel.advance(moment))
    took += time.perf_counter() - started
    assert fired == entries
    return memory, took * 1e6 / entries


def estimate(sizes: Sizes) -> float:
    return sizes.wheel / 500_000 + 1
