"""Real processes on a real server that die under load: nothing lost, nothing completed twice."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from mainspring.adapters.clock.system import SystemClock
from mainspring.adapters.store.postgres import PostgresStore
from mainspring.adapters.wakeups.local import LocalWakeups
from mainspring.bench.local_postgres import LocalPostgres, throwaway_postgres
from mainspring.control.jobs import Jobs
from mainspring.domain.errors import StoreUnavailable
from mainspring.domain.ids import RunId
from mainspring.domain.instant import SECOND
from mainspring.domain.job import JobSpec, NewJob
from mainspring.domain.run import NewRun
from mainspring.domain.schedule import CronSchedule
from tests.support.processes import Processes, kill

pytestmark = [pytest.mark.postgres, pytest.mark.system, pytest.mark.timeout(180), pytest.mark.xdist_group("system")]

APP = "tests.support.load_tasks:app"


@pytest.fixture
async def server() -> AsyncIterator[LocalPostgres]:
    context = throwaway_postgres()
    server = await asyncio.to_thread(context.__enter__)
    yield server
    await asyncio.to_thread(context.__exit__, None, None, None)


@pytest.fixture
async def store(server: LocalPostgres) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(server.dsn)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def processes(server: LocalPostgres, store: PostgresStore, tmp_path: Path) -> AsyncIterator[Processes]:
    async with Processes(server.dsn, tmp_path) as processes:
        yield processes


def a_moment(jobs: Jobs, milliseconds: int, delay: int = 0) -> NewRun:
    payload = b'{"milliseconds":%d}' % milliseconds
    return NewRun(id=jobs.new_run_id(), task="moment", payload=payload, queue="load", delay=delay)


def the_jobs(store: PostgresStore) -> Jobs:
    return Jobs(store, LocalWakeups(), SystemClock(), random.Random(), shards=store.shards)


async def ended(connection: asyncpg.Connection) -> int:
    count: int = await connection.fetchval("SELECT count(*) FROM mainspring.history WHERE state = 5")
    return count


async def until_ended(dsn: str, runs: set[RunId], seconds: float, processes: Processes) -> None:
    """All of them succeeded, each exactly once, and nothing is left over."""
    connection = await asyncpg.connect(dsn)
    try:
        deadline = time.monotonic() + seconds
        while await ended(connection) < len(runs) and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
        rows = await connection.fetch("SELECT id::text, state FROM mainspring.history WHERE job_id IS NULL")
        left = await connection.fetch(
            "SELECT id::text, state, session FROM mainspring.run "
            "UNION ALL SELECT id::text, state, NULL FROM mainspring.waiting"
        )
    finally:
        await connection.close()
    found = [row["id"].replace("-", "") for row in rows]
    assert len(found) == len(set(found)), "a run was completed twice"
    assert not runs - set(found), f"{len(runs - set(found))} lost; left {left[:5]}\n{processes.logs()}"
    assert {row["state"] for row in rows} == {5}
    assert not left


async def test_a_killed_worker_loses_nothing_and_its_runs_start_elsewhere_within_15_seconds(
    server: LocalPostgres, store: PostgresStore, processes: Processes
) -> None:
    jobs = the_jobs(store)
    processes.start("scheduler")
    victim = processes.start("worker", APP, "--queue", "load:50")
    processes.start("worker", APP, "--queue", "load:50")
    runs = [a_moment(jobs, 300) for _ in range(1_500)]
    await jobs.submit_many(runs)
    connection = await asyncpg.connect(server.dsn)
    try:
        while await ended(connection) < 100:
            await asyncio.sleep(0.05)
        killed_at = time.time()
        kill(victim)
        while True:
            lost = await connection.fetchrow("SELECT count(*), max(ended_at) FROM mainspring.attempt WHERE outcome = 4")
            if lost is not None and lost[0]:
                break
            assert time.time() - killed_at < 20, f"nothing was returned\n{processes.logs()}"
            await asyncio.sleep(0.1)
        returned_after = lost[1] / SECOND - killed_at
    finally:
        await connection.close()
    await until_ended(server.dsn, {run.id for run in runs}, 40, processes)
    assert returned_after < 15


async def test_a_killed_scheduler_misses_no_tick_and_none_is_two_seconds_late(
    server: LocalPostgres, store: PostgresStore, processes: Processes
) -> None:
    jobs = the_jobs(store)
    victim, *_ = [processes.start("scheduler") for _ in range(3)]
    processes.start("worker", APP, "--queue", "load:50", "--queue", "ticks:200")
    await jobs.put_jobs(
        [
            NewJob(
                id=jobs.new_job_id("default", f"tick-{number}"),
                spec=JobSpec(
                    name=f"tick-{number}", task="tick", schedule=CronSchedule(expression="* * * * * *"), queue="ticks"
                ),
            )
            for number in range(100)
        ]
    )
    connection = await asyncpg.connect(server.dsn)
    try:
        while await connection.fetchval("SELECT count(*) FROM mainspring.history WHERE job_id IS NOT NULL") < 200:
            await asyncio.sleep(0.1)
        # On a busy machine the last of them takes its time to start.
        while await connection.fetchval("SELECT count(DISTINCT owner) FROM mainspring.shard") < 3:
            await asyncio.sleep(0.1)
        runs = [a_moment(jobs, 1, delay=random.randrange(4 * SECOND)) for _ in range(500)]
        await jobs.submit_many(runs)
        killed_at = await store.now()
        kill(victim)
        await asyncio.sleep(6)
        rows = await connection.fetch(
            "SELECT job_id, array_agg(scheduled_at ORDER BY scheduled_at) AS ticks "
            "FROM mainspring.ledger GROUP BY job_id"
        )
        late = await connection.fetchval(
            "SELECT max(started_at - due) FROM mainspring.history "
            "WHERE job_id IS NOT NULL AND due > $1 AND attempt = 1",
            killed_at - SECOND,
        )
        skipped = await connection.fetchval("SELECT count(*) FROM mainspring.ledger WHERE decision <> 1")
    finally:
        await connection.close()
    assert len(rows) == 100
    for row in rows:
        ticks = row["ticks"]
        assert ticks == list(range(ticks[0], ticks[-1] + 1, SECOND)), "a tick is missing"
    assert skipped == 0
    assert late < 2 * SECOND


async def test_an_immediate_restart_of_postgresql_under_load_loses_nothing(
    server: LocalPostgres, store: PostgresStore, processes: Processes
) -> None:
    jobs = the_jobs(store)
    processes.start("scheduler")
    processes.start("scheduler")
    for _ in range(2):
        processes.start("worker", APP, "--queue", "load:100")
    # One that cannot reach its store when it starts says so and ends.
    await until_there_are(server.dsn, 4)
    accepted: set[RunId] = set()
    stop = asyncio.Event()

    async def submit() -> None:
        while not stop.is_set():
            runs = [a_moment(jobs, 5, delay=random.choice((0, 0, SECOND))) for _ in range(20)]
            try:
                accepted.update(answer.id for answer in await jobs.submit_many(runs))
            except StoreUnavailable:
                continue
            await asyncio.sleep(0.02)

    submitters = [asyncio.create_task(submit()) for _ in range(2)]
    for _ in range(2):
        await asyncio.sleep(4)
        await asyncio.to_thread(server.restart)
    await asyncio.sleep(3)
    stop.set()
    await asyncio.gather(*submitters)
    assert len(accepted) > 1_000
    await until_ended_at_least(server.dsn, accepted, 45, processes)


async def until_there_are(dsn: str, sessions: int) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        while await connection.fetchval("SELECT count(*) FROM mainspring.session WHERE live") < sessions:
            await asyncio.sleep(0.1)
    finally:
        await connection.close()


async def until_ended_at_least(dsn: str, accepted: set[RunId], seconds: float, processes: Processes) -> None:
    """A submit whose answer was lost may have happened: what is there may be more than what was acknowledged."""
    connection = await asyncpg.connect(dsn)
    try:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            left = await connection.fetchval(
                "SELECT (SELECT count(*) FROM mainspring.run) + (SELECT count(*) FROM mainspring.waiting)"
            )
            if not left:
                break
            await asyncio.sleep(0.2)
        rows = await connection.fetch("SELECT id::text, state FROM mainspring.history")
    finally:
        await connection.close()
    found = [row["id"].replace("-", "") for row in rows]
    assert len(found) == len(set(found)), "a run was completed twice"
    assert not accepted - set(found), f"{len(accepted - set(found))} lost, {left} left\n{processes.logs()}"
    assert {row["state"] for row in rows} == {5}
