"""The scheduler on the memory store, in virtual time: delayed runs, leases and its load on the store."""

import pytest

from mainspring.core.model.base.instant import HOUR, MILLISECOND, SECOND, Micros
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.schedule import CronSchedule
from mainspring.core.ports.wakeups import SCHEDULES
from mainspring.core.scheduler.scheduler import LOOK_EVERY
from mainspring.testing.virtual_time import START, VirtualClock
from tests.support.builders import a_job, a_run, a_spec
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


@in_virtual_time
async def test_a_delayed_run_is_queued_when_it_is_due_and_not_before() -> None:
    clock = VirtualClock()
    store = RemoteStore(clock)
    await store.attach_reader("test")
    await store.submit([a_run(delay=3 * SECOND)])
    async with Node(store):
        await clock.sleep(4 * SECOND)
    (at,) = await queued_at(store)
    assert 0 <= at - START - 3 * SECOND <= 2 * MILLISECOND


@in_virtual_time
async def test_a_run_submitted_after_the_last_load_is_not_missed() -> None:
    clock = VirtualClock()
    store = RemoteStore(clock)
    await store.attach_reader("test")
    async with Node(store):
        for step in range(200):
            await clock.sleep(SECOND + step * MILLISECOND)
            await store.submit([a_run(delay=110 * MILLISECOND, shard=step % SHARDS)])
            due = clock.now() + 110 * MILLISECOND
            await clock.sleep(SECOND)
            (at,) = await queued_at(store)
            assert 0 <= at - due <= LOOK_EVERY + 3 * MILLISECOND


@in_virtual_time
async def test_a_wakeup_makes_a_run_submitted_after_the_last_load_punctual() -> None:
    clock = VirtualClock()
    store = RemoteStore(clock)
    await store.attach_reader("test")
    async with Node(store) as node:
        await clock.sleep(1_234 * MILLISECOND)
        await store.submit([a_run(delay=110 * MILLISECOND)])
        due = clock.now() + 110 * MILLISECOND
        node.wakeups.notify([SCHEDULES])
        await clock.sleep(SECOND)
    (at,) = await queued_at(store)
    assert 0 <= at - due <= PROMPT


@in_virtual_time
async def test_a_run_committed_late_with_an_earlier_due_time_is_not_missed() -> None:
    clock = VirtualClock()
    store = RemoteStore(clock)
    await store.attach_reader("test")
    await store.submit([a_run(at=START + second * SECOND) for second in range(2, 10)])
    async with Node(store):
        await clock.sleep(5_500 * MILLISECOND)
        before = len(await queued_at(store))
        # A transaction that began long ago commits a due time before those already staged.
        row = a_run(delay=HOUR)
        await store.submit([row])
        store._tables.scheduled[0].remove(store._tables.runs[row.id].due, row.id)
        store._tables.runs[row.id].due = START + SECOND
        store._tables.scheduled[0].add(START + SECOND, row.id)
        await clock.sleep(LOOK_EVERY + 5 * MILLISECOND)
        assert before == 4
        assert len(await queued_at(store)) == 1


@pytest.mark.parametrize("skew", [-HOUR, HOUR])
@in_virtual_time
async def test_a_scheduler_whose_clock_is_off_by_an_hour_fires_on_time(skew: Micros) -> None:
    clock = VirtualClock()
    store = RemoteStore(clock)
    await store.attach_reader("test")
    (job,) = await declared(store, [a_job(a_spec(schedule=every_second()))])
    await store.submit([a_run(at=START + second * SECOND + 1, shard=second % SHARDS) for second in range(1, 30)])
    async with Node(store, skew=skew):
        await clock.sleep(30 * SECOND + 500 * MILLISECOND)
    assert [entry.scheduled_at for entry in await ledger_of(store, job.id)] == [
        START + second * SECOND for second in range(1, 31)
    ]
    assert max((await lateness_of_ticks(store, job.id))[1:]) <= PROMPT
    queued = await queued_at(store)
    assert len(queued) == 29
    assert all(0 < at - START - second * SECOND <= PROMPT for second, at in enumerate(queued, 1))


@in_virtual_time
async def test_five_thousand_runs_due_at_one_instant_are_staged_in_a_few_requests() -> None:
    clock = VirtualClock()
    store = RemoteStore(clock)
    await store.attach_reader("test")
    due = START + 10 * SECOND
    await store.submit([a_run(at=due, shard=number % SHARDS) for number in range(5_000)])
    async with Node(store):
        await clock.sleep(11 * SECOND)
    queued = await queued_at(store)
    assert len(queued) == 5_000
    assert all(0 <= at - due <= 20 * MILLISECOND for at in queued)


@in_virtual_time
async def test_a_steady_stream_of_delayed_runs_is_staged_within_a_few_milliseconds() -> None:
    clock = VirtualClock()
    store = RemoteStore(clock)
    await store.attach_reader("test")
    dues = []
    async with Node(store) as node:
        await clock.sleep(SECOND)
        for number in range(300):
            await store.submit(
                [a_run(delay=2 * SECOND + step, shard=number % SHARDS) for step in range(0, 10_000, 1_000)]
            )
            dues += [clock.now() + 2 * SECOND + step for step in range(0, 10_000, 1_000)]
            node.wakeups.notify([SCHEDULES])
            await clock.sleep(10 * MILLISECOND)
        store.calls.clear()
        await clock.sleep(3 * SECOND)
    queued = await queued_at(store)
    lateness = sorted(at - due for at, due in zip(queued, dues, strict=True))
    assert lateness[0] >= 0
    assert lateness[-30] <= 8 * MILLISECOND
    assert lateness[-1] <= LOOK_EVERY
    assert store.calls["stage"] < 1_000


@in_virtual_time
async def test_an_idle_scheduler_sends_only_its_regular_polls() -> None:
    clock = VirtualClock()
    store = RemoteStore(clock)
    await store.put_jobs([a_job(a_spec(schedule=CronSchedule(expression="0 0 1 1 *")))])
    await store.submit([a_run(delay=HOUR)])
    async with Node(store):
        await clock.sleep(2 * SECOND)
        store.calls.clear()
        await clock.sleep(10 * SECOND)
        assert store.calls["stage"] <= 200
        assert store.calls["upcoming"] <= 10
        assert store.calls["due_jobs"] <= 10
        assert store.calls["fire"] == 0


@in_virtual_time
async def test_a_scheduler_without_a_lease_only_renews_and_catches_up_afterwards() -> None:
    clock = VirtualClock()
    store = RemoteStore(clock)
    (job,) = await declared(store, [a_job(a_spec(schedule=every_second()))])
    async with Node(store):
        await clock.sleep(3 * SECOND + 500 * MILLISECOND)
        store.away = True
        await clock.sleep(2 * SECOND)
        store.calls.clear()
        await clock.sleep(5 * SECOND)
        assert store.calls.keys() == {"renew"}
        store.away = False
        await clock.sleep(SECOND)
    ledger = await ledger_of(store, job.id)
    assert [entry.scheduled_at for entry in ledger] == [START + second * SECOND for second in range(1, 12)]
    assert {entry.decision for entry in ledger} == {"run"}


@in_virtual_time
async def test_delayed_runs_are_staged_on_time_when_every_answer_is_slow() -> None:
    clock = VirtualClock()
    store = RemoteStore(clock, latency=40 * MILLISECOND)
    await store.attach_reader("test")
    runs = [a_run(at=START + 2 * SECOND + step * 7 * MILLISECOND, shard=step % SHARDS) for step in range(200)]
    await store.submit(runs)
    async with Node(store):
        await clock.sleep(6 * SECOND)
    views = [view for view in await store.runs([run.id for run in runs]) if view is not None]
    assert {view.state for view in views} == {RunState.QUEUED}
    lateness = [at - view.due for at, view in zip(await queued_at(store), views, strict=True)]
    assert all(0 <= late <= 200 * MILLISECOND for late in lateness)
