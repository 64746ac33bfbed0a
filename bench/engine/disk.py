"""What a scheduled run with a payload of 500 bytes takes on disk: tables, indexes and all."""

from bench.engine.claim_cost import fill
from bench.figures import Figures
from bench.measurement import Bench
from bench.sizes import Sizes

_PAYLOAD_BYTES = 500
_MANY = 100_000_000


async def measure(bench: Bench) -> Figures:
    count = bench.sizes.stored
    async with bench.system("disk") as system:
        before = sum((await system.site.bytes()).values())
        await fill(bench, system, count, _PAYLOAD_BYTES)
        each = (sum((await system.site.bytes()).values()) - before) / count
    return {"bytes_per_scheduled_job": round(each), "gb_for_100m_scheduled_jobs": round(each * _MANY / 1e9)}


def estimate(sizes: Sizes) -> float:
    return sizes.stored / 100_000 + 1
