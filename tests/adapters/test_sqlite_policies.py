"""Limits, dependencies and unique keys in one file: races between processes, long lines, and repairs by the sweep.

``LARGE_TESTS=1`` runs the large variants.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import apsw
import pytest

from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import MILLISECOND, MINUTE, SECOND
from mainspring.core.model.limits.limits import Breaker
from mainspring.core.model.runs.completion import complete_failure, complete_success
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.store import Demand, NewSession
from mainspring.stores.sqlite import SqliteStore
from tests.support.builders import a_limit, a_policy, a_run
from tests.support.clock import ManualClock

LARGE = bool(os.environ.get("LARGE_TESTS"))
SHARDS = 4


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mainspring.db"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, clock, shards=SHARDS)
    await store.open()
    yield store
    await store.close()


class Worker:
    """A session that claims, and one that owns every shard."""

    def __init__(self, store: SqliteStore, session: SessionId, owner: SessionId) -> None:
        self.store, self.session, self.owner = store, session, owner
        self._claims = 0

    async def claim(self, limit: int = 10_000) -> list[HeldRun]:
        self._claims += 1
        return await self.store.claim(self.session, self._claims, [Demand("default", limit)])

    async def stage(self) -> int:
        staged = 0
        while True:
            looked = await self.store.stage(self.owner, range(SHARDS), 1_000)
            staged += looked.runs
            if not looked.more:
                return staged


@pytest.fixture
async def worker(store: SqliteStore) -> Worker:
    session = await store.open_session(NewSession(name="w", kind="worker", ttl=10_000 * SECOND))
    owner = await store.open_session(NewSession(name="s", kind="scheduler", ttl=10_000 * SECOND))
    await store.take(owner, range(SHARDS))
    return Worker(store, session, owner)


def a_limited_run(key: str, most: int = 1) -> NewRun:
    return a_run(policy=a_policy(limits=(a_limit(key, most),)))


async def count_states(store: SqliteStore, runs: list[NewRun]) -> Counter[RunState]:
    views = await store.runs([run.id for run in runs])
    return Counter(view.state for view in views if view is not None)


def break_by_hand(path: Path, statement: str, *values: str) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(statement, values)
    assert connection.changes()
    connection.close()


# Races

RACER = """
import asyncio, sys
from pathlib import Path
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.stores.sqlite import SqliteStore
from mainspring.core.model.runs.unique import Unique
from tests.support.builders import a_run

async def main(path):
    store = SqliteStore(Path(path), SystemClock(), shards=4)
    await store.open()
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(20):
        [answer] = await store.submit([a_run(unique=Unique(key=f"k{number}"))])
        print(number, answer.id, int(answer.new), flush=True)
    await store.close()

asyncio.run(main(sys.argv[1]))
"""


def test_processes_that_race_for_a_unique_key_make_one_run(path: Path) -> None:
    root = Path(__file__).parents[2]
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
            env={"PYTHONPATH": f"{root}:{root / 'src'}"},
        )
        for _ in range(2)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    outputs = [racer.communicate("go\n")[0] for racer in racers]
    answers: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for line in "".join(outputs).splitlines():
        number, run, new = line.split()
        answers[number].append((run, new))
    assert len(answers) == 20
    for pairs in answers.values():
        assert len({run for run, _ in pairs}) == 1
        assert sorted(new for _, new in pairs) == ["0", "1"]


async def test_a_key_never_runs_more_often_at_once_than_its_limit(
    store: SqliteStore, worker: Worker, clock: ManualClock
) -> None:
    keys, many, most = (200, 5_000, 3) if LARGE else (20, 300, 3)
    random = Random(5)
    runs = [a_limited_run(f"customer:{random.randrange(keys)}", most) for _ in range(many)]
    began = time.perf_counter()
    for start in range(0, many, 500):
        await store.submit(runs[start : start + 500])
    keys_by_run = {run.id: run.policy.limits[0].key for run in runs}
    held: list[HeldRun] = []
    running: Counter[str] = Counter()
    ended = 0
    while ended < many:
        claimed = await worker.claim(400)
        held += claimed
        running.update(keys_by_run[run.id] for run in claimed)
        assert max(running.values()) <= most
        random.shuffle(held)
        part, held = held[:300], held[300:]
        assert part, "no run can be claimed"
        await store.complete([complete_success(run, None) for run in part])
        running.subtract(keys_by_run[run.id] for run in part)
        ended += len(part)
        clock.advance(1_000)
    if LARGE:
        print(f"{many / (time.perf_counter() - began):,.0f} limited runs/s")  # noqa: T201
    assert await store.sweep(1_000) == 0
    assert await count_states(store, runs) == {RunState.SUCCEEDED: many}


# Lines longer than a batch


async def test_a_breaker_opens_on_more_than_a_batch_and_closes_on_it(
    store: SqliteStore, worker: Worker, clock: ManualClock
) -> None:
    policy = a_policy(retries=0, breaker=Breaker(failures=1, within=MINUTE, pause=30 * SECOND))
    runs = [a_run(policy=policy) for _ in range(1_200)]
    await store.submit(runs)
    [first] = await worker.claim(1)
    await store.complete([complete_failure(first, "no", Random(0), now=clock.now())])
    assert (await count_states(store, runs))[RunState.QUEUED] == 699, "one batch is blocked at once"
    clock.advance(31 * SECOND)
    assert await worker.stage() == 0, "no run passes while some are still queued from before"
    while await store.resolve(400):
        pass
    assert await count_states(store, runs) == {RunState.BLOCKED: 1_199, RunState.FAILED: 1}
    clock.advance(50 * MILLISECOND)
    assert await worker.stage() == 1, "the probe is chosen when all were recalled"
    [ahead] = await worker.claim()
    assert await store.sweep(100) == 0
    await store.complete([complete_success(ahead, None)])
    await worker.stage()
    assert (await count_states(store, runs))[RunState.QUEUED] == 1_198
    assert await store.sweep(100) == 0


async def test_runs_blocked_by_one_limit_do_not_block_others_at_a_second_limit(
    store: SqliteStore, worker: Worker, clock: ManualClock
) -> None:
    full, door = a_limit("full", 1), a_limit("door", 1)
    await store.submit([a_run(policy=a_policy(limits=(full,))), a_run(policy=a_policy(limits=(door,)))])
    inside = await worker.claim()
    clock.advance(1)
    held_up = [a_run(policy=a_policy(limits=(door, full))) for _ in range(400)]
    await store.submit(held_up)
    clock.advance(1)
    last = a_run(policy=a_policy(limits=(door,)))
    await store.submit([last])
    [through] = [run for run in inside if run.policy.limits == (door,)]
    await store.complete([complete_success(through, None)])
    await worker.stage()
    assert await store.sweep(100) == 0
    assert [run.id for run in await worker.claim()] == [last.id]


# Repairs by the sweep
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE limiter SET used = used + 1",
        "UPDATE limiter SET used = 0",
        "DELETE FROM limiter",
        "UPDATE waiting SET waits = 17, state = 'limited'",
        "UPDATE waiting SET waits = NULL",
    ],
)
async def test_a_sweep_repairs_a_limiter(path: Path, store: SqliteStore, worker: Worker, statement: str) -> None:
    runs = [a_limited_run("a", 2) for _ in range(4)]
    await store.submit(runs)
    assert await store.sweep(100) == 0
    break_by_hand(path, statement)
    assert await store.sweep(100) > 0
    assert await store.sweep(100) == 0
    for _ in range(2):
        held = await worker.claim()
        assert len(held) == 2
        await store.complete([complete_success(run, None) for run in held])
    assert await count_states(store, runs) == {RunState.SUCCEEDED: 4}


async def test_a_sweep_counts_the_running_runs_of_a_limit(path: Path, store: SqliteStore, worker: Worker) -> None:
    await store.submit([a_limited_run("a", 1) for _ in range(2)])
    assert len(await worker.claim()) == 1
    break_by_hand(path, "UPDATE limiter SET used = 2")
    assert [await store.sweep(100) for _ in range(2)] == [1, 0]
    await worker.stage()
    assert await worker.claim() == []


async def test_a_sweep_resolves_children_whose_parent_left_no_record(
    path: Path, store: SqliteStore, worker: Worker
) -> None:
    parent, other = a_run(), a_run(delay=MINUTE)
    child = a_run(after=[parent, other])
    await store.submit([parent, other, child])
    await store.cancel([parent.id])
    assert await store.sweep(100) == 0
    break_by_hand(path, "DELETE FROM ended_parent")
    assert await store.sweep(100) == 1
    assert await store.resolve(100) == 1
    assert await store.sweep(100) == 0
    [view] = await store.runs([child.id])
    assert view is not None
    assert (view.state, view.reason) == (RunState.SKIPPED, f"parent {parent.id} cancelled")


# Cleanup


async def test_limiters_of_unused_keys_are_deleted(
    path: Path, store: SqliteStore, worker: Worker, clock: ManualClock
) -> None:
    policy = a_policy(
        retries=0,
        limits=(a_limit("a", 2), a_limit("b", 5, 10 * SECOND)),
        breaker=Breaker(failures=3, within=MINUTE, pause=MINUTE),
    )
    await store.submit([a_run(policy=policy) for _ in range(4)])
    for failing in (True, False):
        held = await worker.claim()
        now = clock.now()
        await store.complete(
            [
                complete_failure(run, "no", Random(0), now=now) if failing else complete_success(run, None)
                for run in held
            ]
        )
    for _ in range(3):
        clock.advance(MINUTE)
        await worker.stage()
    connection = apsw.Connection(str(path))
    assert [connection.execute(f"SELECT count(*) FROM {table}").get for table in ("limiter", "mark")] == [0, 0]
    connection.close()


async def test_a_scheduled_run_with_a_limit_emits_its_event_when_it_is_queued(
    path: Path, store: SqliteStore, worker: Worker, clock: ManualClock
) -> None:
    """Temporary state of one request must not affect the next one on the same connection."""
    await store.attach_reader("r")
    later = a_run(policy=a_limited_run("a").policy, delay=MINUTE)
    await store.submit([later])
    clock.advance(MINUTE)
    assert await worker.stage() == 1
    assert [batch.kind for batch in await store.events("r", 10)] == ["run.submitted", "run.queued"]


async def test_concurrent_submits_share_a_limit(store: SqliteStore) -> None:
    """The HTTP API submits like this: each run in a call of its own, all at the same time."""
    await asyncio.gather(*(store.submit([a_limited_run("a", 2)]) for _ in range(20)))
    [depth] = await store.depths()
    assert depth.queued == 2
    assert await store.sweep(100) == 0
