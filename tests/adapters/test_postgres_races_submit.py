"""Races between submits with the same ids, ordering keys or idempotency keys, and between them and completions."""

import asyncio
import random

import pytest

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import IdMaker, RunId
from mainspring.core.model.base.instant import DAY, MINUTE, SECOND
from mainspring.core.model.runs.completion import CompletionAnswer, complete_success
from mainspring.core.model.runs.new_run import About, Idempotency, NewRun
from mainspring.core.model.runs.run import RunState
from mainspring.core.store import KEYS_KEPT
from tests.support.builders import a_job, a_run
from tests.support.races import ALL_SHARDS, MOVE_BODY, Races

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


# Ordering keys


async def test_a_key_passes_to_the_first_in_line_while_retention_moves_its_body(races: Races) -> None:
    worker = await races.a_worker()
    holder, first, second = (a_run(key="k") for _ in range(3))
    await races.store.submit([holder, first, second])
    [held] = await races.claim(worker)
    moving = await races.a_transaction()
    await moving.execute(MOVE_BODY, first.id)
    await moving.execute("UPDATE waiting SET body_bucket = -1 WHERE id = $1", first.id)
    completing = asyncio.create_task(races.store.complete([complete_success(held, None)]))
    await races.blocked(completing)
    await moving.execute("COMMIT")
    assert await completing == [CompletionAnswer.ACCEPTED]
    assert await races.state(first.id) is RunState.QUEUED
    assert await races.state(second.id) is RunState.BLOCKED


async def test_a_key_skips_a_blocked_run_that_is_being_cancelled(races: Races) -> None:
    worker = await races.a_worker()
    holder, first, second = (a_run(key="k") for _ in range(3))
    await races.store.submit([holder, first, second])
    [held] = await races.claim(worker)
    # The cancel has changed the run, and has not locked the key yet.
    async with races.paused(lambda store: store.cancel([first.id]), at="waiting"):
        assert await races.store.complete([complete_success(held, None)]) == [CompletionAnswer.ACCEPTED]
    assert await races.state(second.id) is RunState.QUEUED
    assert [run.id for run in await races.claim(worker, 2)] == [second.id]


async def test_a_run_that_becomes_due_while_its_key_is_released_is_queued_once(races: Races) -> None:
    worker, scheduler = await races.a_worker(), await races.a_scheduler()
    holder, later = a_run(key="k"), a_run(key="k", delay=MINUTE)
    await races.store.submit([holder, later])
    [held] = await races.claim(worker)
    await races.advance(2 * MINUTE)
    async with races.paused(lambda store: store.complete([complete_success(held, None)])):
        staging = asyncio.create_task(races.store.stage(scheduler, ALL_SHARDS, 10))
        await races.blocked(staging)
    assert (await staging).runs == 1
    assert [run.id for run in await races.claim(worker, 2)] == [later.id]


async def test_a_sweep_releases_a_blocked_run_whose_key_lock_is_missing(races: Races) -> None:
    worker = await races.a_worker()
    holder, blocked = a_run(key="k"), a_run(key="k")
    await races.store.submit([holder, blocked])
    await races.claim(worker)
    await races.watch.execute("DELETE FROM run WHERE id = $1", holder.id)
    await races.watch.execute("DELETE FROM key_lock")
    assert await races.store.sweep(10) == 1
    assert [run.id for run in await races.claim(worker, 2)] == [blocked.id]


# Ids


async def test_two_submits_of_one_id_make_one_run(races: Races) -> None:
    run = a_run()
    async with races.paused(lambda store: store.submit([run])):
        submitting = asyncio.create_task(races.store.submit([run, a_run()]))
        await races.blocked(submitting)
    assert [answer.new for answer in await submitting] == [False, True]


async def test_a_repeated_run_of_an_earlier_day_is_recognized_beside_a_new_one(races: Races) -> None:
    """The partition of a body depends on its run alone, not on the days of the other runs of its batch."""
    now = await races.store.now()
    yesterday = IdMaker(random.Random(1)).run(now - DAY, 0)
    run = a_run(id=yesterday, delay=7 * DAY)
    [first] = await races.store.submit([run])
    again = await races.store.submit([run, a_run()])
    assert first.new
    assert [(answer.new, answer.state) for answer in again] == [(False, RunState.SCHEDULED), (True, RunState.QUEUED)]


async def test_a_new_run_of_an_earlier_day_keeps_its_body_beside_a_repeated_one(races: Races) -> None:
    now = await races.store.now()
    yesterday = IdMaker(random.Random(2)).run(now - DAY, 0)
    known, late = a_run(), a_run(id=yesterday, delay=7 * DAY)
    await races.store.submit([known])
    await races.store.submit([known, late])
    assert await races.state(late.id) is RunState.SCHEDULED


async def test_an_id_with_an_unknown_shard_is_refused(races: Races) -> None:
    with pytest.raises(Invalid, match="carries shard 9"):
        await races.store.submit([a_run(shard=9, delay=SECOND)])
    with pytest.raises(Invalid, match="carries shard 9"):
        await races.store.submit([a_run(shard=9)])
    with pytest.raises(Invalid, match="carries shard 9"):
        await races.store.put_jobs([a_job(shard=9)])


@pytest.mark.parametrize("identifier", ["zz", "0" * 31, "0" * 34])
async def test_a_malformed_id_is_refused_and_is_no_outage(races: Races, identifier: str) -> None:
    with pytest.raises(Invalid):
        await races.store.runs([RunId(identifier)])
    with pytest.raises(Invalid):
        await races.store.cancel([RunId(identifier)])


async def test_concurrent_declarations_of_one_job_with_one_id_agree(races: Races) -> None:
    job = a_job()
    stores = [await races.a_store(2) for _ in range(3)]
    for store in stores:
        # Each process knows the names already, so that all of them reach the job at the same time.
        await store.put_jobs([a_job()])
    answers = await asyncio.gather(*(store.put_jobs([job]) for store in stores for _ in range(2)))
    assert {(put.job.id, put.job.version) for [put] in answers} == {(job.id, 1)}


# Idempotency keys


def a_keyed_run(fingerprint: bytes = b"same") -> NewRun:
    return a_run(idempotency=Idempotency("order-1", fingerprint))


@pytest.mark.parametrize("expired", [False, True], ids=["new", "expired"])
@pytest.mark.parametrize("ends", ["COMMIT", "ROLLBACK"])
async def test_the_second_submit_with_an_idempotency_key_waits_for_the_first(
    races: Races, expired: bool, ends: str
) -> None:
    if expired:
        await races.store.submit([a_keyed_run(b"long ago")])
        await races.advance(KEYS_KEPT + MINUTE)
    first, second = a_keyed_run(), a_keyed_run()
    async with races.paused(lambda store: store.submit([first])) as submitting_first:
        submitting = asyncio.create_task(races.store.submit([second]))
        await races.blocked(submitting)
        if ends == "ROLLBACK":
            submitting_first.cancel()
    [answer] = await submitting
    if ends == "COMMIT":
        assert (answer.id, answer.new, answer.conflict) == (first.id, False, False)
        assert await races.store.runs([second.id]) == [None]
    else:
        assert (answer.id, answer.new, answer.conflict) == (second.id, True, False)


async def test_concurrent_submits_of_one_run_make_it_once_and_keep_its_idempotency_key(races: Races) -> None:
    run = a_keyed_run()
    async with races.paused(lambda store: store.submit([run])):
        submitting = asyncio.create_task(races.store.submit([run]))
        await races.blocked(submitting)
    [answer] = await submitting
    assert (answer.id, answer.new, answer.conflict) == (run.id, False, False)
    [again] = await races.store.submit([a_keyed_run()])
    assert (again.id, again.new) == (run.id, False)


async def test_concurrent_batches_with_the_same_idempotency_keys_in_different_orders_succeed(races: Races) -> None:
    async def submit(seed: int) -> int:
        keys = [f"k{number}" for number in range(20)]
        random.Random(seed).shuffle(keys)
        runs = [a_run(idempotency=Idempotency(key, b"same"), author="ada", about=About(tags=(key,))) for key in keys]
        return sum(answer.new for answer in await races.store.submit(runs))

    assert sum(await asyncio.gather(*(submit(seed) for seed in range(6)))) == 20
