"""Races between heartbeats, claims, completions and the reaper, and between schedulers that own shards."""

import asyncio

import pytest

from mainspring.core.model.base.errors import Fenced
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE
from mainspring.core.model.runs.completion import CompletionAnswer, complete_loss, complete_success
from mainspring.core.model.runs.run import RunState
from mainspring.core.store import Demand
from tests.support.builders import a_run
from tests.support.races import Races

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


# Sessions of workers


async def test_a_claim_of_a_session_that_is_being_closed_returns_nothing(races: Races) -> None:
    worker = await races.a_worker()
    await races.store.submit([a_run()])
    async with races.paused(lambda store: store.close_session(worker)):
        claiming = asyncio.create_task(races.claim(worker))
        await races.blocked(claiming)
    assert await claiming == []


async def test_the_reaper_does_not_wait_for_a_claim_and_finds_its_runs_after_the_commit(races: Races) -> None:
    """A client that froze in the middle of a claim would otherwise keep every session from expiring."""
    worker, run = await races.a_worker(ttl=MINUTE), a_run()
    await races.store.submit([run])
    async with races.paused(lambda store: store.claim(worker, 1, [Demand("default", 10)])):
        await races.advance(HOUR)
        assert await races.store.lost_runs(10) == []
    [lost] = await races.store.lost_runs(10)
    assert lost.id == run.id
    assert await races.store.complete([complete_loss(lost, blamed=False)]) == [CompletionAnswer.ACCEPTED]
    assert await races.state(run.id) is RunState.QUEUED


async def test_the_reaper_does_not_expire_a_session_whose_heartbeat_commits_first(races: Races) -> None:
    worker = await races.a_worker(ttl=MINUTE)
    await races.advance(HOUR)
    async with races.paused(lambda store: store.heartbeat(worker, DAY, [], [], 0)) as beating:
        reaping = asyncio.create_task(races.store.lost_runs(10))
        await races.blocked(reaping)
    assert beating.result().alive
    await reaping
    assert (await races.store.heartbeat(worker, DAY, [], [], 0)).alive


async def test_a_heartbeat_during_the_expiry_of_its_session_is_refused(races: Races) -> None:
    worker = await races.a_worker(ttl=MINUTE)
    await races.advance(HOUR)
    async with races.paused(lambda store: store.lost_runs(10)):
        beating = asyncio.create_task(races.store.heartbeat(worker, DAY, [], [], 0))
        await races.blocked(beating)
    assert not (await beating).alive


async def test_a_completion_of_an_attempt_that_the_reaper_is_requeuing_is_stale(races: Races) -> None:
    worker, run = await races.a_worker(), a_run()
    await races.store.submit([run])
    [held] = await races.claim(worker)
    async with races.paused(lambda store: store.complete([complete_loss(held, blamed=False)])):
        completing = asyncio.create_task(races.store.complete([complete_success(held, b"1")]))
        await races.blocked(completing)
    # The reaper completed the attempt under the same fence, as lost: the success is no duplicate of that.
    assert await completing == [CompletionAnswer.STALE]
    [again] = await races.claim(worker, 2)
    assert (again.attempt, again.lost) == (2, 1)
    assert again.fence > held.fence
    assert await races.store.complete([complete_success(again, b"2")]) == [CompletionAnswer.ACCEPTED]
    assert await races.store.complete([complete_success(held, b"1")]) == [CompletionAnswer.STALE]


async def test_a_completion_of_a_returned_attempt_is_stale_even_after_a_cancel_of_its_run(races: Races) -> None:
    worker, run = await races.a_worker(), a_run()
    await races.store.submit([run])
    [held] = await races.claim(worker)
    assert (await races.store.heartbeat(worker, HOUR, [], [], 1)).returned == 1
    assert await races.store.complete([complete_success(held, None)]) == [CompletionAnswer.STALE]
    await races.store.cancel([run.id])
    assert await races.store.complete([complete_success(held, None)]) == [CompletionAnswer.STALE]


async def test_a_completion_that_deadlocks_is_retried(races: Races) -> None:
    low, high = sorted(await races.start(a_run(), a_run()), key=lambda run: run.id)
    holding = await races.hold("run WHERE id = $1", high.id)
    completing = asyncio.create_task(races.store.complete([complete_success(run, None) for run in (low, high)]))
    await races.blocked(completing)
    crossing = asyncio.create_task(holding.execute("SELECT FROM run WHERE id = $1 FOR UPDATE", low.id))
    done, _ = await asyncio.wait([completing, crossing], return_when=asyncio.FIRST_COMPLETED)
    if crossing in done and crossing.exception() is None:
        await holding.execute("COMMIT")
    else:
        await holding.execute("ROLLBACK")
        await asyncio.gather(crossing, return_exceptions=True)
    assert await completing == [CompletionAnswer.ACCEPTED] * 2


# Shards


async def test_a_scheduler_that_had_to_wait_does_not_take_a_shard_that_another_took_meanwhile(races: Races) -> None:
    late = await races.store.join("late", MINUTE)
    await races.store.take(late, [0])
    await races.advance(HOUR)
    second = await races.store.join("second", DAY)
    holding = await races.hold("session WHERE id = $1", late)
    taking = asyncio.create_task(races.store.take(second, [0, 1]))
    await races.blocked(taking)
    third = await races.store.join("third", DAY)
    assert await races.store.take(third, [1]) == {1: 1}
    await holding.execute("COMMIT")
    assert await taking == {0: 2}
    assert set((await races.store.renew(third, DAY)).owned) == {1}


async def test_a_shard_whose_owner_is_renewing_its_lease_is_not_taken(races: Races) -> None:
    owner = await races.store.join("owner", MINUTE)
    await races.store.take(owner, [0])
    await races.advance(HOUR)
    other = await races.store.join("other", DAY)
    async with races.paused(lambda store: store.renew(owner, DAY)):
        taking = asyncio.create_task(races.store.take(other, [0]))
        await races.blocked(taking)
    assert await taking == {}
    await races.advance(2 * DAY)
    await races.store.renew(other, DAY)
    with pytest.raises(Fenced):
        await races.store.renew(owner, DAY)
