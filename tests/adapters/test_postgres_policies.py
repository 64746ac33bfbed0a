"""Limits, families and unique keys where many connections and processes meet.

The large forms are run by ``LARGE_TESTS=1 pytest -s tests/adapters/test_postgres_policies.py``.
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

from mainspring.adapters.store.postgres import PostgresStore
from mainspring.domain.errors import StoreUnavailable
from mainspring.domain.ids import RunId, SessionId
from mainspring.domain.instant import HOUR
from mainspring.domain.run import NewRun, RunState, settle_loss, settle_success
from mainspring.domain.unique import Unique
from mainspring.ports.store import NewSession, Want
from tests.support.builders import a_limit, a_policy, a_run

pytestmark = pytest.mark.postgres

LARGE = os.environ.get("LARGE_TESTS") == "1"
large = pytest.mark.skipif(not LARGE, reason="LARGE_TESTS=1 runs it")
#: Of each key at a time.
MOST = 3


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


def tell(words: str) -> None:
    sys.stdout.write(f"\n{words}\n")


def limited(keys: int, runs: int) -> list[NewRun]:
    policies = [a_policy(limits=(a_limit(f"key-{number}", MOST),)) for number in range(keys)]
    return [a_run(task=f"key-{number % keys}", policy=policies[number % keys]) for number in range(runs)]


async def submit_all(store: PostgresStore, runs: Sequence[NewRun], batch: int = 1_000) -> None:
    for start in range(0, len(runs), batch):
        for _ in range(20):
            try:
                await store.submit(runs[start : start + batch])
                break
            except StoreUnavailable:
                # On a machine that is too busy a transaction may take too long. It is known when it comes again.
                continue


async def test_no_more_of_a_key_run_at_a_time_over_many_connections(store: PostgresStore) -> None:
    runs = limited(50, 2_000)
    await submit_all(store, runs)
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    done = 0

    async def work(worker: SessionId) -> None:
        nonlocal done
        number = 0
        while done < len(runs):
            number += 1
            held = await store.claim(worker, number, [Want("default", 40)])
            for run in held:
                running[run.task] += 1
                most[run.task] = max(most[run.task], running[run.task])
            await asyncio.sleep(0)
            # No more than this: whoever waits may start before this has its answer.
            for run in held:
                running[run.task] -= 1
            await store.settle([settle_success(run, None) for run in held])
            done += len(held)

    await asyncio.gather(*[work(await a_worker(store)) for _ in range(6)])
    assert max(most.values()) <= MOST
    assert await store.sweep(1_000) == 0


async def most_at_once(connection: "asyncpg.Connection") -> int:
    """Of any key, as history has it."""
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
    """What schedulers and reapers do, once; how much the sweep found."""
    try:
        await store.stage(scheduler, range(store.shards), 1_000)
        lost = await store.lost_runs(1_000)
        await store.settle([settle_loss(run, blamed=False) for run in lost])
        while await store.resolve(1_000):
            pass
        return await store.sweep(1_000)
    except StoreUnavailable:
        return 0


@large
async def test_a_thousand_keys_and_a_hundred_thousand_runs_over_processes(
    store: PostgresStore, connection: "asyncpg.Connection", postgres_database: str
) -> None:
    runs = limited(1_000, 100_000)
    began = time.monotonic()
    await submit_all(store, runs)
    submitted = time.monotonic()
    scheduler = await store.join("s", HOUR)
    await store.take(scheduler, range(store.shards))
    workers = [start_worker(postgres_database, 500) for _ in range(3)]
    try:
        last = len(runs), time.monotonic()
        while last[0]:
            await asyncio.sleep(1)
            assert await housekeeping(store, scheduler) == 0
            now = await connection.fetchval(
                "SELECT count(*) FROM (SELECT FROM run UNION ALL SELECT FROM waiting) AS here"
            )
            at_once = await connection.fetchval(
                "SELECT coalesce(max(runs), 0) FROM (SELECT count(*) AS runs FROM run r JOIN body b "
                "ON b.bucket = r.body_bucket AND b.id = r.id GROUP BY b.task) AS by_key"
            )
            assert at_once <= MOST
            if now < last[0]:
                last = now, time.monotonic()
            assert time.monotonic() - last[1] < 60, f"it hangs with {now} left"
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    took = await connection.fetchval("SELECT (max(finished_at) - min(started_at)) / 1e6 FROM history")
    rate = len(runs) / float(took)
    most = await most_at_once(connection)
    tell(f"submitted {len(runs) / (submitted - began):,.0f}/s, worked off {rate:,.0f}/s, at once by history {most}")


async def test_of_many_that_race_for_one_unique_key_one_is_made(postgres_database: str, store: PostgresStore) -> None:
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


async def test_batches_with_the_same_keys_in_another_order_do_not_lock_each_other_out(store: PostgresStore) -> None:
    keys = [f"k{number}" for number in range(20)]

    def batch(order: Sequence[str], turn: int) -> list[NewRun]:
        limits = [
            a_run(limits=(a_limit(key, 2), a_limit(f"shared-{keys[-1 - place]}", 5))) for place, key in enumerate(order)
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
    """Layers of runs; each waits for three of the layer before."""
    made: list[NewRun] = []
    above: list[NewRun] = []
    for _ in range(layers):
        layer = [
            a_run(after=[above[(place + step) % wide] for step in range(3)] if above else ()) for place in range(wide)
        ]
        await submit_all(store, layer)
        made += layer
        above = layer
    return made


async def all_ended(store: PostgresStore, runs: Sequence[NewRun]) -> bool:
    views = [view for view in await store.runs([run.id for run in runs]) if view is not None]
    assert len(views) == len(runs)
    return all(view.state is RunState.SUCCEEDED for view in views)


async def test_a_family_of_layers_ends_though_workers_die(store: PostgresStore) -> None:
    runs = await a_dag(store, 10, 10)
    scheduler = await store.join("s", HOUR)
    await store.take(scheduler, range(store.shards))
    for turn in range(200):
        worker = await a_worker(store)
        held = await store.claim(worker, 1, [Want("default", 7)])
        if turn % 3:
            await store.settle([settle_success(run, None) for run in held])
        # Every third one dies with what it holds.
        await store.close_session(worker)
        assert await housekeeping(store, scheduler) == 0
        if not held and await all_ended(store, runs):
            return
    pytest.fail("it hangs")


@large
async def test_ten_thousand_in_layers_end_though_workers_are_killed(
    store: PostgresStore, connection: "asyncpg.Connection", postgres_database: str
) -> None:
    began = time.monotonic()
    runs = await a_dag(store, 100, 100)
    submitted = time.monotonic()
    scheduler = await store.join("s", HOUR)
    await store.take(scheduler, range(store.shards))
    workers = [start_worker(postgres_database, 20) for _ in range(3)]
    killed = found = 0
    last = len(runs), time.monotonic()
    try:
        while True:
            await asyncio.sleep(0.2)
            found += await housekeeping(store, scheduler)
            left = await connection.fetchval(
                "SELECT count(*) FROM (SELECT FROM run UNION ALL SELECT FROM waiting) AS here"
            )
            if left == 0:
                break
            if left < last[0]:
                last = left, time.monotonic()
            assert time.monotonic() - last[1] < 120, f"it hangs with {left} left"
            # One for every 500 runs: a new one must have the time to begin.
            if len(runs) - left > 500 * (killed + 1):
                victim = killed % len(workers)
                workers[victim].kill()
                workers[victim].wait()
                workers[victim] = start_worker(postgres_database, 20)
                killed += 1
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert found == 0
    states = await connection.fetch("SELECT state, count(*) AS runs FROM history GROUP BY state")
    assert {row["state"]: row["runs"] for row in states} == {5: len(runs)}
    lost = await connection.fetchval("SELECT count(*) FROM attempt WHERE outcome = 4")
    tell(
        f"submitted in {submitted - began:.1f} s, ended in {time.monotonic() - submitted:.1f} s; "
        f"{killed} workers killed, {lost} attempts lost"
    )


async def test_a_holder_that_is_gone_leaves_nobody_waiting(store: PostgresStore) -> None:
    runs = [a_run(limits=(a_limit("one", 1),)) for _ in range(3)]
    await store.submit(runs)
    dead = await a_worker(store)
    [held] = await store.claim(dead, 1, [Want("default", 10)])
    # As a process that is killed: nothing is said, and its lease runs out.
    await store.close_session(dead)
    [lost] = await store.lost_runs(10)
    assert lost.id == held.id
    await store.settle([settle_loss(lost, blamed=False)])
    worker, ended = await a_worker(store), list[RunId]()
    for number in range(1, 4):
        [held] = await store.claim(worker, number, [Want("default", 10)])
        ended.append(held.id)
        await store.settle([settle_success(held, None)])
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
async def test_a_sweep_mends_what_somebody_broke(
    store: PostgresStore, connection: "asyncpg.Connection", harm: str
) -> None:
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
        held = await store.claim(worker, number, [Want("default", 10)])
        assert len(held) <= 1
        await store.settle([settle_success(run, None) for run in held])
        ended += len(held)
    assert ended == (3 if "DELETE FROM run" not in harm else 2)
    assert await store.sweep(100) == 0


@pytest.mark.parametrize(
    "harm",
    [
        "DELETE FROM ended_parent; UPDATE edge SET state = NULL",
        "UPDATE dependent SET succeeded = 0",
    ],
)
async def test_a_sweep_finds_children_that_nobody_told(
    store: PostgresStore, connection: "asyncpg.Connection", harm: str
) -> None:
    parent = a_run()
    child, other = a_run(after=[parent]), a_run(after=[parent])
    await store.submit([parent, child, other])
    worker = await a_worker(store)
    [held] = await store.claim(worker, 1, [Want("default", 10)])
    await connection.execute("UPDATE run SET has_children = NULL")
    if "dependent" in harm:
        await connection.execute("UPDATE edge SET state = 5")
    await store.settle([settle_success(held, None)])
    await connection.execute(harm)
    assert await store.sweep(100) > 0
    assert {run.id for run in await store.claim(worker, 2, [Want("default", 10)])} == {child.id, other.id}
    assert await store.sweep(100) == 0
