"""Races between a cancel of a job or of a run and other changes of its runs."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND
from mainspring.core.model.runs.completion import CompletionAnswer, complete_failure, complete_release, complete_success
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.model.schedules.job import JobState, Overlap
from mainspring.core.store import Demand
from mainspring.stores.postgres import PostgresStore
from tests.support.builders import a_job, a_run, a_spec
from tests.support.races import ALL_SHARDS, Races

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


# Cancel of a job


async def test_cancel_of_a_job_reaches_a_run_that_is_being_claimed(races: Races) -> None:
    worker, scheduler = await races.a_worker(), await races.a_scheduler()
    job = await races.put(a_job())
    run = await races.fire(scheduler, job)
    async with races.paused(lambda store: store.claim(worker, 1, [Demand("default", 10)])):
        cancelling = asyncio.create_task(races.store.set_jobs_state([job.id], JobState.CANCELLED))
        await races.blocked(cancelling)
    await cancelling
    assert await races.state(run) is RunState.CANCELLING


async def test_cancel_of_a_job_reaches_a_run_that_is_being_staged(races: Races) -> None:
    scheduler = await races.a_scheduler()
    job = await races.put(a_job())
    run = await races.fire(scheduler, job, delay=MINUTE)
    await races.advance(2 * MINUTE)
    async with races.paused(lambda store: store.stage(scheduler, ALL_SHARDS, 10)) as staging:
        cancelling = asyncio.create_task(races.store.set_jobs_state([job.id], JobState.CANCELLED))
        await races.blocked(cancelling)
    assert staging.result().runs == 1
    await cancelling
    assert await races.state(run) is RunState.CANCELLED


async def test_cancel_of_a_job_reaches_a_run_whose_attempt_is_failing(races: Races) -> None:
    worker, scheduler = await races.a_worker(), await races.a_scheduler()
    job = await races.put(a_job())
    run = await races.fire(scheduler, job)
    [held] = await races.claim(worker)
    failure = complete_failure(held, "boom", random.Random(1), now=held.started_at)
    async with races.paused(lambda store: store.complete([failure])):
        cancelling = asyncio.create_task(races.store.set_jobs_state([job.id], JobState.CANCELLED))
        await races.blocked(cancelling)
    await cancelling
    assert await races.state(run) is RunState.CANCELLED


async def test_cancel_of_a_job_reaches_a_run_that_a_heartbeat_is_requeuing(races: Races) -> None:
    """The worker never learned of its claim, so that its next heartbeat returns the run."""
    worker, scheduler = await races.a_worker(), await races.a_scheduler()
    job = await races.put(a_job())
    run = await races.fire(scheduler, job)
    await races.claim(worker)
    async with races.paused(lambda store: store.heartbeat(worker, HOUR, [], [], 1)) as beating:
        cancelling = asyncio.create_task(races.store.set_jobs_state([job.id], JobState.CANCELLED))
        await races.blocked(cancelling)
    assert beating.result().returned == 1
    await cancelling
    assert await races.state(run) is RunState.CANCELLED


async def test_a_tick_cancels_the_previous_run_while_that_is_being_claimed(races: Races) -> None:
    worker, scheduler = await races.a_worker(), await races.a_scheduler()
    job = await races.put(a_job(a_spec(overlap=Overlap.CANCEL)))
    first = await races.fire(scheduler, job, late_by=SECOND)
    stored = await races.job(job)
    async with races.paused(lambda store: store.claim(worker, 1, [Demand("default", 10)])):
        firing = asyncio.create_task(races.fire(scheduler, stored))
        await races.blocked(firing)
    second = await firing
    assert await races.state(first) is RunState.CANCELLING
    assert await races.state(second) is RunState.BLOCKED


# Cancel of a run

Change = Callable[[PostgresStore, HeldRun], Coroutine[Any, Any, object]]


async def _fail(store: PostgresStore, held: HeldRun) -> object:
    return await store.complete([complete_failure(held, "boom", random.Random(1), now=held.started_at)])


async def _release(store: PostgresStore, held: HeldRun) -> object:
    return await store.complete([complete_release(held)])


async def _succeed(store: PostgresStore, held: HeldRun) -> object:
    return await store.complete([complete_success(held, None)])


@pytest.mark.parametrize(
    ("change", "after"),
    [(_fail, RunState.CANCELLED), (_release, RunState.CANCELLED), (_succeed, RunState.SUCCEEDED)],
    ids=["failed", "released", "succeeded"],
)
async def test_a_cancel_finds_a_run_whose_attempt_is_being_completed(
    races: Races, change: Change, after: RunState
) -> None:
    [held] = await races.start(a_run())
    async with races.paused(lambda store: change(store, held)):
        cancelling = asyncio.create_task(races.store.cancel([held.id]))
        await races.blocked(cancelling)
    assert await cancelling == {held.id: after}
    assert await races.state(held.id) is after


async def test_a_cancel_finds_a_run_that_is_being_claimed(races: Races) -> None:
    run, worker = a_run(), await races.a_worker()
    await races.store.submit([run])
    async with races.paused(lambda store: store.claim(worker, 1, [Demand("default", 10)])):
        cancelling = asyncio.create_task(races.store.cancel([run.id]))
        await races.blocked(cancelling)
    assert await cancelling == {run.id: RunState.CANCELLING}
    assert await races.state(run.id) is RunState.CANCELLING


@pytest.mark.parametrize("expires", [False, True], ids=["staged", "expired"])
async def test_a_cancel_finds_a_scheduled_run_that_is_being_moved(races: Races, expires: bool) -> None:
    run, scheduler = a_run(delay=SECOND, start_within=10 * SECOND if expires else None), await races.a_scheduler()
    after = RunState.SKIPPED if expires else RunState.CANCELLED
    await races.store.submit([run])
    await races.advance(MINUTE)

    async def move(store: PostgresStore) -> object:
        return await (store.expire(10) if expires else store.stage(scheduler, ALL_SHARDS, 10))

    async with races.paused(move):
        cancelling = asyncio.create_task(races.store.cancel([run.id]))
        await races.blocked(cancelling)
    assert await cancelling == {run.id: after}
    assert await races.state(run.id) is after


async def test_an_attempt_that_fails_during_a_cancel_is_not_retried(races: Races) -> None:
    [held] = await races.start(a_run())
    async with races.paused(lambda store: store.cancel([held.id])):
        failing = asyncio.create_task(_fail(races.store, held))
        await races.blocked(failing)
    assert await failing == [CompletionAnswer.ACCEPTED]
    assert await races.state(held.id) is RunState.CANCELLED


async def test_an_attempt_that_is_released_during_a_cancel_is_not_counted(races: Races) -> None:
    [held] = await races.start(a_run())
    async with races.paused(lambda store: store.cancel([held.id])):
        releasing = asyncio.create_task(_release(races.store, held))
        await races.blocked(releasing)
    assert await releasing == [CompletionAnswer.ACCEPTED]
    [view] = await races.store.runs([held.id])
    assert view is not None
    assert (view.state, view.attempt) == (RunState.CANCELLED, 0)


async def test_a_heartbeat_does_not_requeue_a_run_that_is_being_cancelled(races: Races) -> None:
    worker, run = await races.a_worker(), a_run()
    await races.store.submit([run])
    await races.claim(worker)
    async with races.paused(lambda store: store.cancel([run.id])):
        beating = asyncio.create_task(races.store.heartbeat(worker, HOUR, [], [], 1))
        await races.blocked(beating)
    assert (await beating).returned == 0
    assert (await races.store.heartbeat(worker, HOUR, [], [], 1)).returned == 1
    assert await races.state(run.id) is RunState.CANCELLED
