"""Many crons after an outage of two hours, on schedulers that come, die and come back: each runs what its rule says.

``OUTAGE_CRONS=10000`` makes it many more.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

from mainspring.adapters.clock.system import SystemClock
from mainspring.adapters.wakeups.local import LocalWakeups
from mainspring.control.scheduler.scheduler import Scheduler
from mainspring.control.shards import ShardKeeper
from mainspring.domain.catch_up import CatchUp
from mainspring.domain.instant import HOUR, MINUTE, SECOND, Instant
from mainspring.domain.job import Job, JobState, Overlap, tick_run_id
from mainspring.domain.plan import plan
from mainspring.domain.schedule import CronSchedule
from mainspring.ports.catalog import RunFilter
from tests.support.builders import a_job, a_run, a_spec
from tests.support.store_harness import SHARDS, ClockedHarness, Harness

pytestmark = pytest.mark.api

CRONS = int(os.environ.get("OUTAGE_CRONS", "1000"))
QUARTER = 15 * MINUTE
OUTAGE = 2 * HOUR
MISSED = OUTAGE // QUARTER


class Rule(NamedTuple):
    """What a job says, and which of the ticks that it missed run, and why the others do not."""

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
async def time_passes(harness: Harness) -> AsyncIterator[None]:
    """The clock of a server moves by itself; that of the others by this."""

    async def move(harness: ClockedHarness) -> None:
        before = time.monotonic_ns()
        while True:
            await asyncio.sleep(0.01)
            now = time.monotonic_ns()
            harness.clock.advance((now - before) // 1_000)
            before = now

    moving = asyncio.create_task(move(harness)) if isinstance(harness, ClockedHarness) else None
    try:
        yield
    finally:
        if moving is not None:
            moving.cancel()


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


async def declared(harness: Harness) -> list[tuple[Job, Rule]]:
    """At seven minutes after a quarter of an hour: no tick is near."""
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


async def fire_some_and_die(harness: Harness) -> None:
    """A scheduler that had come back first. It does the oldest third; its lease runs out, and it does not know."""
    member = await harness.store.join("dies", 20 * SECOND)
    await harness.store.take(member, harness.all_shards)
    for _ in range(0, CRONS // 3, 100):
        await harness.store.renew(member, 20 * SECOND)
        now = await harness.now()
        fires = plan(await harness.store.due_jobs(harness.all_shards, now, 100), now)
        assert all(fired.applied for fired in await harness.store.fire(member, fires))
    assert not any(fired.applied for fired in await harness.store.fire(member, fires)), "told again it does nothing"
    await harness.advance(21 * SECOND)


async def until_done(harness: Harness) -> None:
    async with asyncio.timeout(300):
        while await harness.store.due_jobs(harness.all_shards, await harness.now(), 1):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_after_an_outage_exactly_those_ticks_run_that_the_rule_says(harness: Harness) -> None:
    jobs = await declared(harness)
    first: Instant = await harness.now() // QUARTER * QUARTER + QUARTER
    ticks = [first + place * QUARTER for place in range(MISSED)]
    await harness.advance(OUTAGE)
    began = time.monotonic()
    async with time_passes(harness):
        await fire_some_and_die(harness)
        async with a_scheduler(harness), a_scheduler(harness):
            await until_done(harness)
        took = time.monotonic() - began
        # Whoever comes later finds nothing to do.
        async with a_scheduler(harness):
            await asyncio.sleep(0.1)
    expected = 0
    for job, rule in jobs:
        ran = ticks[rule.runs]
        ledger = await harness.store.ledger(job.id, 0, first + OUTAGE, 1_000)
        assert [entry.scheduled_at for entry in ledger] == ticks
        assert [entry.run_id for entry in ledger] == [tick_run_id(job.id, at) if at in ran else None for at in ticks]
        assert {entry.reason for entry in ledger if entry.decision == "skipped"} == ({rule.reason} - {""})
        expected += len(ran)
    print(f"\n{CRONS} crons, {CRONS * MISSED} ticks, {expected} runs: {took:.1f} s with a fail-over")  # noqa: T201
    assert await harness.store.count_runs(RunFilter(tenant=None), expected + 1) == expected
    await paced_as_they_say(harness, jobs, ticks)
    if CRONS <= 1_000:
        # Caught-up runs stand a minute behind: with many more, checking them takes longer than that.
        await behind_live_work(harness)


async def paced_as_they_say(harness: Harness, jobs: list[tuple[Job, Rule]], ticks: list[Instant]) -> None:
    for job, rule in jobs[: len(RULES)]:
        if rule.catch_up.pace:
            views = await harness.store.runs([tick_run_id(job.id, at) for at in ticks])
            dues = [view.due for view in views if view is not None]
            assert [due - dues[0] for due in dues] == [place * rule.catch_up.pace for place in range(MISSED)]


async def behind_live_work(harness: Harness) -> None:
    await harness.submit(live := a_run())
    [first] = await harness.claim(await harness.worker(), 1)
    assert first.id == live.id
