"""``next_change``: when the memory store changes next by itself, so that a virtual clock may jump there."""

from random import Random

import pytest

from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND
from mainspring.core.model.runs.completion import complete_failure, complete_release, complete_success
from mainspring.core.store import Demand
from mainspring.stores.memory import MemoryStore
from tests.support.builders import a_job, a_policy, a_run, a_worker
from tests.support.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock, shards=4)


async def test_a_store_without_waiting_work_has_no_next_change(store: MemoryStore, clock: ManualClock) -> None:
    assert store.next_change() is None
    await store.submit([a_run()])
    assert store.next_change() is None


async def test_the_earliest_due_run_or_tick_is_the_next_change(store: MemoryStore, clock: ManualClock) -> None:
    await store.submit([a_run(delay=2 * HOUR), a_run(delay=HOUR + 1, shard=3)])
    assert store.next_change() == clock.now() + HOUR + 1
    put = await store.put_jobs([a_job()])
    assert store.next_change() == put[0].job.next_fire


async def test_start_limits_and_deadlines_of_queued_runs_are_next_changes(
    store: MemoryStore, clock: ManualClock
) -> None:
    now = clock.now()
    await store.submit([a_run(deadline=HOUR)])
    assert store.next_change() == now + HOUR
    await store.submit([a_run(start_within=MINUTE)])
    assert store.next_change() == now + MINUTE + 1
    clock.advance(MINUTE + 1)
    assert await store.expire(10) == 1
    assert store.next_change() == now + HOUR
    clock.advance(HOUR)
    assert await store.expire(10) == 1
    assert store.next_change() is None


async def test_timeout_and_cancel_of_a_running_run_are_next_changes(store: MemoryStore, clock: ManualClock) -> None:
    now = clock.now()
    session = await store.open_session(a_worker(ttl=10 * SECOND))
    assert store.next_change() is None
    run = a_run(policy=a_policy(timeout=5 * SECOND), start_within=SECOND, deadline=HOUR)
    await store.submit([run])
    (held,) = await store.claim(session, 1, [Demand("default", 10)])
    assert store.next_change() == now + 5 * SECOND
    clock.advance(SECOND)
    await store.cancel([run.id])
    assert store.next_change() == clock.now()
    await store.complete([complete_success(held, None)])
    assert store.next_change() is None


async def test_the_end_of_a_lease_is_the_next_change_until_lost_runs_are_released(
    store: MemoryStore, clock: ManualClock
) -> None:
    session = await store.open_session(a_worker(ttl=10 * SECOND))
    await store.submit([a_run()])
    await store.claim(session, 1, [Demand("default", 10)])
    ends = clock.now() + 10 * SECOND
    assert store.next_change() == ends
    clock.advance(10 * SECOND - 1)
    assert await store.lost_runs(10) == []
    clock.advance(1)
    (lost,) = await store.lost_runs(10)
    change = store.next_change()
    assert change is not None
    assert change <= clock.now()
    await store.complete([complete_release(lost)])
    assert store.next_change() is None


async def test_the_start_limit_does_not_apply_to_a_retry(store: MemoryStore, clock: ManualClock) -> None:
    session = await store.open_session(a_worker(ttl=10 * HOUR))
    await store.submit([a_run(policy=a_policy(pause=HOUR), start_within=MINUTE)])
    (held,) = await store.claim(session, 1, [Demand("default", 10)])
    await store.complete([complete_failure(held, "no", Random(0), now=clock.now())])
    assert store.next_change() == clock.now() + HOUR
