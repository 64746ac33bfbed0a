"""Claim cost: a claim of 500 queued runs beside none, a million and ten million runs that wait for their time.

The stores exist at the same time and are claimed from in turn, so other load on the machine affects all of them.
"""

import random
import time
from contextlib import AsyncExitStack
from pathlib import Path

from bench.engine import future
from bench.engine.bare import CLAIM, open_bare
from bench.engine.load import Load
from bench.figures import Figures, percentile
from bench.machine import free_bytes
from bench.measurement import Bench
from bench.sites.system import System
from bench.sizes import Sizes

_CHUNK = 250_000
_PAYLOAD_BYTES = 100
#: A scheduled run of that size with its indexes, and its share of the write-ahead log; and what must stay free.
_BYTES_EACH = 700
_SPARE = 6 << 30


async def measure(bench: Bench) -> Figures:
    figures: Figures = {}
    skipped: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        systems: dict[int, System] = {0: await stack.enter_async_context(bench.system("claim"))}
        for count in bench.sizes.future:
            if (reason := _no_room(bench.place.directory, count)) is not None:
                skipped[f"claim_{_name(count)}_future_ratio"] = reason
                continue
            systems[count] = await stack.enter_async_context(bench.system("claim"))
            await fill(bench, systems[count], count, _PAYLOAD_BYTES)
        bench.say(
            f"claim: {bench.sizes.claims} claims of {CLAIM} beside {', '.join(f'{n:,}' for n in systems)} future runs"
        )
        took: dict[int, list[float]] = {count: [] for count in systems}
        for turn in range(bench.sizes.claims // 2 + 1):
            order = list(systems)
            random.shuffle(order)
            for count in order:
                times = await systems[count].call(claims)
                # The first turn plans, and reads what is cold.
                took[count] += times if turn else []
    medians = {count: percentile(times, 50) for count, times in took.items()}
    for count, median in medians.items():
        figures[f"claim_{_name(count)}_future_ms"] = round(median, 3)
        if count:
            figures[f"claim_{_name(count)}_future_ratio"] = round(median / medians[0], 3)
    if skipped:
        figures["skipped"] = skipped
    return figures


async def fill(bench: Bench, system: System, count: int, payload_bytes: int) -> None:
    """Have so many runs wait for their time."""
    for first in range(0, count, _CHUNK):
        bench.say(f"claim: {first:,} of {count:,} future runs made")
        chunk = min(_CHUNK, count - first)
        await system.call(future.add, first=first, count=chunk, total=count, payload_bytes=payload_bytes)
    await system.call(future.settle_down)


async def claims(load: Load) -> list[float]:
    """Queue a batch and claim it in two; the milliseconds of each claim."""
    bare = load.kept.get("bare")
    if bare is None:
        bare = load.kept["bare"] = await open_bare(load)
    await bare.submit()
    took = []
    for _ in range(2):
        started = time.perf_counter_ns()
        held = await bare.claim()
        took.append((time.perf_counter_ns() - started) / 1e6)
        assert len(held) == CLAIM
        await bare.complete(held)
    return took


def estimate(sizes: Sizes) -> float:
    return sum(sizes.future) / 90_000 + sizes.claims * 0.05 * (1 + len(sizes.future)) + 2


def _name(count: int) -> str:
    return f"{count // 1_000_000}m" if count and count % 1_000_000 == 0 else str(count)


def _no_room(directory: Path | None, count: int) -> str | None:
    if directory is None:
        return None
    needed, free = count * _BYTES_EACH + _SPARE, free_bytes(directory)
    if free >= needed:
        return None
    return f"needs {needed / 1e9:.0f} GB of disk, {free / 1e9:.0f} GB are free"
