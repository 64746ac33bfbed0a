"""Loads: queued and running runs, sampled once a minute."""

import pytest

from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, SECOND, Instant
from mainspring.core.ports.storage.catalog import LOADS_AT_ONCE, LOADS_KEPT, Load
from tests.support.builders import a_run, some_runs
from tests.support.store_harness import Harness

pytestmark = pytest.mark.api


async def loads(harness: Harness, tenant: str | None = None, queue: str | None = None) -> list[Load]:
    now = await harness.now()
    return await harness.store.loads(tenant, queue, now - DAY, now + 1)


async def sample(harness: Harness) -> Instant:
    """Sample the load in a new minute and return that minute."""
    await harness.advance(MINUTE)
    looked = await harness.store.sample_load()
    return looked // MINUTE * MINUTE


async def test_without_a_sample_there_are_no_loads(harness: Harness) -> None:
    await harness.start(a_run())
    assert await loads(harness) == []


async def test_a_sample_of_an_idle_store_is_zero(harness: Harness) -> None:
    at = await sample(harness)
    assert await loads(harness) == [Load(at=at, queued=0, running=0, lag=0)]
    assert await loads(harness, "acme", "default") == [Load(at=at, queued=0, running=0, lag=0)]


async def test_a_sample_counts_queued_and_running_runs(harness: Harness) -> None:
    await harness.start(*some_runs(2))
    await harness.submit(*some_runs(3), a_run(delay=HOUR))
    first, second = await sample(harness), await sample(harness)
    one, other = await loads(harness)
    assert (one.at, other.at) == (first, second)
    assert [(load.queued, load.running) for load in (one, other)] == [(3, 2), (3, 2)]
    # The lag grows while no run is claimed.
    assert MINUTE <= one.lag < one.lag + 50 * SECOND < other.lag


async def test_a_sample_does_not_count_ended_runs(harness: Harness) -> None:
    await harness.succeed(*await harness.start(*some_runs(2)))
    await sample(harness)
    assert [(load.queued, load.running, load.lag) for load in await loads(harness)] == [(0, 0, 0)]


async def test_a_minute_is_sampled_once(harness: Harness) -> None:
    await harness.submit(a_run())
    at = await sample(harness)
    await harness.submit(a_run(queue="other"), a_run())
    assert await harness.store.sample_load() // MINUTE * MINUTE == at
    assert [(load.at, load.queued) for load in await loads(harness)] == [(at, 1)]


async def test_loads_are_read_by_tenant_and_queue(harness: Harness) -> None:
    await harness.submit(a_run(queue="a"), a_run(queue="b"), a_run(queue="b", tenant="acme"))
    await harness.advance(HOUR)
    await harness.submit(a_run(queue="a"))
    await sample(harness)

    async def sampled(tenant: str | None, queue: str | None) -> tuple[int, bool]:
        [load] = await loads(harness, tenant, queue)
        return load.queued, load.lag >= HOUR

    assert await sampled(None, None) == (4, True)
    assert await sampled(None, "b") == (2, True)
    assert await sampled("default", None) == (3, True)
    assert await sampled("default", "a") == (2, True)
    assert await sampled("acme", None) == (1, True)
    assert await sampled("acme", "a") == (0, False)
    assert await sampled("beta", None) == (0, False)


async def test_the_lag_of_the_total_is_that_of_the_oldest_run_in_any_queue(harness: Harness) -> None:
    await harness.submit(a_run(queue="old"))
    await harness.advance(HOUR)
    await harness.submit(a_run(queue="new"))
    await sample(harness)
    [load] = await loads(harness)
    assert load.lag >= HOUR


async def test_only_the_requested_minutes_have_loads(harness: Harness) -> None:
    at = [await sample(harness) for _ in range(3)]

    async def list_minutes(since: Instant, until: Instant) -> list[Instant]:
        return [load.at for load in await harness.store.loads(None, None, since, until)]

    assert await list_minutes(at[0], at[2] + 1) == at
    assert await list_minutes(at[0] + 1, at[2]) == [at[1]]


async def test_the_total_load_counts_queues_beyond_the_sampled_ones(harness: Harness) -> None:
    many = LOADS_AT_ONCE + 5
    await harness.submit(*[a_run(queue=f"q{number}") for number in range(many)], *some_runs(5))
    await sample(harness)
    assert [load.queued for load in await loads(harness)] == [many + 5]
    # The largest queues are sampled separately.
    assert [load.queued for load in await loads(harness, "default", "default")] == [5]
    [mine] = await loads(harness, "default")
    assert LOADS_AT_ONCE <= mine.queued <= many + 5


async def test_loads_are_pruned_after_a_day(harness: Harness) -> None:
    first = await sample(harness)
    await harness.advance(LOADS_KEPT)
    second = await sample(harness)
    found = await harness.store.loads(None, None, 0, second + 1)
    assert [load.at for load in found] == [second]
    assert first < second - DAY
