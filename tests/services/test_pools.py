"""A worker's slots: heavy runs take several, priorities have pools of their own."""

import asyncio
from collections import Counter

import pytest

from mainspring.domain.errors import Invalid
from mainspring.domain.instant import SECOND
from mainspring.domain.queues import QueuePolicy
from mainspring.domain.run import HeldRun
from mainspring.ports.access import Author
from mainspring.testing.virtual_time import run_virtual
from mainspring.worker.settings import WorkerSettings
from tests.services.test_worker import a_worker
from tests.support.builders import a_policy, a_run
from tests.support.worker_kit import Tasks


class Weighing:
    """A task that knows how many slots are taken, and by which priority."""

    def __init__(self) -> None:
        self.taken: Counter[int] = Counter()
        self.most: Counter[int] = Counter()
        self.heaviest = 0
        self.done = 0

    async def __call__(self, held: HeldRun) -> bytes | None:
        weight = min(held.policy.weight, 4)
        self.taken[held.priority] += weight
        self.most[held.priority] = max(self.most[held.priority], self.taken[held.priority])
        self.heaviest = max(self.heaviest, self.taken.total())
        await asyncio.sleep(1)
        self.taken[held.priority] -= weight
        self.done += 1
        return None


def test_heavy_runs_never_take_more_slots_than_there_are_and_none_waits_for_long() -> None:
    run_virtual(_heavy_runs())


async def _heavy_runs() -> None:
    task = Weighing()
    weights = [1, 3, 1, 2, 9, 1, 4, 1, 1, 3]
    async with a_worker(Tasks(weigh=task), WorkerSettings(queues={"default": 4})) as bench:
        await bench.submit(*(a_run(task="weigh", policy=a_policy(weight=weight)) for weight in weights))
        # One after the other they would take ten seconds; alone are the one of 9 and the one of 4.
        await bench.clock.sleep(9 * SECOND)
        assert task.done == len(weights)
        assert task.heaviest == 4


def test_a_pool_is_not_used_up_by_another() -> None:
    run_virtual(_pools())


async def _pools() -> None:
    task = Weighing()
    settings = WorkerSettings(queues={"default": 100}, priorities={1: 3, 2: 2})
    async with a_worker(Tasks(weigh=task), settings) as bench:
        await bench.submit(*(a_run(task="weigh", priority=priority) for priority in (1, 2, 3) for _ in range(6)))
        await bench.clock.sleep(6 * SECOND)
        assert task.most == {1: 3, 2: 2}
        assert task.done == 12


def test_a_queue_that_lets_few_run_is_never_idle_while_there_is_work() -> None:
    run_virtual(_few_at_once())


async def _few_at_once() -> None:
    task = Weighing()
    async with a_worker(Tasks(weigh=task), WorkerSettings(poll_interval=100 * SECOND)) as bench:
        await bench.store.inner.put_queue_policy("default", QueuePolicy(concurrency=3), Author("ada"))
        await bench.submit(*(a_run(task="weigh") for _ in range(12)))
        await bench.clock.sleep(5 * SECOND)
        assert (task.heaviest, task.done) == (3, 12)


def test_a_pool_is_of_a_priority_and_has_slots() -> None:
    for priorities in ({0: 1}, {11: 1}, {1: 0}):
        with pytest.raises(Invalid):
            WorkerSettings(priorities=priorities).check()
