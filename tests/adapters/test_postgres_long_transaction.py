"""A transaction that stays open keeps dead rows at the front of queues. Claims do not read all of them."""

import json
from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Any

import asyncpg
import pytest

from mainspring.core.model.base.instant import HOUR
from mainspring.core.model.runs.completion import complete_success
from mainspring.core.store import Demand
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.codes import NameKind
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.rank_floors import RankFloors
from mainspring.stores.postgres.work import upkeep
from tests.support.builders import a_run, a_worker
from tests.support.waiting import eventually

CHURNED = 4_000


@pytest.fixture
async def store(postgres_database: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_database, shards=4)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def left_open(store: PostgresStore, postgres_database: str) -> AsyncIterator[None]:
    connection = await asyncpg.connect(postgres_database)
    await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM mainspring.run")
    yield
    await connection.close()


@pytest.mark.usefixtures("left_open")
async def test_a_claim_that_begins_at_a_floor_reads_few_pages(store: PostgresStore) -> None:
    worker = await store.open_session(a_worker(ttl=HOUR))
    for start in range(0, CHURNED, 500):
        await store.submit([a_run() for _ in range(500)])
        held = await store.claim(worker, start + 1, [Demand("default", 500)])
        assert len(held) == 500
        await store.complete([complete_success(run, None) for run in held])
    await store.submit([a_run() for _ in range(20)])
    lowest = await lowest_rank(store)
    from_front, at_floor = [await count_pages(store, worker, floor) for floor in (0, lowest)]
    assert from_front > 100
    assert at_floor < from_front / 3


async def count_pages(store: PostgresStore, worker: int, floor: int) -> int:
    """How many pages a claim of one run reads to find it. The claim is rolled back."""

    async def claim(connection: Connection) -> int:
        queue = await connection.fetchval("SELECT id FROM mainspring.name WHERE kind = 3 AND name = 'default'")
        text, *values = store._database.sql["claim"].bind(
            session=worker, claim=1_000_000, queues=[queue], limits=[1], start_ranks=[floor]
        )
        transaction = connection.transaction()
        await transaction.start()
        plan = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}", *values)
        await transaction.rollback()
        [scan] = [node for node in flatten(json.loads(plan)[0]["Plan"]) if node.get("Index Name") == "run_ready"]
        return int(scan["Shared Hit Blocks"] + scan["Shared Read Blocks"])

    return await store._database.run(claim)


@pytest.mark.usefixtures("left_open")
async def test_a_more_urgent_run_is_claimed_although_claims_begin_at_a_floor(store: PostgresStore) -> None:
    worker = await store.open_session(a_worker(ttl=HOUR))
    await store.submit([a_run() for _ in range(30)])
    await store.claim(worker, 1, [Demand("default", 1)])
    queue = store._names.get_number(NameKind.QUEUE, "default")
    seconds = 0.0
    # The store measures how slow the front is by its own clock; here it stands still until the test moves it.
    store._ranks = RankFloors(lambda: seconds)
    began = store._ranks.read_clock()
    seconds += 0.02
    store._ranks.record_lookup(began, 1_000_000, {queue: await lowest_rank(store)})
    urgent = a_run(priority=1)
    await store.submit([urgent])
    [held] = await store.claim(worker, 2, [Demand("default", 1)])
    assert held.id != urgent.id, "the first claim begins at the floor"
    # After a while the store looks at the front again, in the background.
    seconds += 3_600
    numbers = count(3)

    async def is_claimed() -> bool:
        await store.submit([a_run()])
        return urgent.id in {run.id for run in await store.claim(worker, next(numbers), [Demand("default", 1)])}

    await eventually(is_claimed)


def flatten(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from flatten(part)


async def lowest_rank(store: PostgresStore) -> int:
    found = await store._database.run(
        lambda connection: connection.fetchval("SELECT min(rank) FROM mainspring.run WHERE state = 3")
    )
    return int(found)


@pytest.mark.slow
@pytest.mark.usefixtures("left_open")
async def test_a_vacuum_that_removed_nothing_is_not_repeated_at_once(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_DEAD_ROWS", 100)
    monkeypatch.setattr(upkeep, "_AGAIN_IN_SECONDS", 1e9)
    worker = await store.open_session(a_worker(ttl=HOUR))
    await store.submit([a_run() for _ in range(500)])
    held = await store.claim(worker, 1, [Demand("default", 500)])
    await store.complete([complete_success(run, None) for run in held])

    async def count_vacuums() -> int:
        count = "SELECT vacuum_count FROM pg_stat_all_tables WHERE relid = 'mainspring.run'::regclass"
        return int(await store._database.run(lambda connection: connection.fetchval(count)))

    async def is_vacuumed() -> bool:
        # The server counts dead rows a moment after the transaction.
        await store.tidy()
        return await count_vacuums() > 0

    await eventually(is_vacuumed)
    for _ in range(3):
        await store.tidy()
    assert await count_vacuums() == 1
