"""The memory store: fences, its clock, and damaged state that the sweeper fixes."""

import asyncio

import pytest

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, SECOND
from mainspring.core.model.limits.limits import Breaker
from mainspring.core.model.runs.completion import complete_success
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.job import JobState
from mainspring.core.model.schedules.plan import plan
from mainspring.core.ports.storage.access import Access
from mainspring.core.ports.storage.catalog import Catalog, Reports
from mainspring.core.ports.storage.coordination import Coordinator
from mainspring.core.ports.storage.operations import Operations
from mainspring.core.ports.wakeups import queue_topic
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.store import Demand, Store
from mainspring.stores.memory import MemoryStore
from tests.support.builders import a_job, a_limit, a_run, a_spec, a_worker, after_each, some_runs
from tests.support.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock, shards=4)


def test_the_memory_store_implements_every_store_port(store: MemoryStore) -> None:
    control: tuple[Store, Coordinator] = (store, store)
    queries: tuple[Catalog, Reports, Access, Operations] = (store, store, store, store)
    assert control[0].shards == 4
    assert len(queries) == 4


async def test_the_sweeper_unblocks_a_run_whose_key_lock_has_no_holder(store: MemoryStore) -> None:
    first, second, third = some_runs(3, key="a")
    await store.submit([first, second, third])
    [key_lock] = store._tables.key_locks.values()
    key_lock.holder = None
    await store.cancel([first.id])
    assert await store.sweep(10) == 1
    views = await store.runs([second.id, third.id])
    assert [view and view.state for view in views] == [RunState.QUEUED, RunState.BLOCKED]
    assert await store.sweep(10) == 0


async def test_the_sweeper_unblocks_a_run_whose_key_lock_holder_is_gone(store: MemoryStore) -> None:
    first, second = some_runs(2, key="a")
    await store.submit([first, second])
    [key_lock] = store._tables.key_locks.values()
    key_lock.holder = a_run().id
    assert await store.sweep(10) == 1


async def test_the_sweeper_stops_at_its_limit(store: MemoryStore) -> None:
    for key in ("a", "b", "c"):
        await store.submit(some_runs(2, key=key))
    for key_lock in store._tables.key_locks.values():
        key_lock.holder = a_run().id
    assert [await store.sweep(2), await store.sweep(2), await store.sweep(2)] == [2, 1, 0]


async def test_the_sweeper_restarts_a_fixed_delay_whose_run_is_gone(store: MemoryStore, clock: ManualClock) -> None:
    [put] = await store.put_jobs([a_job(a_spec(schedule=after_each(MINUTE)))])
    owner = await store.join("one", 60 * MINUTE)
    await store.take(owner, [0])
    clock.advance(MINUTE)
    await store.fire(owner, plan(await store.due_jobs([0], clock.now(), 10), clock.now()))
    assert await store.sweep(10) == 0
    store._tables.jobs[put.job.id].awaits = a_run().id
    assert await store.sweep(10) == 1
    [swept] = await store.jobs([put.job.id])
    assert swept is not None
    assert swept.next_fire == clock.now() + MINUTE


async def test_a_higher_epoch_of_the_store_gives_greater_fences(store: MemoryStore) -> None:
    await store.submit(some_runs(2))
    worker = await store.open_session(a_worker())
    [before] = await store.claim(worker, 1, [Demand("default", 1)])
    store._tables.store_epoch += 1
    [after] = await store.claim(worker, 2, [Demand("default", 1)])
    assert after.fence >> 40 == (before.fence >> 40) + 1


async def test_the_time_of_the_store_never_goes_back(store: MemoryStore, clock: ManualClock) -> None:
    before = await store.now()
    clock.jump(-MINUTE)
    assert await store.now() == before
    clock.jump(MINUTE + SECOND)
    assert await store.now() == before + SECOND


async def test_an_id_of_an_unknown_shard_is_rejected_before_anything_is_stored(store: MemoryStore) -> None:
    good = a_run()
    with pytest.raises(Invalid):
        await store.submit([good, a_run(shard=4)])
    assert await store.runs([good.id]) == [None]
    with pytest.raises(Invalid):
        await store.put_jobs([a_job(shard=4)])


async def test_a_job_cannot_be_set_to_finished(store: MemoryStore) -> None:
    [put] = await store.put_jobs([a_job()])
    with pytest.raises(Invalid):
        await store.set_jobs_state([put.job.id], JobState.FINISHED)


async def test_a_manual_clock_wakes_sleepers_in_the_order_of_time(clock: ManualClock) -> None:
    woken: list[int] = []

    async def sleep(seconds: int) -> None:
        await clock.sleep(seconds * SECOND)
        woken.append(seconds)

    async with asyncio.TaskGroup() as tasks:
        for seconds in (3, 1, 2, 0):
            tasks.create_task(sleep(seconds))
        await clock.sleep(0)
        clock.advance(2 * SECOND)
        await clock.sleep(0)
        await clock.sleep(0)
        assert sorted(woken) == [0, 1, 2]
        clock.advance(SECOND)
    assert woken[-1] == 3


def a_memory_store(wakeups: LocalWakeups | None = None) -> MemoryStore:
    return MemoryStore(ManualClock(1_000_000_000), shards=1, wakeups=wakeups)


async def test_the_sweeper_recounts_the_runs_of_a_limiter() -> None:
    store = a_memory_store()
    first, second = a_run(limits=(a_limit(),)), a_run(limits=(a_limit(),))
    await store.submit([first, second])
    [limiter] = store._tables.limiters.by_number.values()
    # Damage the state: the run does not leave its limiter.
    store._tables.runs[first.id].holds_limits = False
    await store.cancel([first.id])
    assert (await store.runs([second.id]))[0].state is RunState.BLOCKED  # type: ignore[union-attr]
    assert await store.sweep(100) == 2
    assert (await store.runs([second.id]))[0].state is RunState.QUEUED  # type: ignore[union-attr]
    assert limiter.state.used == 1
    assert await store.sweep(100) == 0


async def test_the_sweeper_resolves_children_that_missed_the_end_of_their_parent() -> None:
    store = a_memory_store()
    parent = a_run()
    child = a_run(after=[parent])
    await store.submit([parent, child])
    await store.cancel([parent.id])
    store._tables.dependencies.ended.clear()
    assert await store.resolve(100) == 0
    assert await store.sweep(100) == 1
    assert (await store.runs([child.id]))[0].state is RunState.SKIPPED  # type: ignore[union-attr]
    assert await store.sweep(100) == 0


async def test_unblocking_a_run_notifies_the_workers_of_its_queue() -> None:
    wakeups = LocalWakeups()
    store = a_memory_store(wakeups)
    wakeup = wakeups.listen([queue_topic("other")])
    parent = a_run(limits=(a_limit(),))
    await store.submit([parent, a_run(limits=(a_limit(),), queue="other"), a_run(after=[parent], queue="third")])
    assert not await wakeup.wait(0)
    await store.cancel([parent.id])
    assert await wakeup.wait(0)


async def test_unused_limiters_are_deleted() -> None:
    clock = ManualClock(1_000_000_000)
    store = MemoryStore(clock, shards=1)
    session = await store.open_session(a_worker(ttl=DAY))
    await store.submit([a_run(limits=(a_limit(), a_limit("rate", per=HOUR)), breaker=Breaker(failures=1))])
    [held] = await store.claim(session, 1, [Demand("default", 1)])
    await store.complete([complete_success(held, None)])
    await store.tidy()
    assert len(store._tables.limiters.by_number) == 2, (
        "starts of the last hour and failures of the last minute still count"
    )
    clock.advance(2 * HOUR)
    await store.tidy()
    assert store._tables.limiters.by_number == {}
