"""How fast a sink that was away catches up: a backlog of events in PostgreSQL, published to a real server.

    python -m bench.experiments.events_out redis://… | kafka://… [events]

A throwaway PostgreSQL with durable settings. The runs are made, claimed and completed in batches while the sink is
only a name; then the publisher of a scheduler publishes all events. Also measured: processor time per event.
"""

import asyncio
import sys
import time
from random import Random

from mainspring.config.runtime import Runtime
from mainspring.config.servers.sinks import make_sinks
from mainspring.config.settings import Settings
from mainspring.core.dispatch.outbox import SINK
from mainspring.core.model.base.instant import DAY
from mainspring.core.model.runs.completion import complete_success
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.core.store import Demand, NewSession
from mainspring.core.submit.jobs import Jobs
from mainspring.features.events.service import Publisher
from tools.services.local_postgres import throwaway_postgres

BATCH = 500
#: Of each run: submitted, started, succeeded.
EACH = 3


def main() -> None:
    address, events = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 500_000
    with throwaway_postgres() as server:
        asyncio.run(measure(server.dsn, address, events // EACH))


async def measure(dsn: str, address: str, runs: int) -> None:
    clock = SystemClock()
    runtime = Runtime(Settings(store=dsn), clock)
    await runtime.open()
    kind = address.partition(":")[0]
    [sink] = make_sinks(**{"kafka": "", "redis": "", kind: address}, redis_length=10_000_000)
    await runtime.store.attach_reader(f"{SINK}{sink.name}", DAY)
    began = time.monotonic()
    await live(runtime, runs)
    print(f"{runs:,} runs lived in {time.monotonic() - began:.1f} s", flush=True)
    publisher = Publisher(runtime.store, sink, LocalWakeups(), clock, lambda: {0: 1}, DAY)
    began, used = time.monotonic(), time.process_time()
    async with publisher:
        while publisher.sent < runs * EACH:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        took, used = time.monotonic() - began, time.process_time() - used
    each = used / publisher.sent * 1e6
    print(
        f"{publisher.sent:,} events in {took:.1f} s: {publisher.sent / took:,.0f}/s; {each:.1f} µs of this process each"
    )
    await runtime.close()


async def live(runtime: Runtime, runs: int) -> None:
    jobs = Jobs(runtime.store, LocalWakeups(), runtime.clock, Random(1), shards=runtime.store.shards)
    worker = await runtime.store.open_session(NewSession(name="w", kind="worker", ttl=DAY))
    for claim, start in enumerate(range(0, runs, BATCH), 1):
        size = min(BATCH, runs - start)
        await jobs.submit_many([NewRun(id=run, task="noop") for run in jobs.new_run_ids([""] * size)])
        held = await runtime.store.claim(worker, claim, [Demand("default", size)])
        await runtime.store.complete([complete_success(run, None) for run in held])


if __name__ == "__main__":
    main()
