"""Races between retention or upkeep and live work, and between two processes that do them."""

import asyncio
import random

import pytest

from mainspring.core.model.base.instant import DAY, MINUTE
from mainspring.core.model.runs.completion import CompletionAnswer, complete_failure, complete_release
from mainspring.core.ports.storage.upkeep import Retention
from mainspring.stores.postgres.work import upkeep
from tests.support.builders import a_run
from tests.support.races import ALL_SHARDS, MOVE_BODY, Races

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


async def prune(races: Races, retention: Retention) -> None:
    while await races.store.prune(retention, 1_000):
        pass


async def test_an_overdue_run_that_was_not_staged_for_a_week_keeps_its_body(races: Races) -> None:
    """There was no scheduler for longer than bodies are kept, and retention runs first."""
    run, keyed = a_run(delay=MINUTE), a_run(delay=MINUTE, key="k")
    await races.store.submit([run, keyed])
    await races.advance(9 * DAY)
    await prune(races, Retention())
    assert (await races.store.stage(await races.a_scheduler(), ALL_SHARDS, 10)).runs == 2
    assert {held.id for held in await races.claim(await races.a_worker())} == {run.id, keyed.id}


async def test_a_run_that_was_released_for_longer_than_bodies_are_kept_keeps_its_body(races: Races) -> None:
    [held] = await races.start(a_run())
    await races.store.complete([complete_release(held, delay=20 * DAY)])
    await races.advance(9 * DAY)
    await prune(races, Retention())
    await races.advance(12 * DAY)
    assert (await races.store.stage(await races.a_scheduler(), ALL_SHARDS, 10)).runs == 1
    assert [again.id for again in await races.claim(await races.a_worker())] == [held.id]


async def test_a_run_whose_body_moves_during_its_claim_is_claimed_again_after_a_heartbeat(races: Races) -> None:
    worker, run = await races.a_worker(), a_run()
    await races.store.submit([run])
    holding = await races.hold("session WHERE id = $1", worker)
    claiming = asyncio.create_task(races.claim(worker))
    await races.blocked(claiming)
    await races.watch.execute(MOVE_BODY, run.id)
    await races.watch.execute("UPDATE run SET body_bucket = -1 WHERE id = $1", run.id)
    await holding.execute("COMMIT")
    if not await claiming:
        await races.store.heartbeat(worker, DAY, [], [], 1)
        [held] = await races.claim(worker, 2)
        assert held.attempt == 1


async def test_a_run_that_is_staged_while_its_day_is_pruned_keeps_its_body(races: Races) -> None:
    queued, overdue = a_run(), a_run(delay=MINUTE)
    await races.store.submit([queued, overdue])
    await races.advance(9 * DAY)
    scheduler = await races.a_scheduler()
    moving = await races.a_transaction()
    await moving.execute(MOVE_BODY, queued.id)
    pruning = asyncio.create_task(races.store.prune(Retention(), 1_000))
    await races.blocked(pruning)
    assert (await races.store.stage(scheduler, ALL_SHARDS, 10)).runs == 1
    await moving.execute("ROLLBACK")
    await pruning
    await prune(races, Retention())
    assert {held.id for held in await races.claim(await races.a_worker())} == {queued.id, overdue.id}


async def test_two_processes_that_prune_at_once_drop_every_old_partition(races: Races) -> None:
    other = await races.a_store()
    await races.freeze_clock()
    await races.store.submit([a_run()])
    await races.advance(50 * DAY)
    kept = Retention(succeeded=DAY, ledger=DAY, unsuccessful=1_000 * DAY)
    while any(await asyncio.gather(*(store.prune(kept, 1_000) for store in (races.store, other)))):
        pass
    today = (await races.store.now()) // DAY
    for family in ("history_succeeded", "ledger"):
        assert min(await races.partition_days(family)) == today - 1


async def test_live_work_continues_while_pruning_waits_for_a_reader(races: Races) -> None:
    """A later prune finishes what a cancelled one has begun."""
    await races.freeze_clock()
    await races.advance(50 * DAY)
    reading = await races.a_transaction()
    await reading.execute("SELECT count(*) FROM attempt")
    pruning = asyncio.create_task(races.store.prune(Retention(unsuccessful=DAY), 1_000))
    await races.blocked(pruning)
    [held] = await races.start(a_run())
    failure = complete_failure(held, "boom", random.Random(1), now=held.started_at)
    assert await races.store.complete([failure]) == [CompletionAnswer.ACCEPTED]
    pruning.cancel()
    await asyncio.gather(pruning, return_exceptions=True)
    await reading.execute("COMMIT")
    await prune(races, Retention(unsuccessful=DAY))
    today = (await races.store.now()) // DAY
    assert min(await races.partition_days("attempt")) == today - 1


async def test_a_detached_partition_that_another_process_replaces_meanwhile_is_not_dropped(races: Races) -> None:
    await races.freeze_clock()
    day = (await races.store.now()) // DAY + 30
    table, bounds = f"attempt_d{day}", f"FROM ({day * DAY}) TO ({(day + 1) * DAY})"
    await races.watch.execute(f"CREATE TABLE {table} (LIKE attempt INCLUDING ALL)")
    holding = await races.a_transaction()
    await holding.execute("SELECT pg_advisory_xact_lock(hashtext('mainspring.partitions'))")
    pruning = asyncio.create_task(races.store.prune(Retention(), 1_000))
    await races.blocked(pruning)
    await races.watch.execute(f"DROP TABLE {table}; CREATE TABLE {table} (LIKE attempt INCLUDING ALL)")
    await races.watch.execute(f"ALTER TABLE attempt ATTACH PARTITION {table} FOR VALUES {bounds}")
    await holding.execute("COMMIT")
    await pruning
    assert day in await races.partition_days("attempt")


async def test_upkeep_skips_a_table_that_another_process_is_vacuuming(
    races: Races, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_DEAD_ROWS", -1)
    vacuuming = await races.a_transaction()
    await vacuuming.execute("LOCK TABLE run IN SHARE UPDATE EXCLUSIVE MODE")
    # An upkeep that waits for the lock does not return.
    await races.store.tidy()
    held = await races.watch.fetchval(
        "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database "
        "WHERE locktype = 'advisory' AND d.datname = current_database()"
    )
    assert held == 0
