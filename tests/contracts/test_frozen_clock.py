"""A test can freeze the store's clock and move it by exact amounts."""

from mainspring.core.model.access.access import Quotas, Tenant
from mainspring.core.model.base.instant import DAY, HOUR
from mainspring.core.ports.storage.access import Author
from tests.support.builders import a_run
from tests.support.store_harness import Harness


async def test_a_frozen_clock_gives_the_same_instant_on_every_read(harness: Harness) -> None:
    instant = await harness.freeze_clock()
    assert {await harness.store.now() for _ in range(20)} == {instant}
    assert await harness.freeze_clock() == instant


async def test_a_frozen_clock_moves_by_exactly_the_given_duration(harness: Harness) -> None:
    instant = await harness.freeze_clock()
    await harness.move_clock(1)
    assert await harness.store.now() == instant + 1
    await harness.advance(HOUR)
    assert {await harness.store.now() for _ in range(20)} == {instant + 1 + HOUR}


async def test_a_run_carries_the_exact_times_of_a_frozen_clock(harness: Harness) -> None:
    # A claim under a quota has a statement of its own.
    await harness.store.put_tenant(Tenant(name="acme", quotas=Quotas(running=1)), Author("ada"))
    instant = await harness.freeze_clock()
    plain, under_quota = a_run(), a_run(tenant="acme")
    await harness.submit(plain, under_quota)
    await harness.move_clock(1)
    held = await harness.claim(await harness.worker())
    await harness.move_clock(DAY)
    await harness.succeed(*held)
    for run in (plain, under_quota):
        view = await harness.view(run.id)
        assert (view.created_at, view.started_at, view.finished_at) == (instant, instant + 1, instant + 1 + DAY)
