"""``python -m examples.distributed_cron``: the leader is killed, and every tick happens once in every data center."""

import argparse
import asyncio
import os
from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2

from examples.distributed_cron.application import DATACENTERS, rehearsal
from examples.processes import Processes, kill, run, say

CONTROLLERS = ("controller-1", "controller-2", "controller-3")


async def main(seconds: int) -> bool:
    settings = rehearsal.settings()
    address = f"http://{settings.host}:{settings.port}"
    # This process answers HTTP, and nothing else.
    running = rehearsal.running(scheduler=False, worker=False, http=True)
    async with running, httpx2.AsyncClient(base_url=address, timeout=60) as api:
        with Processes(Path("distributed_cron.log")) as processes:
            say(f"The API is at {address}/docs, what the others say in distributed_cron.log")
            controllers = {name: processes.start("scheduler", "--name", name) for name in CONTROLLERS}
            for place in DATACENTERS:
                processes.start("worker", "examples.distributed_cron:rehearsal", "--datacenter", place)
            await until_all_are_there(api)
            leader = await leader_other_than("", api)
            say(f"Three schedulers, of which {leader} leads; workers in {', '.join(DATACENTERS)}")
            since = datetime.now(UTC)
            await asyncio.sleep(seconds / 2)
            kill(controllers[leader])
            killed = datetime.now(UTC)
            say(f"{leader} was killed")
            say(f"{await leader_other_than(leader, api)} leads")
            await asyncio.sleep(seconds / 2)
            names = [spec.name for spec, _ in rehearsal.schedules()]
            for name in names:
                await until_it_ran_everywhere(name, api, killed)
            return all([await judge(name, api, since, killed) for name in names])


async def until_all_are_there(api: httpx2.AsyncClient) -> None:
    schedulers = places = 0
    while (schedulers, places) != (len(CONTROLLERS), len(DATACENTERS)):
        await asyncio.sleep(0.2)
        schedulers = len((await get(api, "/v1/schedulers"))["items"])
        places = sum(place["health"] == "ok" for place in (await get(api, "/v1/datacenters"))["items"])


async def leader_other_than(dead: str, api: httpx2.AsyncClient) -> str:
    while True:
        for scheduler in (await get(api, "/v1/schedulers"))["items"]:
            if scheduler["shards"] and scheduler["name"] != dead:
                return str(scheduler["name"])
        await asyncio.sleep(0.05)


async def until_it_ran_everywhere(schedule: str, api: httpx2.AsyncClient, since: datetime) -> None:
    """Wait for a run of a later tick in each data center: a busy computer may need more time than the seconds given."""
    job = await job_of(schedule, api)
    places: set[str] = set()
    while places != set(DATACENTERS):
        await asyncio.sleep(0.2)
        runs = (await get(api, f"/v1/jobs/{job}/runs", limit="1000"))["items"]
        done = [run for run in runs if run["status"] == "succeeded" and datetime.fromisoformat(run["tick"]) > since]
        places = {run["datacenter"] for run in done}


async def job_of(schedule: str, api: httpx2.AsyncClient) -> str:
    [job] = (await get(api, "/v1/jobs", text=schedule, kind="recurring"))["items"]
    return str(job["jobId"])


async def judge(schedule: str, api: httpx2.AsyncClient, since: datetime, killed: datetime) -> bool:
    """By the ledger, which has a row for every tick in every data center."""
    job = await job_of(schedule, api)
    rows = (await get(api, f"/v1/jobs/{job}/ledger", since=since.isoformat(), limit="1000"))["items"]
    times = Counter((datetime.fromisoformat(row["scheduledFor"]), row["datacenter"]) for row in rows)
    ticks = sorted({tick for tick, _ in times})
    gaps = {later - earlier for earlier, later in pairwise(ticks)}
    twice = sum(count > 1 for count in times.values())
    missing = len(ticks) * len(DATACENTERS) - len(times) + (len(gaps) != 1)
    say(
        f"  {schedule:15} {len(ticks):3} ticks in {len(DATACENTERS)} data centers, "
        f"{sum(tick > killed for tick in ticks)} of them after the kill: {missing} missing, {twice} twice"
    )
    return not missing and not twice and ticks[-1] > killed


async def get(api: httpx2.AsyncClient, path: str, **query: str) -> Any:
    return (await api.get(path, params=query)).raise_for_status().json()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.distributed_cron", description=__doc__)
    parser.add_argument("--fast", action="store_true", help="four seconds instead of thirty, and a shorter lease")
    fast = parser.parse_args().fast
    if fast:
        os.environ.setdefault("MAINSPRING_SCHEDULER_LEASE", "800ms")
    run("distributed_cron", main(seconds=4 if fast else 30))
