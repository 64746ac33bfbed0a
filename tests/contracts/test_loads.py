"""How much waited and ran, looked at once a minute."""

import pytest

from mainspring.domain.instant import DAY, HOUR, MINUTE, SECOND, Instant
from mainspring.ports.catalog import LOADS_AT_ONCE, LOADS_KEPT, Load
from tests.support.builders import a_run, some_runs
from tests.support.store_harness import Harness

pytestmark = pytest.mark.api


async def loads(harness: Harness, tenant: str | None = None, queue: str | None = None) -> list[Load]:
    now = await harness.now()
    return await harness.store.loads(tenant, queue, now - DAY, now + 1)


async def look(harness: Harness) -> Instant:
    """Looks, in a minute of its own; which minute that is."""
    await harness.advance(MINUTE)
    looked = await harness.store.sample_load()
    return looked // MINUTE * MINUTE


async def test_where_nobody_has_looked_there_are_none(harness: Harness) -> None:
    await harness.start(a_run())
    assert await loads(harness) == []


async def test_nothing_to_do_is_seen_as_well(harness: Harness) -> None:
    at = await look(harness)
    assert await loads(harness) == [Load(at=at, queued=0, running=0, lag=0)]
    assert await loads(harness, "acme", "default") == [Load(at=at, queued=0, running=0, lag=0)]


async def test_what_waits_and_runs_is_counted_while_it_does(harness: Harness) -> None:
    await harness.start(*some_runs(2))
    await harness.submit(*some_runs(3), a_run(delay=HOUR))
    first, second = await look(harness), await look(harness)
    one, other = await loads(harness)
    assert (one.at, other.at) == (first, second)
    assert [(load.queued, load.running) for load in (one, other)] == [(3, 2), (3, 2)]
    # It grows while nothing is done.
    assert MINUTE <= one.lag < one.lag + 50 * SECOND < other.lag


async def test_what_has_ended_is_no_load(harness: Harness) -> None:
    await harness.succeed(*await harness.start(*some_runs(2)))
    await look(harness)
    assert [(load.queued, load.running, load.lag) for load in await loads(harness)] == [(0, 0, 0)]


async def test_a_minute_is_looked_at_once(harness: Harness) -> None:
    await harness.submit(a_run())
    at = await look(harness)
    await harness.submit(a_run(queue="other"), a_run())
    assert await harness.store.sample_load() // MINUTE * MINUTE == at
    assert [(load.at, load.queued) for load in await loads(harness)] == [(at, 1)]


async def test_each_tenant_and_queue_has_its_own(harness: Harness) -> None:
    await harness.submit(a_run(queue="a"), a_run(queue="b"), a_run(queue="b", tenant="acme"))
    await harness.advance(HOUR)
    await harness.submit(a_run(queue="a"))
    await look(harness)

    async def told(tenant: str | None, queue: str | None) -> tuple[int, bool]:
        [load] = await loads(harness, tenant, queue)
        return load.queued, load.lag >= HOUR

    assert await told(None, None) == (4, True)
    assert await told(None, "b") == (2, True)
    assert await told("default", None) == (3, True)
    assert await told("default", "a") == (2, True)
    assert await told("acme", None) == (1, True)
    assert await told("acme", "a") == (0, False)
    assert await told("beta", None) == (0, False)


async def test_only_the_minutes_that_were_asked_for_are_told(harness: Harness) -> None:
    at = [await look(harness) for _ in range(3)]

    async def told(since: Instant, until: Instant) -> list[Instant]:
        return [load.at for load in await harness.store.loads(None, None, since, until)]

    assert await told(at[0], at[2] + 1) == at
    assert await told(at[0] + 1, at[2]) == [at[1]]


async def test_however_many_queues_there_are_the_sum_is_right(harness: Harness) -> None:
    many = LOADS_AT_ONCE + 5
    await harness.submit(*[a_run(queue=f"q{number}") for number in range(many)], *some_runs(5))
    await look(harness)
    assert [load.queued for load in await loads(harness)] == [many + 5]
    # The largest are among those that are kept apart.
    assert [load.queued for load in await loads(harness, "default", "default")] == [5]
    [mine] = await loads(harness, "default")
    assert LOADS_AT_ONCE <= mine.queued <= many + 5


async def test_they_are_forgotten_after_a_day(harness: Harness) -> None:
    first = await look(harness)
    await harness.advance(LOADS_KEPT)
    second = await look(harness)
    found = await harness.store.loads(None, None, 0, second + 1)
    assert [load.at for load in found] == [second]
    assert first < second - DAY
