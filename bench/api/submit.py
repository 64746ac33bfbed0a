"""Submitting over HTTP: one job per request, and many, without workers. Checks that the store has the answered jobs."""

from collections.abc import Collection
from typing import Any

from bench.api import load as api_load
from bench.engine.full_cycle import LostOrDoubled
from bench.figures import Figures, minutes
from bench.measurement import Bench
from bench.sites.system import System
from bench.sizes import Sizes

_ID = 32


async def measure_single(bench: Bench) -> Figures:
    sizes = bench.sizes
    async with bench.system("post", connected=False) as system:
        port = await system.start_api()
        bench.say(f"api: one job a request over {sizes.api_connections} connections, {minutes(sizes.api_seconds)}")
        before = system.processor_seconds()
        result = await single(system, port, sizes)
        ids = ids_of(result)
        used = used_per_job(system, before, len(ids))
        await verify(system, ids)
        memory = system.children.of("api")[0].resident_mb
    return {
        "api_post_jobs_per_s": round(result["rate"]),
        **{key.replace("api_", "api_post_"): value for key, value in result["latency"].items()},
        "api_post_processor_us_per_job": used,
        "api_post_accepted": len(ids),
        "api_memory_mb": memory,
    }


async def measure_batch(bench: Bench) -> Figures:
    sizes = bench.sizes
    async with bench.system("batch", connected=False) as system:
        port = await system.start_api()
        bench.say(
            f"api: batches of {sizes.api_batch:,} over {sizes.api_batch_connections} connections, "
            f"{minutes(sizes.api_seconds)}"
        )
        result = await system.call(
            api_load.submit,
            port=port,
            seconds=sizes.api_seconds,
            warm_up=sizes.api_warm_up,
            connections=sizes.api_batch_connections,
            batch=sizes.api_batch,
        )
        ids = ids_of(result)
        await verify(system, ids)
    return {
        "api_batch_jobs_per_s": round(result["rate"] * sizes.api_batch),
        **{key.replace("api_", "api_batch_"): value for key, value in result["latency"].items()},
        "api_batch_accepted": len(ids),
    }


async def single(system: System, port: int, sizes: Sizes) -> dict[str, Any]:
    """One job a request: the load that other measurements have, too."""
    result: dict[str, Any] = await system.call(
        api_load.submit,
        port=port,
        seconds=sizes.api_seconds,
        warm_up=sizes.api_warm_up,
        connections=sizes.api_connections,
        batch=None,
    )
    return result


def used_per_job(system: System, before: dict[str, float], jobs: int) -> dict[str, float]:
    """Microseconds of a processor by kind of process. Of a noisy machine they tell more than a rate."""
    return {
        kind: round((seconds - before.get(kind, 0)) * 1e6 / max(jobs, 1), 1)
        for kind, seconds in system.processor_seconds().items()
    }


def ids_of(result: dict[str, Any]) -> list[str]:
    joined: str = result["ids"]
    return [joined[start : start + _ID] for start in range(0, len(joined), _ID)]


async def verify(system: System, accepted: Collection[str]) -> None:
    """The store holds what was accepted, each once, and nothing else."""
    system.children.check()
    compare(accepted, await system.site.run_ids())


def compare(accepted: Collection[str], stored: Collection[str]) -> None:
    missing, more = set(accepted) - set(stored), set(stored) - set(accepted)
    if missing or more or len(accepted) != len(stored):
        raise LostOrDoubled(
            f"{len(accepted)} accepted, {len(stored)} stored, {len(missing)} of the accepted missing, "
            f"{len(more)} that nobody was told of"
        )


def estimate(sizes: Sizes) -> float:
    return sizes.api_warm_up + sizes.api_seconds + 3
