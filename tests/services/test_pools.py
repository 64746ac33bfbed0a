"""Slots of a worker: heavy runs take several, and a priority can have its own pool."""

import asyncio
from collections import Counter

import pytest

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import SECOND
from mainspring.core.model.cluster.hints import HintCodec
from mainspring.core.model.limits.queues import QueuePolicy
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.ports.storage.access import Author
from mainspring.core.runtime.brokers import GuardedBroker
from mainspring.core.worker.settings import WorkerSettings
from mainspring.testing.virtual_time import VirtualClock
from tests.support.builders import a_policy, a_run
from tests.support.memory_dispatch import MemoryDispatch
from tests.support.virtual import in_virtual_time
from tests.support.worker_kit import Bench, Tasks, running_worker


class Weighing:
    """A task that counts the slots it takes, by priority."""

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


@in_virtual_time
async def test_weights_never_exceed_the_slots_and_no_heavy_run_starves() -> None:
    task = Weighing()
    weights = [1, 3, 1, 2, 9, 1, 4, 1, 1, 3]
    async with running_worker(Tasks(weigh=task), WorkerSettings(queues={"default": 4})) as bench:
        await bench.submit(*(a_run(task="weigh", policy=a_policy(weight=weight)) for weight in weights))
        # One after the other they would take ten seconds. Only the weights 9 and 4 run alone.
        await bench.clock.sleep(9 * SECOND)
        assert task.done == len(weights)
        assert task.heaviest == 4


@in_virtual_time
async def test_each_priority_uses_its_own_pool_of_slots() -> None:
    task = Weighing()
    settings = WorkerSettings(queues={"default": 100}, priorities={1: 3, 2: 2})
    async with running_worker(Tasks(weigh=task), settings) as bench:
        await bench.submit(*(a_run(task="weigh", priority=priority) for priority in (1, 2, 3) for _ in range(6)))
        await bench.clock.sleep(6 * SECOND)
        assert task.most == {1: 3, 2: 2}
        assert task.done == 12


@in_virtual_time
async def test_a_hint_of_a_priority_starts_a_run_in_its_pool_while_another_pool_is_full() -> None:
    task = Weighing()
    settings = WorkerSettings(queues={"default": 100}, priorities={1: 2, 3: 1}, poll_interval=1_000 * SECOND)
    clock = VirtualClock()
    broker = MemoryDispatch(clock, HintCodec(b"key"), lease=1_000 * SECOND)
    bench = Bench(clock, Tasks(weigh=task), settings, brokers={"default": GuardedBroker(broker, clock)})
    await bench.worker.start()
    # The look at the store that comes with the start is over, and the next one is far away.
    await clock.sleep(SECOND)

    async def hint(priority: int, number: int) -> None:
        runs = [a_run(task="weigh", priority=priority) for _ in range(number)]
        await bench.submit(*runs, notify=False)
        await broker.publish(await bench.memory.find_hints([run.id for run in runs]))

    await hint(3, 6)
    await hint(1, 8)
    await clock.sleep(4 * SECOND + SECOND // 2)
    # In four seconds priority 1 has done all it had, and priority 3 four of its six.
    assert (task.most, task.done) == ({1: 2, 3: 1}, 12)
    await clock.sleep(2 * SECOND)
    assert task.done == 14
    bench.worker.stop_now()
    await bench.worker.left()


@in_virtual_time
async def test_a_queue_with_limited_concurrency_starts_the_next_run_without_polling() -> None:
    task = Weighing()
    async with running_worker(Tasks(weigh=task), WorkerSettings(poll_interval=100 * SECOND)) as bench:
        await bench.store.inner.put_queue_policy("default", QueuePolicy(concurrency=3), Author("ada"))
        await bench.submit(*(a_run(task="weigh") for _ in range(12)))
        await bench.clock.sleep(5 * SECOND)
        assert (task.heaviest, task.done) == (3, 12)


def test_a_pool_needs_a_valid_priority_and_at_least_one_slot() -> None:
    for priorities in ({0: 1}, {11: 1}, {1: 0}):
        with pytest.raises(Invalid):
            WorkerSettings(priorities=priorities).check()
