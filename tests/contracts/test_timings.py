"""How late runs began and how long they took, counted in buckets."""

import pytest

from mainspring.domain.instant import HOUR, MINUTE, SECOND
from mainspring.domain.percentiles import bucket_of
from mainspring.ports.catalog import TIMINGS_KEPT, Timings
from mainspring.ports.store import Retention
from tests.support.builders import a_policy, a_run
from tests.support.store_harness import Harness

pytestmark = pytest.mark.api

#: Far from the edges of their buckets, however long the store takes beside.
_LATE, _TOOK = 60 * SECOND, 240 * SECOND


async def timings(harness: Harness, tenant: str | None = None, queue: str | None = None) -> Timings:
    """All there are, when they have been rolled up."""
    await harness.advance(MINUTE)
    await harness.store.tidy()
    now = await harness.now()
    return await harness.store.timings(tenant, queue, now - 12 * HOUR, now)


async def some_end(harness: Harness, count: int, *, queue: str = "default", tenant: str = "default") -> None:
    await harness.submit(*[a_run(queue=queue, tenant=tenant) for _ in range(count)])
    await harness.advance(_LATE)
    held = await harness.claim(await harness.worker(), count, queue)
    await harness.advance(_TOOK)
    await harness.succeed(*held)


async def test_where_nothing_has_ended_there_are_none(harness: Harness) -> None:
    await harness.start(a_run())
    assert await timings(harness) == Timings({}, {})


async def test_spans_are_counted_by_their_bucket(harness: Harness) -> None:
    await some_end(harness, 3)
    await some_end(harness, 2)
    assert await timings(harness) == Timings({bucket_of(_LATE): 5}, {bucket_of(_TOOK): 5})


async def test_what_began_at_once_is_in_the_first_buckets(harness: Harness) -> None:
    await harness.succeed(*await harness.start(a_run()))
    found = await timings(harness)
    assert sum(found.late.values()) == sum(found.took.values()) == 1
    assert max([*found.late, *found.took]) < bucket_of(_LATE)


async def test_what_ended_without_running_has_no_times(harness: Harness) -> None:
    [held] = await harness.start(a_run(policy=a_policy(pause=HOUR)))
    await harness.fail(held)
    await harness.advance(MINUTE)
    await harness.store.cancel([held.id])
    assert await timings(harness) == Timings({}, {})


async def test_each_tenant_and_queue_has_its_own(harness: Harness) -> None:
    await some_end(harness, 1, queue="a")
    await some_end(harness, 2, queue="b")
    await some_end(harness, 4, queue="b", tenant="acme")

    async def told(tenant: str | None, queue: str | None) -> int:
        return sum((await timings(harness, tenant, queue)).took.values())

    assert [await told(None, None), await told(None, "b"), await told("default", None)] == [7, 6, 3]
    assert [await told("acme", "a"), await told("acme", "b"), await told("beta", None)] == [0, 4, 0]
    assert await told(None, "nowhere") == 0


async def test_they_are_told_from_the_five_minutes_on_in_which_since_lies(harness: Harness) -> None:
    await some_end(harness, 1)
    ended = await harness.now()
    await timings(harness)

    async def told(since: int, until: int) -> int:
        return sum((await harness.store.timings(None, None, since, until)).took.values())

    assert await told(ended, ended + 1) == 1
    assert await told(ended + 5 * MINUTE, ended + HOUR) == 0
    assert await told(ended - HOUR, ended - 5 * MINUTE) == 0


async def test_they_are_forgotten_after_a_day(harness: Harness) -> None:
    await some_end(harness, 1)
    await timings(harness)
    await harness.advance(TIMINGS_KEPT + 5 * MINUTE)
    await harness.store.prune(Retention(), 100)
    assert await harness.store.timings(None, None, 0, await harness.now()) == Timings({}, {})
