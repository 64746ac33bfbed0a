"""What an idle worker costs, in claims, and how a claim is shared by many queues."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.instant import SECOND
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.worker.settings import WorkerSettings
from mainspring.core.worker.slots import share
from tests.support.builders import a_run
from tests.support.virtual import in_virtual_time
from tests.support.worker_kit import Bench, Tasks, running_worker

MINUTES = 1
#: A worker polls every 0.75 to 1.25 s, and its first claim comes at once.
MOST_CLAIMS = MINUTES * 60 / 0.75 + 2


async def greet(held: HeldRun) -> bytes | None:
    return None


async def idle(settings: WorkerSettings) -> Bench:
    async with running_worker(Tasks(greet=greet), settings) as bench:
        await bench.clock.sleep(MINUTES * 60 * SECOND)
        assert len(bench.store.claims) <= MOST_CLAIMS
        asked = {demand.queue for demands, _ in bench.store.claims for demand in demands}
        assert asked == set(settings.queues)
        assert all(
            sum(demand.limit for demand in demands) <= settings.largest_claim for demands, _ in bench.store.claims
        )
    return bench


def queues(count: int, slots: int = 100) -> dict[str, int]:
    return {f"q{number}": slots for number in range(count)}


@pytest.mark.parametrize("count", [1, 2, 5, 6, 7, 12, 20, 50])
@pytest.mark.parametrize("slots", [1, 100, 10_000])
@in_virtual_time
async def test_an_idle_worker_claims_once_a_poll_with_any_number_of_queues(count: int, slots: int) -> None:
    await idle(WorkerSettings(queues=queues(count, slots)))


@pytest.mark.parametrize("seed", range(10))
@in_virtual_time
async def test_an_idle_worker_claims_once_a_poll_with_any_shape_of_slots(seed: int) -> None:
    random = Random(seed)
    shape = {
        f"q{number}": random.choice([1, 3, 50, 100, 250, 499, 500, 501]) for number in range(random.randint(2, 50))
    }
    await idle(WorkerSettings(queues=shape))


@pytest.mark.parametrize("pools", [{1: 100, 2: 50, 3: 20}, {1: 500, 5: 500}])
@in_virtual_time
async def test_an_idle_worker_claims_once_a_poll_with_pools_by_priority(pools: dict[int, int]) -> None:
    await idle(WorkerSettings(queues=queues(20), priorities=pools))


@in_virtual_time
async def test_a_worker_with_more_queues_than_a_claim_may_hold_asks_for_all_of_them() -> None:
    settings = WorkerSettings(queues=queues(7), largest_claim=3)
    async with running_worker(Tasks(greet=greet), settings) as bench:
        runs = await bench.submit(*[a_run(queue=queue) for queue in settings.queues])
        for run in runs:
            await bench.until(run)
        before = len(bench.store.claims)
        await bench.clock.sleep(60 * SECOND)
        # Three claims ask all seven queues.
        assert len(bench.store.claims) - before <= 3 * (60 / 0.75 + 2)


@in_virtual_time
async def test_a_long_backlog_of_one_queue_uses_all_its_slots_beside_many_idle_queues() -> None:
    running = most = 0

    async def work(held: HeldRun) -> bytes | None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await bench.clock.sleep(SECOND)
        running -= 1
        return None

    async with running_worker(Tasks(work=work), WorkerSettings(queues=queues(20))) as bench:
        runs = await bench.submit(*[a_run(task="work", queue="q0") for _ in range(300)])
        for run in runs:
            await bench.until(run)
    assert most == 100


@given(st.lists(st.integers(1, 1_000), min_size=1, max_size=60), st.integers(0, 2_000))
def test_demands_share_a_claim_evenly(demands: list[int], total: int) -> None:
    shares = share(demands, total)
    assert sum(shares) == min(total, sum(demands))
    assert all(0 <= got <= demand for got, demand in zip(shares, demands, strict=True))
    assert min(shares) >= 1 or total < len(demands)
    short = [got for got, demand in zip(shares, demands, strict=True) if got < demand]
    # A demand that was not filled got as much as any other, up to the remainder of the division.
    assert not short or max(shares) - min(short) <= 1
