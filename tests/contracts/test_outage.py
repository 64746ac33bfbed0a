"""Every job catches up by its rule after an outage of two hours, while schedulers join, expire and come back.

``OUTAGE_CRONS=10000`` uses ten times as many jobs.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

from mainspring.core.cluster.shards import ShardKeeper
from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND, Instant
from mainspring.core.model.schedules.catch_up import CatchUp
from mainspring.core.model.schedules.job import Job, JobState, Overlap, tick_run_id
from mainspring.core.model.schedules.plan import plan
from mainspring.core.model.schedules.schedule import CronSchedule
from mainspring.core.ports.storage.catalog import RunFilter
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.core.scheduler.scheduler import Scheduler
from tests.support.builders import SHARDS, a_job, a_run, a_spec, every
from tests.support.store_harness import Harness
from tests.support.waiting import eventually

pytestmark = pytest.mark.api

CRONS = int(os.environ.get("OUTAGE_CRONS", "1000"))
QUARTER = 15 * MINUTE
OUTAGE = 2 * HOUR
MISSED = OUTAGE // QUARTER


class Rule(NamedTuple):
    """The policy of a job, which of its missed ticks run, and the reason why the others are skipped."""

    catch_up: CatchUp
    runs: slice
    reason: str
    overlap: Overlap = Overlap.ALLOW
    paused: bool = False


ALL = CatchUp(mode="all")
RULES = (
    Rule(CatchUp(mode="none"), slice(0, 0), "missed"),
    Rule(CatchUp(mode="latest"), slice(-1, None), "superseded by a later tick"),
    Rule(ALL, slice(None), ""),
    Rule(CatchUp(mode="all", cap=3), slice(-3, None), "over the cap of 3"),
    Rule(CatchUp(mode="all", max_age=HOUR), slice(-4, None), "too old"),
    Rule(CatchUp(mode="all", pace=10 * SECOND), slice(None), ""),
    Rule(ALL, slice(0, 1), "overlap", Overlap.SKIP),
    Rule(ALL, slice(0, 2), "overlap", Overlap.QUEUE),
    Rule(ALL, slice(-1, None), "overlap", Overlap.CANCEL),
    Rule(ALL, slice(0, 0), "paused", paused=True),
)


@asynccontextmanager
async def a_scheduler(harness: Harness) -> AsyncIterator[None]:
    clock, wakeups = SystemClock(), LocalWakeups()
    keeper = ShardKeeper(harness.store, SHARDS, wakeups, clock)
    scheduler = Scheduler(harness.store, keeper, wakeups, clock)
    await keeper.start()
    await scheduler.start()
    try:
        yield
    finally:
        await scheduler.stop()
        await keeper.stop()


async def declare_jobs(harness: Harness) -> list[tuple[Job, Rule]]:
    """Declare the jobs seven minutes after a quarter of an hour, so that no tick is near."""
    await harness.advance(QUARTER - await harness.now() % QUARTER + 7 * MINUTE)
    made = []
    for start in range(0, CRONS, 500):
        rules = [RULES[number % len(RULES)] for number in range(start, min(start + 500, CRONS))]
        schedule = CronSchedule(expression="0 */15 * * * *")
        jobs = [
            a_job(a_spec(schedule=schedule, catch_up=rule.catch_up, overlap=rule.overlap), shard=number % SHARDS)
            for number, rule in enumerate(rules)
        ]
        made += list(zip([put.job for put in await harness.store.put_jobs(jobs)], rules, strict=True))
    await harness.store.set_jobs_state([job.id for job, rule in made if rule.paused], JobState.PAUSED)
    return made


async def fire_some_and_expire(harness: Harness) -> None:
    """Fire the oldest third of the ticks as a scheduler whose lease then expires."""
    member = await harness.store.join("dies", 20 * SECOND)
    await harness.store.take(member, harness.all_shards)
    for _ in range(0, CRONS // 3, 100):
        await harness.store.renew(member, 20 * SECOND)
        now = await harness.now()
        fires = plan(await harness.store.due_jobs(harness.all_shards, now, 100), now)
        assert all(fired.applied for fired in await harness.store.fire(member, fires))
    assert not any(fired.applied for fired in await harness.store.fire(member, fires)), (
        "the same fires again do nothing"
    )
    await harness.advance(21 * SECOND)


async def has_caught_up(harness: Harness) -> bool:
    return not await harness.store.due_jobs(harness.all_shards, await harness.now(), 1)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
async def test_after_an_outage_each_job_runs_exactly_the_ticks_of_its_catch_up_rule(harness: Harness) -> None:
    jobs = await declare_jobs(harness)
    first: Instant = await harness.now() // QUARTER * QUARTER + QUARTER
    ticks = [first + place * QUARTER for place in range(MISSED)]
    await harness.advance(OUTAGE)
    await fire_some_and_expire(harness)
    async with a_scheduler(harness), a_scheduler(harness):
        await eventually(lambda: has_caught_up(harness), deadline=600)
    # A later scheduler fires only a job that became due since.
    await harness.put(a_job(a_spec(schedule=every(SECOND), queue="later"), tenant="later"))
    await harness.advance(2 * SECOND)
    async with a_scheduler(harness):
        await eventually(lambda: harness.store.count_runs(RunFilter(tenant="later"), 1))
    expected = 0
    for job, rule in jobs:
        ran = ticks[rule.runs]
        ledger = await harness.store.ledger(job.id, 0, first + OUTAGE, 1_000)
        assert [entry.scheduled_at for entry in ledger] == ticks
        assert [entry.run_id for entry in ledger] == [tick_run_id(job.id, at) if at in ran else None for at in ticks]
        assert {entry.reason for entry in ledger if entry.decision == "skipped"} == ({rule.reason} - {""})
        expected += len(ran)
    assert await harness.store.count_runs(RunFilter(tenant="default"), expected + 1) == expected
    await check_pace(harness, jobs, ticks)
    # Runs of missed ticks are ranked behind a run submitted now.
    await harness.submit(live := a_run())
    [best] = await harness.claim(await harness.worker(), 1)
    assert best.id == live.id


async def check_pace(harness: Harness, jobs: list[tuple[Job, Rule]], ticks: list[Instant]) -> None:
    for job, rule in jobs[: len(RULES)]:
        if rule.catch_up.pace:
            views = await harness.store.runs([tick_run_id(job.id, at) for at in ticks])
            dues = [view.due for view in views if view is not None]
            assert [due - dues[0] for due in dues] == [place * rule.catch_up.pace for place in range(MISSED)]
