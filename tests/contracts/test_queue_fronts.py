"""The first queued run of each queue."""

import pytest

from mainspring.core.model.base.instant import HOUR
from tests.support.builders import a_policy, a_run, a_worker, some_runs
from tests.support.store_harness import Harness

pytestmark = pytest.mark.api


async def test_without_queued_runs_there_are_no_fronts(harness: Harness) -> None:
    assert await harness.store.queue_fronts(9) == []
    await harness.start(a_run())
    await harness.submit(a_run(delay=HOUR))
    assert await harness.store.queue_fronts(9) == []


async def test_each_queue_has_the_run_that_is_claimed_first(harness: Harness) -> None:
    urgent = a_run(queue="a", priority=1)
    alone = a_run(queue="b", task="other")
    await harness.submit(*(a_run(queue="a") for _ in range(3)), urgent, alone)
    assert sorted(await harness.store.queue_fronts(9)) == sorted([urgent.id, alone.id])
    assert len(await harness.store.queue_fronts(1)) == 1


async def test_each_label_set_has_a_front(harness: Harness) -> None:
    plain, gpu = a_run(), a_run(policy=a_policy(requires=("gpu",)))
    mars = a_run(policy=a_policy(requires=("datacenter=mars",)))
    await harness.submit(plain, gpu, mars)
    assert sorted(await harness.store.queue_fronts(9)) == sorted([plain.id, gpu.id, mars.id])


async def test_a_run_for_one_session_is_no_front(harness: Harness) -> None:
    session = await harness.store.open_session(a_worker())
    await harness.submit(a_run(target=session))
    assert await harness.store.queue_fronts(9) == []
    after = a_run(queue="z")
    await harness.submit(a_run(queue="z", target=session), after, *some_runs(2))
    assert after.id in await harness.store.queue_fronts(9)
    assert len(await harness.store.queue_fronts(9)) == 2
