"""A sharded store on three real servers: placement groups move to a new one while processes are killed."""

import asyncio
import contextlib
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import msgspec
import pytest

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import HOUR
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.schedules.catch_up import CatchUp
from mainspring.core.model.schedules.job import JobSpec, NewJob
from mainspring.core.model.schedules.schedule import CronSchedule
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.core.submit.jobs import Jobs
from mainspring.stores.sharded import ShardedStore
from tests.support.load import APP, PAUSE_SECONDS
from tests.support.processes import START_SECONDS, Processes, kill
from tests.support.sharded_harness import build_sharded_store
from tests.support.waiting import eventually
from tools.services.local_postgres import LocalPostgres, throwaway_postgres

pytestmark = [pytest.mark.postgres, pytest.mark.system, pytest.mark.timeout(900), pytest.mark.xdist_group("system")]

TENANTS = [f"tenant-{number}" for number in range(12)]


@pytest.fixture
async def servers() -> AsyncIterator[list[LocalPostgres]]:
    with contextlib.ExitStack() as stack:
        yield [await asyncio.to_thread(stack.enter_context, throwaway_postgres()) for _ in range(3)]


def make_jobs(store: ShardedStore) -> Jobs:
    return Jobs(
        store,
        LocalWakeups(),
        SystemClock(),
        random.Random(),
        shards=store.shards,
        placement_groups=store.place_count,
        group_by=store.find_server,
    )


async def fetch_from_all(servers: list[LocalPostgres], query: str) -> list[asyncpg.Record]:
    found: list[asyncpg.Record] = []
    for server in servers:
        connection = await asyncpg.connect(server.dsn)
        try:
            found += await connection.fetch(query)
        finally:
            await connection.close()
    return found


async def test_adding_a_server_to_a_sharded_store_loses_and_doubles_nothing(
    servers: list[LocalPostgres], tmp_path: Path
) -> None:
    addresses = [server.dsn for server in servers]
    # The third server is added to two, and has no placement groups at first.
    first = build_sharded_store(addresses[:2], 100)
    await first.open()
    await first.close()
    store = build_sharded_store(addresses, 100, connections=8)
    await store.open()
    try:
        assert [len(server.placement_groups) for server in await store.servers()] == [16, 16, 0]
        async with Processes(msgspec.json.encode(addresses).decode(), tmp_path / "logs") as processes:
            await _add_server(store, servers, processes)
    finally:
        await store.close()


async def _add_server(store: ShardedStore, servers: list[LocalPostgres], processes: Processes) -> None:
    jobs = make_jobs(store)
    for _ in range(2):
        processes.start("scheduler")
        processes.start("worker", APP, "--queue", "load:50", "--queue", "ticks:20")
    every_second = CronSchedule("* * * * * *")
    crons = [
        NewJob(
            id=jobs.new_job_id(tenant, "tick"),
            spec=JobSpec(name="tick", task="tick", queue="ticks", schedule=every_second, catch_up=CatchUp(grace=HOUR)),
            tenant=tenant,
        )
        for tenant in TENANTS
    ]
    await jobs.put_jobs(crons)
    accepted: set[RunId] = set()
    moved = asyncio.Event()

    async def submit() -> None:
        number = 0
        while not moved.is_set():
            number += 1
            tenant = TENANTS[number % len(TENANTS)]
            ids = jobs.new_run_ids([""] * 5, tenant=tenant)
            runs = [
                NewRun(
                    id=run_id,
                    task="moment",
                    payload=b'{"milliseconds":200}',
                    queue="load",
                    tenant=tenant,
                    delay=number % 2,
                )
                for run_id in ids
            ]
            with contextlib.suppress(StoreUnavailable):
                accepted.update(answer.id for answer in await jobs.submit_many(runs))
            await asyncio.sleep(PAUSE_SECONDS)

    submitting = asyncio.create_task(submit())

    async def count_moved() -> int:
        return len((await store.servers())[2].placement_groups)

    kills = 0
    # Kill the mover after it has moved something, at a random moment of what it does next.
    for _ in range(5):
        mover, before = processes.start("store", "rebalance"), await count_moved()

        async def moves_or_has_ended(mover: "subprocess.Popen[bytes]" = mover, before: int = before) -> bool:
            return mover.poll() is not None or await count_moved() > before

        await eventually(moves_or_has_ended, processes.logs, deadline=START_SECONDS)
        await asyncio.sleep(random.random() / 4)
        if mover.poll() is None:
            kill(mover)
            kills += 1
    await asyncio.to_thread(servers[1].restart, "immediate")

    async def rebalanced() -> bool:
        return await asyncio.to_thread(processes.start("store", "rebalance").wait) == 0

    await eventually(rebalanced, processes.logs)
    moved.set()
    await submitting
    assert sorted(len(server.placement_groups) for server in await store.servers()) == [10, 11, 11]
    await _until_all_ended(servers, accepted, processes)
    ticks = await fetch_from_all(
        servers, "SELECT job_id::text, scheduled_at, count(*) AS n FROM mainspring.ledger GROUP BY 1, 2"
    )
    keys = [(row["job_id"], row["scheduled_at"]) for row in ticks]
    assert len(keys) == len(set(keys)), "a tick was recorded on two servers"
    for cron in crons:
        seconds = sorted(at // 1_000_000 for job, at in keys if job.replace("-", "") == cron.id)
        assert seconds == list(range(seconds[0], seconds[-1] + 1)), "a tick was missed"
    assert kills > 0
    sys.stdout.write(f"{len(accepted)} runs, {len(keys)} ticks, the mover was killed {kills} times\n")


async def _until_all_ended(servers: list[LocalPostgres], accepted: set[RunId], processes: Processes) -> None:
    ended: list[asyncpg.Record] = []
    found: list[str] = []

    async def all_found() -> bool:
        ended[:] = await fetch_from_all(servers, "SELECT id::text, state FROM mainspring.history WHERE job_id IS NULL")
        found[:] = [row["id"].replace("-", "") for row in ended]
        return accepted <= set(found)

    await eventually(all_found, lambda: f"{len(accepted - set(found))} lost\n{processes.logs()}")
    assert len(found) == len(set(found)), "a run was completed twice"
    assert {row["state"] for row in ended} == {5}
