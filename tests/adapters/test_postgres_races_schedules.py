"""Races between schedulers that fire ticks and calls that change or cancel the job."""

import asyncio
from collections.abc import Awaitable

import msgspec
import pytest

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, SECOND
from mainspring.core.model.runs.completion import CompletionAnswer, complete_success
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.job import JobState, Overlap
from mainspring.core.ports.storage.upkeep import Retention
from tests.support.builders import a_fire, a_job, a_spec, a_tick, after_each, every
from tests.support.races import ALL_SHARDS, Races

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


async def test_cancel_of_a_job_reaches_the_run_of_a_tick_that_is_being_fired(races: Races) -> None:
    scheduler = await races.a_scheduler()
    job = await races.put(a_job())
    now = await races.store.now()
    tick = a_tick(job, now)
    assert tick.run_id is not None
    async with races.paused(lambda store: store.fire(scheduler, [a_fire(job, tick, next_fire=now + HOUR)])) as firing:
        cancelling = asyncio.create_task(races.store.set_jobs_state([job.id], JobState.CANCELLED))
        await races.blocked(cancelling)
    assert [fired.runs for fired in firing.result()] == [1]
    assert await cancelling == {job.id: JobState.CANCELLED}
    assert await races.state(tick.run_id) is RunState.CANCELLED


async def test_a_tick_that_was_planned_before_a_cancel_of_its_job_is_not_fired_after_it(races: Races) -> None:
    scheduler = await races.a_scheduler()
    job = await races.put(a_job())
    now = await races.store.now()
    async with races.paused(lambda store: store.set_jobs_state([job.id], JobState.CANCELLED)):
        firing = asyncio.create_task(races.store.fire(scheduler, [a_fire(job, a_tick(job, now), next_fire=now + HOUR)]))
        await races.blocked(firing)
    [fired] = await firing
    assert not fired.applied
    assert await races.store.ledger(job.id, 0, now + DAY, 10) == []


@pytest.mark.parametrize("how", ["schedule changed", "cancelled"])
async def test_a_tick_that_is_being_fired_stays_in_the_ledger_when_its_schedule_ends(races: Races, how: str) -> None:
    scheduler = await races.a_scheduler()
    declared = a_job(a_spec(schedule=every(HOUR)))
    job = await races.put(declared)
    at = job.next_fire
    assert at is not None
    await races.advance(at - await races.store.now() + SECOND)

    def end_schedule() -> Awaitable[object]:
        if how == "cancelled":
            return races.store.set_jobs_state([job.id], JobState.CANCELLED)
        return races.store.put_jobs([a_job(msgspec.structs.replace(declared.spec, schedule=every(DAY)))])

    fire = a_fire(job, a_tick(job, at), next_fire=at + HOUR)
    async with races.paused(lambda store: store.fire(scheduler, [fire])) as firing:
        ending = asyncio.ensure_future(end_schedule())
        await races.blocked(ending)
    assert [fired.runs for fired in firing.result()] == [1]
    await ending
    [entry] = await races.store.ledger(job.id, 0, at + DAY, 10)
    assert (entry.scheduled_at, entry.decision) == (at, "run")


@pytest.mark.parametrize("overlap", [Overlap.SKIP, Overlap.QUEUE], ids=str)
async def test_two_schedulers_that_fire_one_tick_make_one_run(races: Races, overlap: Overlap) -> None:
    scheduler = await races.a_scheduler()
    job = await races.put(a_job(a_spec(overlap=overlap)))
    now = await races.store.now()
    fire = a_fire(job, a_tick(job, now), next_fire=now + HOUR)
    other = await races.a_store()
    await other.due_jobs(list(ALL_SHARDS), now + DAY, 10)
    holding = await races.hold("schedule WHERE job_id = $1", job.id)
    both = [asyncio.create_task(store.fire(scheduler, [fire])) for store in (races.store, other)]
    await races.blocked(sessions=2)
    await holding.execute("COMMIT")
    answers = [answer for [answer] in await asyncio.gather(*both)]
    assert sorted(answer.applied for answer in answers) == [False, True]
    assert sum(answer.runs for answer in answers) == 1


async def test_the_last_tick_of_a_job_and_a_cancel_that_deadlock_are_both_carried_out(races: Races) -> None:
    """One locks the schedule and then the job, the other the reverse. The server ends one, which the store retries."""
    scheduler = await races.a_scheduler()
    job = await races.put(a_job())
    now = await races.store.now()
    fire = a_fire(job, a_tick(job, now), next_fire=None, finished=True)
    holding = await races.hold("job WHERE id = $1", job.id)
    firing = asyncio.create_task(races.store.fire(scheduler, [fire]))
    await races.blocked(firing)
    cancelling = asyncio.create_task(races.store.set_jobs_state([job.id], JobState.CANCELLED))
    await races.blocked(cancelling, sessions=2)
    await holding.execute("COMMIT")
    [[fired], states] = await asyncio.gather(firing, cancelling)
    stored = await races.job(job)
    assert states[job.id] is stored.state
    if fired.applied and stored.state is JobState.CANCELLED:
        [entry] = await races.store.ledger(job.id, 0, now + DAY, 10)
        assert entry.run_id is not None
        assert await races.state(RunId(entry.run_id)) is RunState.CANCELLED


async def test_a_fixed_delay_fires_again_if_its_run_completes_while_the_job_is_changed(races: Races) -> None:
    worker, scheduler = await races.a_worker(), await races.a_scheduler()
    declared = a_job(a_spec(schedule=after_each(MINUTE)))
    job = await races.put(declared)
    await races.fire(scheduler, job)
    [held] = await races.claim(worker)
    assert (await races.job(job)).next_fire is None
    changed = a_job(msgspec.structs.replace(declared.spec, schedule=after_each(2 * MINUTE)))
    async with races.paused(lambda store: store.put_jobs([changed])):
        completing = asyncio.create_task(races.store.complete([complete_success(held, None)]))
        await races.blocked(completing)
    assert await completing == [CompletionAnswer.ACCEPTED]
    assert (await races.job(job)).next_fire is not None


async def test_a_late_tick_is_fired_after_another_process_has_dropped_the_partition_of_its_day(races: Races) -> None:
    scheduler = await races.a_scheduler()
    job = await races.put(a_job(a_spec(schedule=every(MINUTE))))
    await races.fire(scheduler, job, late_by=20 * DAY)
    other = await races.a_store()
    while await other.prune(Retention(ledger=DAY), 1_000):
        pass
    await races.fire(scheduler, await races.job(job), late_by=20 * DAY)
