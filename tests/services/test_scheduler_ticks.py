"""The scheduler on the memory store, in virtual time: ticks of recurring jobs."""

from collections.abc import Sequence

import msgspec
import pytest

from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import MILLISECOND, MINUTE, SECOND, Instant, Micros
from mainspring.core.model.schedules import plan
from mainspring.core.model.schedules.catch_up import CatchUp
from mainspring.core.model.schedules.closed_periods import ClosedPeriods
from mainspring.core.model.schedules.job import Fire, Job, JobState
from mainspring.core.model.schedules.schedule import CronSchedule
from mainspring.core.ports.storage.answers import FireResult
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.scheduler.scheduler import LOOK_EVERY
from mainspring.core.scheduler.store_time import StoreTime
from mainspring.stores.memory import MemoryStore
from mainspring.testing.virtual_time import START, VirtualClock
from tests.support.builders import a_job, a_run, a_spec, after_each, every
from tests.support.scheduler_node import (
    PROMPT,
    SHARDS,
    Node,
    RemoteStore,
    declared,
    every_second,
    lateness_of_ticks,
    ledger_of,
    queued_at,
)
from tests.support.virtual import in_virtual_time


@pytest.mark.slow
@pytest.mark.parametrize(("use_wheel", "seconds"), [(True, 3_600), (False, 600)])
@in_virtual_time
async def test_a_cron_of_every_second_fires_exactly_its_ticks_for_an_hour(use_wheel: bool, seconds: int) -> None:
    clock = VirtualClock()
    store = RemoteStore(clock)
    (job,) = await declared(store, [a_job(a_spec(schedule=every_second()))])
    async with Node(store, use_wheel=use_wheel):
        await clock.sleep(seconds * SECOND + 500 * MILLISECOND)
    ledger = await ledger_of(store, job.id)
    assert [entry.scheduled_at for entry in ledger] == [START + second * SECOND for second in range(1, seconds + 1)]
    assert {entry.decision for entry in ledger} == {"run"}
    lateness = await lateness_of_ticks(store, job.id)
    assert len(lateness) == seconds
    assert min(lateness) >= 0
    assert max(lateness[1:]) <= (PROMPT if use_wheel else LOOK_EVERY + 10 * MILLISECOND)


@pytest.mark.parametrize("dies_at", range(0, 1_000, 90))
@in_virtual_time
async def test_a_tick_is_neither_missed_nor_doubled_when_a_scheduler_dies(dies_at: int) -> None:
    clock = VirtualClock()
    store = RemoteStore(clock)
    jobs = await declared(store, [a_job(a_spec(schedule=every_second()), shard=n % SHARDS) for n in range(24)])
    async with Node(store) as first, Node(store) as second, Node(store) as third:
        await clock.sleep(5 * SECOND + dies_at * MILLISECOND)
        held = len(first.keeper.owned())
        first.kill()
        await clock.sleep(10 * SECOND + (500 - dies_at) * MILLISECOND)
        assert held > 0
        assert len(second.keeper.owned()) + len(third.keeper.owned()) == SHARDS
    for job in jobs:
        ticks = [entry.scheduled_at for entry in await ledger_of(store, job.id)]
        assert ticks == [START + second * SECOND for second in range(1, 16)]
        lateness = await lateness_of_ticks(store, job.id)
        assert len(lateness) == 15
        assert min(lateness) >= 0
        assert max(lateness[1:]) <= 2 * SECOND


@in_virtual_time
async def test_a_scheduler_that_leaves_is_replaced_at_once() -> None:
    clock = VirtualClock()
    store = RemoteStore(clock)
    wakeups = LocalWakeups()
    jobs = await declared(store, [a_job(a_spec(schedule=every_second()), shard=n) for n in range(SHARDS)])
    async with Node(store, wakeups):
        async with Node(store, wakeups):
            await clock.sleep(4_990 * MILLISECOND)
        await clock.sleep(5 * SECOND)
    for job in jobs:
        lateness = await lateness_of_ticks(store, job.id)
        assert len(lateness) == 9
        assert max(lateness[1:]) <= 20 * MILLISECOND


@in_virtual_time
async def test_many_crons_of_one_moment_are_planned_before_they_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    store = RemoteStore(clock)
    planned_at: list[Instant] = []

    def plan_job(job: Job, now: Instant, closed_periods: ClosedPeriods | None) -> Fire:
        planned_at.append(clock.now())
        return plan.plan_job(job, now, closed_periods)

    monkeypatch.setattr("mainspring.core.scheduler.planner.plan_job", plan_job)
    spec = a_spec(schedule=CronSchedule(expression="0 * * * * *"))
    specs = [msgspec.structs.replace(spec, name=f"job {number}") for number in range(3_000)]
    jobs = await declared(store, [a_job(spec, shard=number % SHARDS) for number, spec in enumerate(specs)])
    await store.attach_reader("test")
    await store.submit([a_run(at=START + MINUTE + step * MILLISECOND) for step in range(0, 500, 10)])
    async with Node(store):
        await clock.sleep(MINUTE + 2 * SECOND)
    queued = await queued_at(store)
    assert len(queued) == 50
    # Delayed runs do not wait until all the crons have fired.
    assert all(at - START - MINUTE - 10 * n * MILLISECOND <= 40 * MILLISECOND for n, at in enumerate(queued))
    lateness = [late for job in jobs for late in await lateness_of_ticks(store, job.id)]
    assert len(lateness) == 3_000
    assert all(0 <= late <= 200 * MILLISECOND for late in lateness)
    assert len(planned_at) == 3_000
    assert max(planned_at) < START + MINUTE


@pytest.mark.parametrize("ahead", [MILLISECOND, 5 * MILLISECOND, 30 * MILLISECOND])
@in_virtual_time
async def test_a_scheduler_that_is_ahead_of_the_store_fires_at_the_right_time(
    monkeypatch: pytest.MonkeyPatch, ahead: Micros
) -> None:
    """The store rejects its fires at first. It fires again, without flooding the store."""
    estimate = StoreTime.now
    monkeypatch.setattr(StoreTime, "now", lambda time: estimate(time) + ahead)

    clock = VirtualClock()
    store = RemoteStore(clock)
    job = (await store.put_jobs([a_job(a_spec(schedule=every_second()))]))[0].job
    async with Node(store):
        await clock.sleep(30 * SECOND + 500 * MILLISECOND)
    lateness = await lateness_of_ticks(store, job.id)
    assert len(lateness) == 30
    assert min(lateness) >= 0
    assert max(lateness[1:]) <= 2 * PROMPT
    assert store.calls["fire"] <= 2 * 30 + 2
    assert store.calls["stage"] <= 30 * (SECOND // LOOK_EVERY + ahead // MILLISECOND + 5)


@in_virtual_time
async def test_a_tick_that_was_planned_ahead_is_fired_with_one_request() -> None:
    clock = VirtualClock()
    store = RemoteStore(clock)
    (job,) = await declared(store, [a_job(a_spec(schedule=every_second()))])
    async with Node(store):
        await clock.sleep(10 * SECOND + 500 * MILLISECOND)
    assert len(await ledger_of(store, job.id)) == 10
    assert store.calls["fire"] == 10


class NearStore(RemoteStore):
    """Fires at once."""

    async def fire(self, owner: SessionId, fires: Sequence[Fire]) -> list[FireResult]:
        return await MemoryStore.fire(self, owner, fires)


@in_virtual_time
async def test_a_run_that_is_due_when_its_tick_is_fired_needs_no_look() -> None:
    clock = VirtualClock()
    store = NearStore(clock, latency=0)
    await declared(store, [a_job(a_spec(schedule=every_second()))])
    async with Node(store):
        await clock.sleep(10 * SECOND + LOOK_EVERY // 2)
        looks = store.calls["stage"]
    assert looks == 10 * SECOND // LOOK_EVERY + 1


@in_virtual_time
async def test_a_job_that_is_paused_after_it_was_planned_is_skipped_with_the_reason() -> None:
    clock = VirtualClock()
    store = RemoteStore(clock)
    (job,) = await declared(store, [a_job(a_spec(schedule=every(10 * SECOND)))])
    async with Node(store):
        await clock.sleep(9_900 * MILLISECOND)
        await store.set_jobs_state([job.id], JobState.PAUSED)
        await clock.sleep(SECOND)
    (entry,) = await ledger_of(store, job.id)
    assert (entry.decision, entry.reason) == ("skipped", "paused")


@in_virtual_time
async def test_a_job_that_is_rescheduled_earlier_fires_at_its_new_time() -> None:
    clock = VirtualClock()
    store = RemoteStore(clock)
    spec = a_spec(name="report", schedule=every(10 * SECOND))
    (job,) = await declared(store, [a_job(spec)])
    async with Node(store):
        await clock.sleep(7_300 * MILLISECOND)
        await store.put_jobs([a_job(a_spec(name="report", schedule=every(2 * SECOND)))])
        await clock.sleep(5 * SECOND)
    assert [entry.scheduled_at - START for entry in await ledger_of(store, job.id)] == [
        8 * SECOND,
        10 * SECOND,
        12 * SECOND,
    ]
    assert max(await lateness_of_ticks(store, job.id)) <= LOOK_EVERY + 10 * MILLISECOND


@in_virtual_time
async def test_a_tick_with_jitter_keeps_its_time_and_its_run_is_queued_later() -> None:
    clock = VirtualClock()
    store = RemoteStore(clock)
    await store.attach_reader("test")
    await store.put_jobs([a_job(a_spec(schedule=every(10 * SECOND, jitter=4 * SECOND)))])
    async with Node(store):
        await clock.sleep(15 * SECOND)
    (run,) = [run.id for run in store._tables.runs.values()]
    (view,) = await store.runs([run])
    assert view is not None
    assert view.scheduled_at == START + 10 * SECOND
    assert view.due > view.scheduled_at
    (at,) = await queued_at(store)
    assert 0 <= at - view.due <= PROMPT


@in_virtual_time
async def test_a_fixed_delay_waits_for_its_run() -> None:
    clock = VirtualClock()
    store = RemoteStore(clock)
    (job,) = await declared(store, [a_job(a_spec(schedule=after_each(2 * SECOND)))])
    async with Node(store):
        await clock.sleep(10 * SECOND)
        (entry,) = await ledger_of(store, job.id)
        assert entry.run_id is not None
        await store.cancel([entry.run_id])
        await clock.sleep(2 * SECOND + 100 * MILLISECOND)
        assert len(await ledger_of(store, job.id)) == 2


@in_virtual_time
async def test_missed_ticks_are_caught_up_without_delaying_other_jobs() -> None:
    clock = VirtualClock()
    store = RemoteStore(clock)
    latest, everything, none = await declared(
        store,
        [
            a_job(a_spec(schedule=every_second())),
            a_job(a_spec(schedule=every_second(), catch_up=CatchUp(mode="all", cap=50))),
            a_job(a_spec(schedule=every_second(), catch_up=CatchUp(mode="none"))),
        ],
    )
    await clock.sleep(10 * MINUTE)
    async with Node(store):
        await clock.sleep(500 * MILLISECOND)
    made = {
        job.id: sum(entry.decision == "run" for entry in await ledger_of(store, job.id))
        for job in (latest, everything, none)
    }
    # Ticks within the grace period of a minute are on time. After an outage, "latest" runs only the newest tick.
    assert made == {latest.id: 1, everything.id: 60 + 50, none.id: 60}
    for job in (latest, everything, none):
        assert len(await ledger_of(store, job.id)) == 600


@in_virtual_time
async def test_a_job_that_cannot_be_planned_does_not_delay_other_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    store = RemoteStore(clock)
    broken, sound = await declared(store, [a_job(a_spec(schedule=every_second())) for _ in range(2)])

    def plan_job(job: Job, now: Instant, closed_periods: ClosedPeriods | None) -> Fire:
        if job.id == broken.id:
            raise LookupError("no such zone any more")
        return plan.plan_job(job, now, closed_periods)

    monkeypatch.setattr("mainspring.core.scheduler.planner.plan_job", plan_job)
    async with Node(store):
        await clock.sleep(10 * SECOND + 500 * MILLISECOND)
    assert len(await ledger_of(store, sound.id)) == 10
    assert len(await ledger_of(store, broken.id)) == 0
