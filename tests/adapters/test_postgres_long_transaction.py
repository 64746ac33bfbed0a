"""A transaction that somebody left open keeps dead rows at the front of queues. Claims do not go through them all."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest

from mainspring.adapters.store.postgres import PostgresStore, upkeep
from mainspring.adapters.store.postgres.database import Connection
from mainspring.adapters.store.postgres.names import Kind
from mainspring.domain.instant import HOUR
from mainspring.domain.run import settle_success
from mainspring.ports.store import Want
from tests.support.builders import a_run, a_worker

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
async def test_a_claim_that_begins_at_a_floor_reads_little(store: PostgresStore) -> None:
    worker = await store.open_session(a_worker(ttl=HOUR))
    for start in range(0, CHURNED, 500):
        await store.submit([a_run() for _ in range(500)])
        held = await store.claim(worker, start + 1, [Want("default", 500)])
        assert len(held) == 500
        await store.settle([settle_success(run, None) for run in held])
    await store.submit([a_run() for _ in range(20)])
    lowest = await lowest_rank(store)
    from_front, at_floor = [await pages_of_claim(store, worker, floor) for floor in (0, lowest)]
    assert from_front > 100
    assert at_floor < from_front / 3


async def pages_of_claim(store: PostgresStore, worker: int, floor: int) -> int:
    """How many pages a claim of one run looks at to find it. It is taken back."""

    async def claim(connection: Connection) -> int:
        queue = await connection.fetchval("SELECT id FROM mainspring.name WHERE kind = 3 AND name = 'default'")
        asked = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {store._engine.sql['claim']}"
        transaction = connection.transaction()
        await transaction.start()
        plan = await connection.fetchval(asked, worker, 1_000_000, [queue], [1], [floor])
        await transaction.rollback()
        [look] = [node for node in nodes(json.loads(plan)[0]["Plan"]) if node.get("Index Name") == "run_ready"]
        return int(look["Shared Hit Blocks"] + look["Shared Read Blocks"])

    return await store._engine.run(claim)


@pytest.mark.usefixtures("left_open")
async def test_a_more_urgent_run_is_found_although_claims_do_not_begin_at_the_front(store: PostgresStore) -> None:
    worker = await store.open_session(a_worker(ttl=HOUR))
    await store.submit([a_run() for _ in range(30)])
    await store.claim(worker, 1, [Want("default", 1)])
    queue = store._names.number(Kind.QUEUE, "default")
    # As if a look from the front had taken long, for good reason.
    store._ranks.looked(store._ranks.begin() - 0.02, 1_000_000, {queue: await lowest_rank(store)})
    urgent = a_run(priority=1)
    await store.submit([urgent])
    async with asyncio.timeout(10):
        number = 2
        while urgent.id not in {run.id for run in await store.claim(worker, number, [Want("default", 1)])}:
            number += 1
            await store.submit([a_run()])
    assert number > 2, "the first claim began at the floor"


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


async def lowest_rank(store: PostgresStore) -> int:
    found = await store._engine.run(
        lambda connection: connection.fetchval("SELECT min(rank) FROM mainspring.run WHERE state = 3")
    )
    return int(found)


@pytest.mark.slow
@pytest.mark.usefixtures("left_open")
async def test_a_vacuum_that_was_in_vain_is_not_tried_again_at_once(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_DEAD_ROWS", 100)
    worker = await store.open_session(a_worker(ttl=HOUR))
    await store.submit([a_run() for _ in range(500)])
    held = await store.claim(worker, 1, [Want("default", 500)])
    await store.settle([settle_success(run, None) for run in held])
    async with asyncio.timeout(30):
        # The server counts dead rows a moment later.
        while not await vacuums(store):
            await store.tidy()
    for _ in range(3):
        await store.tidy()
    assert await vacuums(store) == 1


async def vacuums(store: PostgresStore) -> int:
    count = "SELECT vacuum_count FROM pg_stat_all_tables WHERE relid = 'mainspring.run'::regclass"
    return int(await store._engine.run(lambda connection: connection.fetchval(count)))
