"""What only the memory store can be asked: its fences, its clock, and damage for the sweeper to find."""

import asyncio

import pytest

from mainspring.adapters.store.memory import MemoryStore, catalog
from mainspring.adapters.store.memory.tables import Tables
from mainspring.adapters.wakeups.local import LocalWakeups
from mainspring.domain.errors import Invalid
from mainspring.domain.instant import DAY, HOUR, MINUTE, SECOND
from mainspring.domain.job import JobState
from mainspring.domain.limits import Breaker
from mainspring.domain.plan import plan
from mainspring.domain.run import RunState, settle_success
from mainspring.ports.access import Access
from mainspring.ports.catalog import Catalog, Reports, RunFilter
from mainspring.ports.coordination import Coordinator
from mainspring.ports.operations import Operations
from mainspring.ports.store import Store, Want
from mainspring.ports.wakeups import queue_topic
from tests.support.builders import a_job, a_limit, a_run, a_spec, a_worker, after_each, some_runs
from tests.support.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock, shards=4)


def tables_of(store: MemoryStore) -> Tables:
    return store._tables


def test_it_is_all_that_a_store_can_be(store: MemoryStore) -> None:
    for_the_engine: tuple[Store, Coordinator] = (store, store)
    for_people: tuple[Catalog, Reports, Access, Operations] = (store, store, store, store)
    assert for_the_engine[0].shards == 4
    assert len(for_people) == 4


async def test_a_page_looks_at_so_many_rows_and_says_where_to_go_on(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "LOOKED_AT", 3)
    rare = a_run(task="rare")
    runs = some_runs(7)
    await store.submit([rare, *runs, a_run(tenant="acme")])
    wanted = RunFilter(tenant="default", task="rare")
    first = await store.list_runs(wanted, None, 10)
    assert (first.items, first.after) == ([], runs[4].id)
    second = await store.list_runs(wanted, runs[4].id, 10)
    assert (second.items, second.after) == ([], runs[1].id)
    last = await store.list_runs(wanted, runs[1].id, 10)
    assert ([view.id for view in last.items], last.after) == ([rare.id], None)


async def test_the_sweeper_lets_go_what_is_blocked_by_nothing(store: MemoryStore) -> None:
    first, second, third = some_runs(3, key="a")
    await store.submit([first, second, third])
    [gate] = tables_of(store).gates.values()
    gate.holder = None
    await store.cancel([first.id])
    assert await store.sweep(10) == 1
    views = await store.runs([second.id, third.id])
    assert [view and view.state for view in views] == [RunState.QUEUED, RunState.BLOCKED]
    assert await store.sweep(10) == 0


async def test_the_sweeper_does_not_trust_a_holder_that_is_gone(store: MemoryStore) -> None:
    first, second = some_runs(2, key="a")
    await store.submit([first, second])
    [gate] = tables_of(store).gates.values()
    gate.holder = a_run().id
    assert await store.sweep(10) == 1


async def test_the_sweeper_stops_at_its_limit(store: MemoryStore) -> None:
    for key in ("a", "b", "c"):
        await store.submit(some_runs(2, key=key))
    for gate in tables_of(store).gates.values():
        gate.holder = a_run().id
    assert [await store.sweep(2), await store.sweep(2), await store.sweep(2)] == [2, 1, 0]


async def test_the_sweeper_starts_a_fixed_delay_whose_run_is_gone(store: MemoryStore, clock: ManualClock) -> None:
    [put] = await store.put_jobs([a_job(a_spec(schedule=after_each(MINUTE)))])
    owner = await store.join("one", 60 * MINUTE)
    await store.take(owner, [0])
    clock.advance(MINUTE)
    await store.fire(owner, plan(await store.due_jobs([0], clock.now(), 10), clock.now()))
    assert await store.sweep(10) == 0
    tables_of(store).jobs[put.job.id].awaits = a_run().id
    assert await store.sweep(10) == 1
    [swept] = await store.jobs([put.job.id])
    assert swept is not None
    assert swept.next_fire == clock.now() + MINUTE


async def test_a_higher_epoch_of_the_store_gives_greater_fences(store: MemoryStore) -> None:
    await store.submit(some_runs(2))
    worker = await store.open_session(a_worker())
    [before] = await store.claim(worker, 1, [Want("default", 1)])
    tables_of(store).store_epoch += 1
    [after] = await store.claim(worker, 2, [Want("default", 1)])
    assert after.fence >> 40 == (before.fence >> 40) + 1


async def test_its_time_never_goes_back(store: MemoryStore, clock: ManualClock) -> None:
    before = await store.now()
    clock.jump(-MINUTE)
    assert await store.now() == before
    clock.jump(MINUTE + SECOND)
    assert await store.now() == before + SECOND


async def test_an_id_of_a_shard_that_there_is_not_is_refused_before_anything_is_done(store: MemoryStore) -> None:
    good = a_run()
    with pytest.raises(Invalid):
        await store.submit([good, a_run(shard=4)])
    assert await store.runs([good.id]) == [None]
    with pytest.raises(Invalid):
        await store.put_jobs([a_job(shard=4)])


async def test_a_job_cannot_be_told_to_finish(store: MemoryStore) -> None:
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


async def test_the_sweep_counts_anew_who_is_inside_of_a_gate() -> None:
    store = a_memory_store()
    first, second = a_run(limits=(a_limit(),)), a_run(limits=(a_limit(),))
    await store.submit([first, second])
    [limiter] = store._tables.limiters.gates.values()
    # As if somebody had forgotten to let it leave.
    store._tables.runs[first.id].inside = False
    await store.cancel([first.id])
    assert (await store.runs([second.id]))[0].state is RunState.BLOCKED  # type: ignore[union-attr]
    assert await store.sweep(100) == 2
    assert (await store.runs([second.id]))[0].state is RunState.QUEUED  # type: ignore[union-attr]
    assert limiter.state.used == 1
    assert await store.sweep(100) == 0


async def test_the_sweep_finds_children_that_nobody_told() -> None:
    store = a_memory_store()
    parent = a_run()
    child = a_run(after=[parent])
    await store.submit([parent, child])
    await store.cancel([parent.id])
    store._tables.families.ended.clear()
    assert await store.resolve(100) == 0
    assert await store.sweep(100) == 1
    assert (await store.runs([child.id]))[0].state is RunState.SKIPPED  # type: ignore[union-attr]
    assert await store.sweep(100) == 0


async def test_whoever_is_let_go_in_another_queue_is_rung_for() -> None:
    wakeups = LocalWakeups()
    store = a_memory_store(wakeups)
    bell = wakeups.listen([queue_topic("other")])
    parent = a_run(limits=(a_limit(),))
    await store.submit([parent, a_run(limits=(a_limit(),), queue="other"), a_run(after=[parent], queue="third")])
    assert not await bell.wait(0)
    await store.cancel([parent.id])
    assert await bell.wait(0)


async def test_gates_that_nobody_needs_are_forgotten() -> None:
    clock = ManualClock(1_000_000_000)
    store = MemoryStore(clock, shards=1)
    session = await store.open_session(a_worker(ttl=DAY))
    await store.submit([a_run(limits=(a_limit(), a_limit("rate", per=HOUR)), breaker=Breaker(failures=1))])
    [held] = await store.claim(session, 1, [Want("default", 1)])
    await store.settle([settle_success(held, None)])
    await store.tidy()
    assert len(store._tables.limiters.gates) == 2, "the starts of an hour and the failures of a minute count still"
    clock.advance(2 * HOUR)
    await store.tidy()
    assert store._tables.limiters.gates == {}
