"""Ten thousand crons that are due at the same second; how late their handlers start."""

import asyncio
import time

from bench.engine.full_cycle import LostOrDoubled
from bench.engine.load import Load
from bench.figures import Figures, spread
from bench.measurement import Bench
from bench.sizes import QUEUE, STAMP, Sizes
from mainspring.core.model.schedules.job import JobSpec, NewJob
from mainspring.core.model.schedules.schedule import CronSchedule

_BATCH = 500
#: What declaring them may take, and how long the last of them is waited for.
_DECLARING = 25
_TIMEOUT = 60


async def measure(bench: Bench) -> Figures:
    """The first tick of all of them; on a system of their own, which is thrown away before the second."""
    count = bench.sizes.crons
    async with bench.system("crons") as system:
        await system.start_services(workers=bench.sizes.workers)
        left = 60 - time.time() % 60
        if not bench.sizes.quick and left < _DECLARING:
            bench.say("crons: waiting for the minute to turn")
            await asyncio.sleep(left + 0.5)
        # A quick run does not wait for a full minute: any second is as good as :00.
        second = (int(time.time()) + _quick_seconds(count)) % 60 if bench.sizes.quick else 0
        bench.say(f"crons: declaring {count:,}")
        declared = await system.call(declare, count=count, expression=f"{second} * * * * *")
        bench.say(f"crons: waiting for :{second:02}")
        tick = (declared // 60_000_000) * 60_000_000 + second * 1_000_000
        tick += 60_000_000 if tick <= declared else 0
        await asyncio.sleep(max(0.0, tick / 1e6 - time.time()))
        stamps = await system.stamps.wait_for(count, timeout=_TIMEOUT)
    late = [stamp.late_ms for stamp in stamps if stamp.due == tick]
    if len(late) != count or len(stamps) != count:
        raise LostOrDoubled(f"{count} crons due, {len(late)} started for that tick, {len(stamps)} in all")
    return spread("herd_10000_crons_lateness", late)


async def declare(load: Load, count: int, expression: str) -> int:
    """Make the jobs; when the last of them was made, in microseconds since 1970."""
    jobs = (await load.runtime()).jobs
    schedule = CronSchedule(expression=expression)
    for start in range(0, count, _BATCH):
        names = [f"cron-{number}" for number in range(start, min(count, start + _BATCH))]
        await jobs.put_jobs(
            [
                NewJob(
                    id=jobs.new_job_id("default", name),
                    spec=JobSpec(name=name, task=STAMP, schedule=schedule, queue=QUEUE),
                    payload=b"{}",
                )
                for name in names
            ]
        )
    return time.time_ns() // 1_000


def estimate(sizes: Sizes) -> float:
    return _quick_seconds(sizes.crons) + 3 if sizes.quick else 75


def _quick_seconds(count: int) -> int:
    """How far ahead a second must be for all crons to be declared before it."""
    return 5 + count // 400
