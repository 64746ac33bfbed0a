"""What a store over three PostgreSQL servers costs beside one, on the same machine: processor time per job, in total.

    python -m bench.experiments.several_servers [jobs] [rounds]

Real servers with durable settings, started for this alone. One process submits, claims and completes in batches.
It counts the processor time of that process and of all processes of the servers, in turns, and prints medians.
"""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from statistics import median

import msgspec

from mainspring.config.runtime import Runtime
from mainspring.config.settings import Settings
from mainspring.core.model.base.instant import DAY
from mainspring.core.model.runs.completion import complete_success
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.core.store import Demand, NewSession
from mainspring.core.submit.jobs import Jobs
from tools.services.local_postgres import LocalPostgres, throwaway_postgres

BATCH = 200
TENANTS = 12
KEYS = 50
ROUNDS = 4
#: Jobs a server before it is counted.
WARM = 4_000
#: Of the client, of the servers.
Cost = tuple[float, float]
_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 60_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(throwaway_postgres()) for _ in range(4)]
        print(f"{jobs:,} jobs in batches of {BATCH}, {TENANTS} tenants; µs of processor time a job: client + servers")
        print(f"{'load':8} {'one server':>18} {'three':>18} {'more':>8}")
        for load in ("free", "keyed"):
            one: list[Cost] = []
            three: list[Cost] = []
            # In turns: what else the machine does falls on both.
            for _ in range(rounds):
                one.append(asyncio.run(cost(servers[:1], servers[0].dsn, jobs, load)))
                addresses = msgspec.json.encode([server.dsn for server in servers[1:]]).decode()
                three.append(asyncio.run(cost(servers[1:], addresses, jobs, load)))
            more = median(map(sum, three)) / median(map(sum, one)) - 1
            print(f"{load:8} {describe_costs(one):>18} {describe_costs(three):>18} {more:+8.1%}", flush=True)


def describe_costs(costs: Sequence[Cost]) -> str:
    client, servers = (median(column) for column in zip(*costs, strict=True))
    return f"{client:.0f} + {servers:.0f} = {median(map(sum, costs)):.0f}"


async def cost(servers: Sequence[LocalPostgres], store: str, jobs: int, load: str) -> Cost:
    runtime = Runtime(Settings(store=store))
    await runtime.open()
    try:
        # Plans, names and connections are there before it is counted, on each server: PostgreSQL plans a statement
        # again for the first five times on a connection.
        await cycle(runtime, WARM * len(servers), load)
        before = spent(servers)
        await cycle(runtime, jobs, load)
        after = spent(servers)
        return (after[0] - before[0]) * 1e6 / jobs, (after[1] - before[1]) * 1e6 / jobs
    finally:
        await runtime.close()


async def cycle(runtime: Runtime, jobs: int, load: str) -> None:
    store = runtime.store
    maker = Jobs(
        store,
        LocalWakeups(),
        SystemClock(),
        Random(),
        shards=store.shards,
        placement_groups=getattr(store, "place_count", 0),
    )
    session = await store.open_session(NewSession(name="bench", kind="worker", ttl=DAY))

    async def submit() -> None:
        for number in range(jobs // BATCH):
            await store.submit(batch(maker, f"tenant-{number % TENANTS}", load))

    async def work() -> None:
        done = claims = 0
        while done < jobs:
            claims += 1
            held = await store.claim(session, claims, [Demand("bench", BATCH)])
            if not held:
                # As a worker does: what a claim without an answer has started comes back.
                await store.heartbeat(session, DAY, [], [], claims)
                await asyncio.sleep(0.005)
                continue
            await store.complete([complete_success(run, None) for run in held])
            done += len(held)

    # A backlog first: under load claims are full, with any number of servers.
    await submit()
    await work()
    await store.close_session(session)


def batch(maker: Jobs, tenant: str, load: str) -> list[NewRun]:
    keys = [f"key-{number % KEYS}" if load == "keyed" else "" for number in range(BATCH)]
    ids = maker.new_run_ids(keys, tenant=tenant)
    return [
        NewRun(id=run_id, task="bench", queue="bench", tenant=tenant, policy=policy(key))
        for run_id, key in zip(ids, keys, strict=True)
    ]


_policies: dict[str, RunPolicy] = {}


def policy(key: str) -> RunPolicy:
    return _policies.setdefault(key, RunPolicy(ordering_key=key))


def spent(servers: Sequence[LocalPostgres]) -> Cost:
    """Seconds of the processor that this process and the servers have used."""
    return time.process_time(), sum(_of_server(server) for server in servers)


def _of_server(server: LocalPostgres) -> float:
    leader = server.pid
    if leader is None:
        return 0.0
    total = 0.0
    for pid, fields in _processes():
        if pid == leader:
            # With those that have ended.
            total += sum(int(field) for field in fields[11:15]) / _TICKS
        elif int(fields[1]) == leader:
            total += sum(int(field) for field in fields[11:13]) / _TICKS
    return total


def _processes() -> Iterator[tuple[int, list[str]]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                yield int(entry.name), (entry / "stat").read_text().rpartition(")")[2].split()


if __name__ == "__main__":
    main()
