"""Full cycle: submitted, claimed, run, recorded; over a steady window, beside the ceiling of the same minute."""

import asyncio
import time

from bench.engine import backlog, ceiling
from bench.figures import Figures, minutes
from bench.measurement import Bench
from bench.sites.system import System
from bench.sizes import Sizes

_DRAIN_SECONDS = 60
_PARTS = 6


class LostOrDoubled(Exception):
    """The figures are worth nothing: runs are missing or were recorded twice."""


async def measure(bench: Bench) -> Figures:
    """One round: the cycle, then the same statements without anything around them."""
    figures = await cycle(bench)
    figures |= await ceiling.measure(bench)
    full, bare = figures["full_cycle_jobs_per_s"], figures["bare_sql_jobs_per_s"]
    assert isinstance(full, int | float)
    assert isinstance(bare, int | float)
    figures["full_cycle_of_ceiling"] = round(full / bare, 3)
    return figures


async def cycle(bench: Bench) -> Figures:
    sizes = bench.sizes
    async with bench.system("full") as system:
        await system.start_services(workers=sizes.workers)
        await system.call(backlog.keep_ahead, backlog=sizes.backlog, batch=1_000)
        bench.say(f"full cycle: warming up for {minutes(sizes.warm_up)}")
        await asyncio.sleep(sizes.warm_up)
        await _under_way(system)
        bench.say(f"full cycle: {minutes(sizes.seconds)}")
        logged = await system.site.logged()
        used, since = system.processor_seconds(), _now()
        await asyncio.sleep(sizes.seconds)
        until = _now()
        logged = None if logged is None else (await system.site.logged() or 0) - logged
        used = {kind: seconds - used.get(kind, 0) for kind, seconds in system.processor_seconds().items()}
        memory = system.memory()
        kept = await system.call(backlog.stop_keeping_ahead)
        bench.say("full cycle: counting what was recorded")
        await verify(system, kept["submitted"])
        remains = await system.site.kept()
        ended = await system.site.ended(since, until)
        width = (until - since) // _PARTS
        parts = (await system.site.ended_per(width, since))[:_PARTS]
    return {
        "full_cycle_jobs_per_s": round(ended / ((until - since) / 1e6)),
        # Whether it was steady: the same window in parts.
        "full_cycle_jobs_per_s_in_parts": [round(count / (width / 1e6)) for count in parts],
        "full_cycle_processor_us_per_job": {
            kind: round(seconds * 1e6 / max(ended, 1), 1) for kind, seconds in used.items()
        },
        # What the rest of capacity is made of: a row that stays, and what a standby is sent.
        "full_cycle_kept_bytes_per_job": {
            "tables": round(remains.tables / max(kept["submitted"], 1)),
            "indexes": round(remains.indexes / max(kept["submitted"], 1)),
        },
        "full_cycle_log_bytes_per_job": None if logged is None else round(logged / max(ended, 1)),
        "full_cycle_fewest_queued": kept["fewest"],
        "memory_mb_full_cycle": memory,
    }


async def _under_way(system: System) -> None:
    """On a busy machine the first process may start later than the warm-up is long."""
    give_up_at = time.monotonic() + _DRAIN_SECONDS
    while not (await system.site.span()).runs and time.monotonic() < give_up_at:
        system.children.check()
        await asyncio.sleep(0.1)


async def verify(system: System, submitted: int) -> None:
    """Everything that was submitted has ended, once."""
    give_up_at = time.monotonic() + _DRAIN_SECONDS
    while await system.site.live() and time.monotonic() < give_up_at:
        system.children.check()
        await asyncio.sleep(0.1)
    ended = (await system.site.span()).runs
    unfinished, doubles = await system.site.unfinished(), await system.site.doubles()
    if ended != submitted or unfinished or doubles:
        raise LostOrDoubled(f"{submitted} submitted, {ended} ended, {unfinished} unfinished, {doubles} recorded twice")


def estimate(sizes: Sizes) -> float:
    return sizes.warm_up + sizes.seconds + sizes.ceiling_seconds + 5


def _now() -> int:
    return time.time_ns() // 1_000
