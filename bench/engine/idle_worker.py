"""What an idle worker costs: its processor time and its transactions, by how many queues it serves. PostgreSQL."""

import asyncio
import time

from bench.figures import Figures
from bench.measurement import Bench
from bench.sizes import Sizes

QUEUES = (1, 6, 20, 50)
#: Seconds for a worker to settle after it is ready, and for PostgreSQL to count what it did.
_SETTLE = 3


async def measure(bench: Bench) -> Figures:
    found: Figures = {}
    for count in QUEUES:
        found |= await measure_queues(bench, count)
    return found


async def measure_queues(bench: Bench, count: int) -> Figures:
    """One worker with so many queues of the default size, and nothing to do."""
    seconds = bench.sizes.idle_worker_seconds
    name = f"idle_worker_{count}_queues"
    async with bench.system("idle", connected=False) as system:
        worker = system.start_worker([f"idle-{number}" for number in range(count)])
        await worker.ready()
        await asyncio.sleep(_SETTLE)
        bench.say(f"an idle worker with {count} queues: {seconds:.0f} s")
        began = time.monotonic()
        processor, transactions = worker.processor_seconds, await system.site.transactions()
        await asyncio.sleep(seconds)
        took = time.monotonic() - began
        found: Figures = {f"{name}_processor_percent": round(100 * (worker.processor_seconds - processor) / took, 2)}
        # The server counts what a session did when that has been idle for a moment.
        after = await system.site.transactions()
        if transactions is not None and after is not None:
            found[f"{name}_transactions_per_s"] = round((after - transactions) / took, 1)
        return found


def estimate(sizes: Sizes) -> float:
    return len(QUEUES) * (sizes.idle_worker_seconds + _SETTLE + 4)
