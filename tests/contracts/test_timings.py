"""Start delays and durations of runs, counted in buckets."""

import pytest

from mainspring.core.model.base.instant import HOUR, MILLISECOND, MINUTE, SECOND
from mainspring.core.model.base.percentiles import find_bucket
from mainspring.core.ports.storage.catalog import TIMINGS_KEPT, Timings
from mainspring.core.ports.storage.upkeep import Retention
from tests.support.builders import a_policy, a_run
from tests.support.store_harness import Harness

pytestmark = pytest.mark.api

#: Far from the edges of their buckets, however long the store takes beside.
_LATE, _TOOK = 60 * SECOND, 240 * SECOND


async def timings(harness: Harness, tenant: str | None = None, queue: str | None = None) -> Timings:
    """Roll the timings up and return those of the last twelve hours."""
    await harness.advance(MINUTE)
    await harness.store.tidy()
    now = await harness.now()
    return await harness.store.timings(tenant, queue, now - 12 * HOUR, now)


async def end_runs(harness: Harness, count: int, *, queue: str = "default", tenant: str = "default") -> None:
    await harness.submit(*[a_run(queue=queue, tenant=tenant) for _ in range(count)])
    await harness.advance(_LATE)
    held = await harness.claim(await harness.worker(), count, queue)
    await harness.advance(_TOOK)
    await harness.succeed(*held)


async def test_without_ended_runs_there_are_no_timings(harness: Harness) -> None:
    await harness.start(a_run())
    assert await timings(harness) == Timings({}, {})


async def test_durations_are_counted_by_bucket(harness: Harness) -> None:
    await end_runs(harness, 3)
    await end_runs(harness, 2)
    assert await timings(harness) == Timings({find_bucket(_LATE): 5}, {find_bucket(_TOOK): 5})


async def test_later_roll_ups_add_to_the_same_minute_and_bucket(harness: Harness) -> None:
    await harness.move_clock(5 * MINUTE - await harness.now() % (5 * MINUTE))
    start = await harness.now()
    for late, took in ((MILLISECOND, 4 * MILLISECOND), (4 * MILLISECOND, MILLISECOND), (MILLISECOND, MILLISECOND)):
        await harness.submit(a_run(), a_run(queue="failing", policy=a_policy(pause=HOUR)))
        await harness.move_clock(late)
        worker = await harness.worker()
        held, failing = await harness.claim(worker), await harness.claim(worker, queue="failing")
        await harness.move_clock(took)
        await harness.succeed(*held)
        await harness.fail(*failing)
        await harness.move_clock(16 * SECOND)
        await harness.store.tidy()
    short, long = find_bucket(MILLISECOND), find_bucket(4 * MILLISECOND)
    assert await harness.store.timings(None, None, start, start + MINUTE) == Timings(
        {short: 2, long: 1}, {long: 1, short: 2}
    )
    [minute, failed] = await harness.store.minutes(None, start, start + MINUTE)
    assert (failed.queue, failed.retried) == ("failing", 3)
    assert (minute.succeeded, minute.started) == (3, 3)
    assert (minute.late_total, minute.late_most) == (6 * MILLISECOND, 4 * MILLISECOND)
    assert (minute.took_total, minute.took_most) == (6 * MILLISECOND, 4 * MILLISECOND)


async def test_one_roll_up_counts_each_bucket(harness: Harness) -> None:
    worker = await harness.worker()
    await harness.submit(a_run(), a_run())
    await harness.move_clock(MILLISECOND)
    first = await harness.claim(worker, 1)
    await harness.move_clock(3 * MILLISECOND)
    second = await harness.claim(worker, 1)
    await harness.move_clock(MILLISECOND)
    await harness.succeed(*first, *second)
    expected = {find_bucket(MILLISECOND): 1, find_bucket(4 * MILLISECOND): 1}
    assert await timings(harness) == Timings(expected, expected)


async def test_short_durations_are_in_the_first_buckets(harness: Harness) -> None:
    await harness.succeed(*await harness.start(a_run()))
    found = await timings(harness)
    assert sum(found.late.values()) == sum(found.took.values()) == 1
    assert max([*found.late, *found.took]) < find_bucket(_LATE)


async def test_a_run_that_ended_between_attempts_has_no_timings(harness: Harness) -> None:
    [held] = await harness.start(a_run(policy=a_policy(pause=HOUR)))
    await harness.fail(held)
    await harness.advance(MINUTE)
    await harness.store.cancel([held.id])
    assert await timings(harness) == Timings({}, {})


async def test_timings_are_read_by_tenant_and_queue(harness: Harness) -> None:
    await end_runs(harness, 1, queue="a")
    await end_runs(harness, 2, queue="b")
    await end_runs(harness, 4, queue="b", tenant="acme")

    async def count(tenant: str | None, queue: str | None) -> int:
        return sum((await timings(harness, tenant, queue)).took.values())

    assert [await count(None, None), await count(None, "b"), await count("default", None)] == [7, 6, 3]
    assert [await count("acme", "a"), await count("acme", "b"), await count("beta", None)] == [0, 4, 0]
    assert await count(None, "nowhere") == 0


async def test_timings_start_with_the_five_minutes_that_contain_since(harness: Harness) -> None:
    await end_runs(harness, 1)
    ended = await harness.now()
    await timings(harness)

    async def count(since: int, until: int) -> int:
        return sum((await harness.store.timings(None, None, since, until)).took.values())

    assert await count(ended, ended + 1) == 1
    assert await count(ended + 5 * MINUTE, ended + HOUR) == 0
    assert await count(ended - HOUR, ended - 5 * MINUTE) == 0


async def test_timings_are_pruned_after_a_day(harness: Harness) -> None:
    await end_runs(harness, 1)
    await timings(harness)
    await harness.advance(TIMINGS_KEPT + 5 * MINUTE)
    await harness.store.prune(Retention(), 100)
    assert await harness.store.timings(None, None, 0, await harness.now()) == Timings({}, {})
