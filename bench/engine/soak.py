"""Soak: the full cycle for half an hour; whether it gets slower, and what grows."""

import asyncio
import time

from bench.engine import backlog
from bench.engine.full_cycle import verify
from bench.figures import Figures, minutes
from bench.measurement import Bench
from bench.sizes import Sizes

_MINUTE = 60
#: The rate at the end is that of the last five minutes.
_LAST = 5


async def measure(bench: Bench) -> Figures:
    sizes = bench.sizes
    minute = min(_MINUTE, sizes.soak_seconds / 10)
    async with bench.system("soak") as system:
        await system.start_services(workers=sizes.workers)
        await system.call(backlog.keep_ahead, backlog=sizes.backlog, batch=1_000)
        started = time.time_ns() // 1_000
        until = time.monotonic() + sizes.soak_seconds
        first_size: dict[str, int] = {}
        first_dead: dict[str, int] = {}
        while (left := until - time.monotonic()) > 0:
            bench.say(f"soak: {minutes(left)} left")
            await asyncio.sleep(min(left, minute))
            system.children.check()
            if not first_size:
                first_size, first_dead = dict(await system.site.bytes()), dict(await system.site.dead_rows())
        ended_at = time.time_ns() // 1_000
        last_size, last_dead = dict(await system.site.bytes()), dict(await system.site.dead_rows())
        memory = system.memory()
        kept = await system.call(backlog.stop_keeping_ahead)
        bench.say("soak: counting what was recorded")
        await verify(system, kept["submitted"])
        whole = (ended_at - started) // round(minute * 1e6)
        counts = (await system.site.ended_per(round(minute * 1e6), started))[:whole]
    rates = [round(count / minute) for count in counts]
    last = rates[-_LAST:]
    return {
        "soak_jobs_per_s_by_minute": rates,
        "soak_last_to_second_minute": round(sum(last) / len(last) / max(rates[1], 1), 3),
        "soak_jobs": kept["submitted"],
        "soak_bytes_first_minute": first_size,
        "soak_bytes_last_minute": last_size,
        "soak_dead_rows_first_minute": first_dead,
        "soak_dead_rows_last_minute": last_dead,
        "soak_memory_mb": memory,
    }


def estimate(sizes: Sizes) -> float:
    return sizes.soak_seconds + 60
