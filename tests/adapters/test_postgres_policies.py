"""Limits, dependencies and unique keys with many connections and processes.

``LARGE_TESTS=1 pytest -s tests/adapters/test_postgres_policies.py`` runs the large variants.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import asyncpg
import pytest

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.ids import RunId, SessionId
from mainspring.core.model.base.instant import HOUR
from mainspring.core.model.runs.completion import complete_loss, complete_success
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.unique import Unique
from mainspring.core.store import Demand, NewSession
from mainspring.stores.postgres import PostgresStore
from tests.support.builders import a_limit, a_policy, a_run
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres

LARGE = os.environ.get("LARGE_TESTS") == "1"
large = pytest.mark.skipif(not LARGE, reason="LARGE_TESTS=1 runs it")
#: The limit of every key.
MOST = 3
#: For the large tests: as long as they need, even on a slow machine.
LONG_DEADLINE_SECONDS = 3_600


@pytest.fixture
async def store(postgres_database: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_database, shards=4, connections=16)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def connection(postgres_database: str, store: PostgresStore) -> AsyncIterator["asyncpg.Connection"]:
    connection = await asyncpg.connect(postgres_database, server_settings={"search_path": "mainspring"})
    yield connection
    await connection.close()


async def a_worker(store: PostgresStore, ttl: int = HOUR) -> SessionId:
    return await store.open_session(NewSession(name="w", kind="worker", ttl=ttl))


def report(words: str) -> None:
    sys.stdout.write(f"\n{words}\n")


def some_limited_runs(keys: int, runs: int) -> list[NewRun]:
    policies = [a_policy(limits=(a_limit(f"key-{number}", MOST),)) for number in range(keys)]
    return [a_run(task=f"key-{number % keys}", policy=policies[number % keys]) for number in range(runs)]


async def submit_all(store: PostgresStore, runs: Sequence[NewRun], batch: int = 1_000) -> None:
    for start in range(0, len(runs), batch):
        for _ in range(20):
            try:
                await store.submit(runs[start : start + batch])
                break
            except StoreUnavailable:
                # A transaction may time out on a busy machine. The store recognizes the runs of a repeated submit.
                continue


@pytest.mark.slow
async def test_a_key_never_exceeds_its_limit_over_many_connections(store: PostgresStore) -> None:
    runs = some_limited_runs(50, 2_000)
    await submit_all(store, runs)
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    done = 0

    async def work(worker: SessionId) -> None:
        nonlocal done
        number = 0
        while done < len(runs):
            number += 1
            held = await store.claim(worker, number, [Demand("default", 40)])
            for run in held:
                running[run.task] += 1
                most[run.task] = max(most[run.task], running[run.task])
            await asyncio.sleep(0)
            # Counted down before the completion, because the next run may start before it returns.
            for run in held:
                running[run.task] -= 1
            await store.complete([complete_success(run, None) for run in held])
            done += len(held)

    await asyncio.gather(*[work(await a_worker(store)) for _ in range(6)])
    assert max(most.values()) <= MOST
    assert await store.sweep(1_000) == 0


async def read_most_at_once(connection: "asyncpg.Connection") -> int:
    """The highest number of runs of any key at one time, by the history."""
    most: int = await connection.fetchval("""
        SELECT max(running) FROM (
            SELECT sum(step) OVER (PARTITION BY task ORDER BY at, step) AS running FROM (
                SELECT b.task, h.started_at AS at, 1 AS step FROM history h JOIN body b ON b.id = h.id
                UNION ALL SELECT b.task, h.finished_at, -1 FROM history h JOIN body b ON b.id = h.id
                UNION ALL SELECT b.task, a.started_at, 1 FROM attempt a JOIN body b ON b.id = a.run_id
                UNION ALL SELECT b.task, a.ended_at, -1 FROM attempt a JOIN body b ON b.id = a.run_id
            ) AS steps
        ) AS sums
    """)
    return most


def start_worker(dsn: str, batch: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tests.support.policy_worker", dsn, "default", str(batch)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


async def housekeeping(store: PostgresStore, scheduler: SessionId) -> int:
    """Do the work of schedulers and reapers once. Returns how much the sweep found."""
    try:
        await store.stage(scheduler, range(store.shards), 1_000)
        lost = await store.lost_runs(1_000)
        await store.complete([complete_loss(run, blamed=False) for run in lost])
        while await store.resolve(1_000):
            pass
        return await store.sweep(1_000)
    except StoreUnavailable:
        return 0


async def count_live(connection: "asyncpg.Connection") -> int:
    count: int = await connection.fetchval(
        "SELECT count(*) FROM (SELECT FROM run UNION ALL SELECT FROM waiting) AS live"
    )
    return count


@large
@pytest.mark.timeout(LONG_DEADLINE_SECONDS)
async def test_a_thousand_keys_never_exceed_their_limits_over_processes(
    store: PostgresStore, connection: "asyncpg.Connection", postgres_database: str
) -> None:
    runs = some_limited_runs(1_000, 100_000)
    began = time.monotonic()
    await submit_all(store, runs)
    submitted = time.monotonic()
    scheduler = await store.join("s", HOUR)
    await store.take(scheduler, range(store.shards))
    workers = [start_worker(postgres_database, 500) for _ in range(3)]

    async def are_done() -> bool:
        assert await housekeeping(store, scheduler) == 0
        at_once = await connection.fetchval(
            "SELECT coalesce(max(runs), 0) FROM (SELECT count(*) AS runs FROM run r JOIN body b "
            "ON b.bucket = r.body_bucket AND b.id = r.id GROUP BY b.task) AS by_key"
        )
        assert at_once <= MOST
        return await count_live(connection) == 0

    try:
        await eventually(are_done, deadline=LONG_DEADLINE_SECONDS)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    took = await connection.fetchval("SELECT (max(finished_at) - min(started_at)) / 1e6 FROM history")
    rate = len(runs) / float(took)
    most = await read_most_at_once(connection)
    report(f"submitted {len(runs) / (submitted - began):,.0f}/s, completed {rate:,.0f}/s, at once by history {most}")


@pytest.mark.slow
async def test_concurrent_submits_with_one_unique_key_make_one_run(
    postgres_database: str, store: PostgresStore
) -> None:
    others = [PostgresStore(postgres_database, connections=2) for _ in range(15)]
    for other in others:
        await other.open()
    try:
        for number in range(5):
            unique = Unique(key=f"the-one-{number}")
            answers = await asyncio.gather(*(one.submit([a_run(unique=unique)]) for one in [store, *others]))
            assert sum(answer.new for [answer] in answers) == 1
            assert len({answer.id for [answer] in answers}) == 1
    finally:
        for other in others:
            await other.close()


async def test_concurrent_batches_with_the_same_keys_in_different_orders_do_not_deadlock(store: PostgresStore) -> None:
    keys = [f"k{number}" for number in range(20)]

    def batch(order: Sequence[str], turn: int) -> list[NewRun]:
        limits = [
            a_run(limits=(a_limit(key, 2), a_limit(f"shared-{keys[-1 - index]}", 5))) for index, key in enumerate(order)
        ]
        return limits + [a_run(unique=Unique(key=f"{key}-{turn}")) for key in order]

    async def submit(order: Sequence[str]) -> None:
        for turn in range(5):
            await store.submit(batch(order, turn))

    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    before = await store._db.run(lambda connection: connection.fetchval(deadlocks))
    await asyncio.gather(*(submit(order) for order in (keys, keys[::-1]) * 2))
    assert await store._db.run(lambda connection: connection.fetchval(deadlocks)) == before
    assert await store.sweep(1_000) == 0


async def a_dag(store: PostgresStore, layers: int, wide: int) -> list[NewRun]:
    """Layers of runs; each run depends on three of the layer before."""
    made: list[NewRun] = []
    above: list[NewRun] = []
    for _ in range(layers):
        layer = [
            a_run(after=[above[(index + step) % wide] for step in range(3)] if above else ()) for index in range(wide)
        ]
        await submit_all(store, layer)
        made += layer
        above = layer
    return made


@pytest.mark.slow
async def test_layers_of_dependent_runs_complete_although_workers_die(store: PostgresStore) -> None:
    runs = await a_dag(store, 10, 10)
    scheduler = await store.join("s", HOUR)
    await store.take(scheduler, range(store.shards))
    for turn in range(200):
        worker = await a_worker(store)
        held = await store.claim(worker, 1, [Demand("default", 7)])
        if turn % 3:
            await store.complete([complete_success(run, None) for run in held])
        # Every third worker dies with the runs it holds.
        await store.close_session(worker)
        assert await housekeeping(store, scheduler) == 0
        views = [view for view in await store.runs([run.id for run in runs]) if view is not None]
        assert len(views) == len(runs)
        if all(view.state is RunState.SUCCEEDED for view in views):
            return
    pytest.fail("some runs never complete")


@large
@pytest.mark.timeout(LONG_DEADLINE_SECONDS)
async def test_ten_thousand_dependent_runs_complete_although_workers_are_killed(
    store: PostgresStore, connection: "asyncpg.Connection", postgres_database: str
) -> None:
    began = time.monotonic()
    runs = await a_dag(store, 100, 100)
    submitted = time.monotonic()
    scheduler = await store.join("s", HOUR)
    await store.take(scheduler, range(store.shards))
    workers = [start_worker(postgres_database, 20) for _ in range(3)]
    killed = found = 0

    async def are_done() -> bool:
        nonlocal killed, found
        found += await housekeeping(store, scheduler)
        left = await count_live(connection)
        # One kill per 500 runs, so that a new worker has the time to start.
        if left and len(runs) - left > 500 * (killed + 1):
            victim = killed % len(workers)
            workers[victim].kill()
            workers[victim].wait()
            workers[victim] = start_worker(postgres_database, 20)
            killed += 1
        return left == 0

    try:
        await eventually(are_done, deadline=LONG_DEADLINE_SECONDS)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert found == 0
    states = await connection.fetch("SELECT state, count(*) AS runs FROM history GROUP BY state")
    assert {row["state"]: row["runs"] for row in states} == {5: len(runs)}
    lost = await connection.fetchval("SELECT count(*) FROM attempt WHERE outcome = 4")
    report(
        f"submitted in {submitted - began:.1f} s, ended in {time.monotonic() - submitted:.1f} s; "
        f"{killed} workers killed, {lost} attempts lost"
    )


async def test_a_lost_run_releases_its_limit(store: PostgresStore) -> None:
    runs = [a_run(limits=(a_limit("one", 1),)) for _ in range(3)]
    await store.submit(runs)
    killed = await a_worker(store)
    [held] = await store.claim(killed, 1, [Demand("default", 10)])
    await store.close_session(killed)
    [lost] = await store.lost_runs(10)
    assert lost.id == held.id
    await store.complete([complete_loss(lost, blamed=False)])
    worker, ended = await a_worker(store), list[RunId]()
    for number in range(1, 4):
        [held] = await store.claim(worker, number, [Demand("default", 10)])
        ended.append(held.id)
        await store.complete([complete_success(held, None)])
    assert ended == [run.id for run in runs]
    assert await store.sweep(100) == 0


@pytest.mark.parametrize(
    "harm",
    [
        "UPDATE limiter SET used = 2",
        "UPDATE limiter SET used = 0, head = NULL, wake_at = NULL; DELETE FROM run",
        "DELETE FROM limiter; DELETE FROM run",
        "DELETE FROM run; UPDATE waiting SET waits = NULL",
    ],
)
async def test_a_sweep_repairs_limiters(store: PostgresStore, connection: "asyncpg.Connection", harm: str) -> None:
    runs = [a_run(limits=(a_limit("one", 1),)) for _ in range(3)]
    await store.submit(runs)
    await connection.execute(harm)
    for _ in range(3):
        await store.sweep(100)
    worker = await a_worker(store)
    scheduler = await store.join("s", HOUR)
    await store.take(scheduler, range(store.shards))
    ended = 0
    for number in range(1, 9):
        await store.stage(scheduler, range(store.shards), 100)
        held = await store.claim(worker, number, [Demand("default", 10)])
        assert len(held) <= 1
        await store.complete([complete_success(run, None) for run in held])
        ended += len(held)
    assert ended == (3 if "DELETE FROM run" not in harm else 2)
    assert await store.sweep(100) == 0


async def test_a_sweep_counts_the_running_runs_of_a_limit(
    store: PostgresStore, connection: "asyncpg.Connection"
) -> None:
    await store.submit([a_run(limits=(a_limit("one", 1),)) for _ in range(2)])
    worker = await a_worker(store)
    scheduler = await store.join("s", HOUR)
    await store.take(scheduler, range(store.shards))
    assert len(await store.claim(worker, 1, [Demand("default", 10)])) == 1
    await connection.execute("UPDATE limiter SET used = 2")
    assert [await store.sweep(100) for _ in range(2)] == [1, 0]
    await store.stage(scheduler, range(store.shards), 100)
    assert await store.claim(worker, 2, [Demand("default", 10)]) == []


@pytest.mark.parametrize(
    "harm",
    [
        "DELETE FROM ended_parent; UPDATE edge SET state = NULL",
        "UPDATE dependent SET succeeded = 0",
    ],
)
async def test_a_sweep_releases_children_whose_parent_left_no_record(
    store: PostgresStore, connection: "asyncpg.Connection", harm: str
) -> None:
    parent = a_run()
    child, other = a_run(after=[parent]), a_run(after=[parent])
    await store.submit([parent, child, other])
    worker = await a_worker(store)
    [held] = await store.claim(worker, 1, [Demand("default", 10)])
    await connection.execute("UPDATE run SET has_children = NULL")
    if "dependent" in harm:
        await connection.execute("UPDATE edge SET state = 5")
    await store.complete([complete_success(held, None)])
    await connection.execute(harm)
    assert await store.sweep(100) > 0
    assert {run.id for run in await store.claim(worker, 2, [Demand("default", 10)])} == {child.id, other.id}
    assert await store.sweep(100) == 0
