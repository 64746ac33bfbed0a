"""Real processes on a real server that die under load: nothing is lost, and nothing is completed twice."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import asyncpg
import pytest

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import HOUR, SECOND
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.schedules.catch_up import CatchUp
from mainspring.core.model.schedules.job import JobSpec, NewJob
from mainspring.core.model.schedules.schedule import CronSchedule
from mainspring.stores.postgres import PostgresStore
from tests.support.load import APP, PAUSE_SECONDS, a_moment, make_jobs, until_succeeded
from tests.support.processes import START_SECONDS, Processes, kill
from tests.support.waiting import eventually
from tools.services.local_postgres import LocalPostgres, throwaway_postgres

pytestmark = [pytest.mark.postgres, pytest.mark.system, pytest.mark.timeout(900), pytest.mark.xdist_group("system")]


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
async def connection(server: LocalPostgres, store: PostgresStore) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(server.dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def processes(server: LocalPostgres, store: PostgresStore, tmp_path: Path) -> AsyncIterator[Processes]:
    async with Processes(server.dsn, tmp_path / "logs") as processes:
        yield processes


async def until_counted(connection: asyncpg.Connection, query: str, count: int, processes: Processes) -> None:
    """Wait until a query counts so many."""

    async def reached() -> bool:
        return bool(await connection.fetchval(query) >= count)

    await eventually(reached, processes.logs, deadline=START_SECONDS)


async def test_runs_of_a_killed_worker_start_on_another_worker(
    server: LocalPostgres, store: PostgresStore, connection: asyncpg.Connection, processes: Processes, tmp_path: Path
) -> None:
    jobs = make_jobs(store)
    processes.start("scheduler")
    victim = processes.start("worker", APP, "--queue", "load:50")
    processes.start("worker", APP, "--queue", "load:50")
    payload = b'{"path":"%s"}' % str(tmp_path / "released").encode()
    runs = [NewRun(id=jobs.new_run_id(), task="wait_for_file", payload=payload, queue="load") for _ in range(100)]
    runs += [a_moment(jobs, 10) for _ in range(500)]
    await jobs.submit_many(runs)
    await until_counted(connection, "SELECT count(*) FROM mainspring.run WHERE state = 4", 100, processes)
    kill(victim)
    await until_counted(connection, "SELECT count(*) FROM mainspring.attempt WHERE outcome = 4", 50, processes)
    (tmp_path / "released").touch()
    await until_succeeded(server.dsn, {run.id for run in runs}, processes)


async def test_a_killed_scheduler_misses_no_tick_and_delays_no_run_for_good(
    server: LocalPostgres, store: PostgresStore, connection: asyncpg.Connection, processes: Processes
) -> None:
    jobs = make_jobs(store)
    victim, *_ = [processes.start("scheduler") for _ in range(3)]
    processes.start("worker", APP, "--queue", "load:50", "--queue", "ticks:200")
    every_second = CronSchedule(expression="* * * * * *")
    await jobs.put_jobs(
        [
            NewJob(
                id=jobs.new_job_id("default", f"tick-{number}"),
                spec=JobSpec(
                    name=f"tick-{number}",
                    task="tick",
                    schedule=every_second,
                    queue="ticks",
                    catch_up=CatchUp(grace=HOUR),
                ),
            )
            for number in range(100)
        ]
    )
    await until_counted(connection, "SELECT count(*) FROM mainspring.history WHERE job_id IS NOT NULL", 200, processes)
    await until_counted(connection, "SELECT count(DISTINCT owner) FROM mainspring.shard", 3, processes)
    runs = [a_moment(jobs, 1, delay=random.randrange(4 * SECOND)) for _ in range(500)]
    await jobs.submit_many(runs)
    killed_at = await store.now()
    kill(victim)
    ticked = f"SELECT count(DISTINCT job_id) FROM mainspring.ledger WHERE scheduled_at > {killed_at + 5 * SECOND}"
    await until_counted(connection, ticked, 100, processes)
    rows = await connection.fetch(
        "SELECT job_id, array_agg(scheduled_at ORDER BY scheduled_at) AS ticks FROM mainspring.ledger GROUP BY job_id"
    )
    assert len(rows) == 100
    for row in rows:
        ticks = row["ticks"]
        assert ticks == list(range(ticks[0], ticks[-1] + 1, SECOND)), "a tick is missing or doubled"
    assert await connection.fetchval("SELECT count(*) FROM mainspring.ledger WHERE decision <> 1") == 0
    await until_succeeded(server.dsn, {run.id for run in runs}, processes)


async def test_an_immediate_restart_of_postgresql_under_load_loses_nothing(
    server: LocalPostgres, store: PostgresStore, connection: asyncpg.Connection, processes: Processes
) -> None:
    jobs = make_jobs(store)
    for _ in range(2):
        processes.start("scheduler")
        processes.start("worker", APP, "--queue", "load:100")
    # A process that cannot reach its store when it starts ends with an error.
    await until_counted(connection, "SELECT count(*) FROM mainspring.session WHERE live", 4, processes)
    accepted: set[RunId] = set()
    stop = asyncio.Event()

    async def submit() -> None:
        while not stop.is_set():
            runs = [a_moment(jobs, 5, delay=random.choice((0, 0, SECOND))) for _ in range(20)]
            with suppress(StoreUnavailable):
                accepted.update(answer.id for answer in await jobs.submit_many(runs))
            await asyncio.sleep(PAUSE_SECONDS)

    async def until_more_are_accepted() -> None:
        wanted = len(accepted) + 400
        await eventually(lambda: len(accepted) >= wanted, processes.logs)

    submitters = [asyncio.create_task(submit()) for _ in range(2)]
    for _ in range(2):
        await until_more_are_accepted()
        await asyncio.to_thread(server.restart, "immediate")
    await until_more_are_accepted()
    stop.set()
    await asyncio.gather(*submitters)
    await until_succeeded(server.dsn, accepted, processes, more=True)


@pytest.mark.parametrize("away_seconds", [0, 20], ids=["shorter than a lease", "longer than a lease"])
async def test_runs_complete_again_after_an_immediate_restart_of_postgresql(
    server: LocalPostgres,
    store: PostgresStore,
    processes: Processes,
    record_testsuite_property: Callable[[str, object], None],
    away_seconds: int,
) -> None:
    """The delay from the first accepted connection to the first complete run is recorded in the JUnit file."""
    jobs = make_jobs(store)
    processes.start("scheduler")
    processes.start("worker", APP, "--queue", "load:100")
    accepted: set[RunId] = set()
    stop = asyncio.Event()

    async def submit() -> None:
        while not stop.is_set():
            with suppress(StoreUnavailable):
                accepted.update(answer.id for answer in await jobs.submit_many([a_moment(jobs, 5) for _ in range(20)]))
            await asyncio.sleep(PAUSE_SECONDS)

    async def completed(since: int) -> bool:
        query = f"SELECT EXISTS (SELECT FROM mainspring.history WHERE finished_at > {since})"
        try:
            connection = await asyncpg.connect(server.dsn)
        except (OSError, asyncpg.PostgresError):
            return False
        try:
            return bool(await connection.fetchval(query))
        finally:
            await connection.close()

    submitter = asyncio.create_task(submit())
    await eventually(lambda: completed(0), processes.logs, deadline=START_SECONDS)
    await asyncio.to_thread(server.stop, "immediate")
    await asyncio.sleep(away_seconds)
    await asyncio.to_thread(server.start)
    connection = await asyncpg.connect(server.dsn)
    back = await connection.fetchval("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
    await connection.close()
    await eventually(lambda: completed(back), processes.logs)
    connection = await asyncpg.connect(server.dsn)
    first = await connection.fetchval(f"SELECT min(finished_at) FROM mainspring.history WHERE finished_at > {back}")
    await connection.close()
    name = f"seconds until runs complete again after {away_seconds} s"
    record_testsuite_property(name, (first - back) / SECOND)
    stop.set()
    await submitter
    await until_succeeded(server.dsn, accepted, processes, more=True)
