"""Failover: what a scheduler's death does to the ticks of crons, and a worker's death to its runs. PostgreSQL."""

import asyncio
import time

from bench.engine.crons import declare
from bench.engine.full_cycle import LostOrDoubled
from bench.engine.load import Load
from bench.figures import Figures, percentile
from bench.measurement import Bench
from bench.sizes import Sizes

_CRONS = 100
_SCHEDULERS = 3
#: Seconds of quiet before a process is killed, and of watching after it.
_BEFORE, _AFTER = 6, 10
_HELD = 50
_SECOND = 1_000_000


async def measure(bench: Bench) -> Figures:
    return await kill_scheduler(bench) | await kill_worker(bench)


async def kill_scheduler(bench: Bench) -> Figures:
    """Three schedulers, a hundred crons that tick every second; one of the three is killed."""
    async with bench.system("failover") as system:
        await system.start_services(schedulers=_SCHEDULERS)
        declared = await system.call(declare, count=_CRONS, expression="* * * * * *")
        bench.say("failover: a scheduler is about to be killed")
        await asyncio.sleep(_BEFORE)
        victim = system.children.of("scheduler")[0]
        system.children.forget(victim)
        killed = time.time_ns() // 1_000
        await asyncio.sleep(_AFTER)
        until = time.time_ns() // 1_000
        # The last two seconds are still on their way.
        first, last = declared // _SECOND + 3, until // _SECOND - 3
        stamps = [stamp for stamp in system.stamps.read() if first * _SECOND <= stamp.due <= last * _SECOND]
        ticks = await system.site.ticks()
    expected = set(range(first, last + 1))
    recorded = sum(len(expected & {tick // _SECOND for tick in found}) for found in ticks.values())
    if len(stamps) != len({stamp.run for stamp in stamps}):
        raise LostOrDoubled(f"{len(stamps)} starts of {len({stamp.run for stamp in stamps})} ticks")
    before = [stamp.late_ms for stamp in stamps if stamp.due < killed - 2 * _SECOND]
    after = [stamp.late_ms for stamp in stamps if stamp.due >= killed - 2 * _SECOND]
    return {
        "failover_scheduler_quiet_p99_ms": round(percentile(before, 99), 1),
        "failover_scheduler_latest_tick_ms": round(max(after), 1),
        "failover_scheduler_missing_ticks": _CRONS * len(expected) - min(recorded, len(stamps)),
    }


async def kill_worker(bench: Bench) -> Figures:
    """A worker holds runs and is killed; how long until all of them have been started by another one."""
    async with bench.system("failover") as system:
        await system.start_services(workers=1)
        await system.call(nap, count=_HELD)
        await system.stamps.wait_for(_HELD, timeout=10)
        second = system.start_worker()
        await second.ready()
        bench.say("failover: a worker is about to be killed")
        victim = system.children.of("worker")[0]
        # In the middle of nothing: some time after its last beat, as it would happen.
        await asyncio.sleep(1.5)
        system.stamps.clear()
        system.children.forget(victim)
        killed = time.time_ns() // 1_000
        stamps = await system.stamps.wait_for(_HELD, timeout=30)
    again = {stamp.run: stamp.started for stamp in stamps if stamp.pid == second.pid}
    if len(again) < _HELD:
        raise LostOrDoubled(f"{_HELD} runs were held, {len(again)} were started again")
    return {"failover_worker_seconds": round((max(again.values()) - killed) / 1e6, 2)}


async def nap(load: Load, count: int) -> None:
    """Runs that take longer than anybody here waits."""
    jobs = (await load.runtime()).jobs
    await jobs.submit_many(await load.new_runs(count, "nap", b'{"seconds":300}'))


def estimate(sizes: Sizes) -> float:
    return _BEFORE + _AFTER + 30
