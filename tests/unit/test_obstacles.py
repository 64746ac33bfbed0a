"""Why no live worker can take a run."""

import msgspec
import pytest

from mainspring.core.model.cluster.datacenters import Preference
from mainspring.core.model.runs.obstacles import Obstacles


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    queues: tuple[str, ...] = ("default",)
    tasks: tuple[str, ...] = ("greet",)
    labels: tuple[str, ...] = ()
    priorities: tuple[int, ...] = ()
    serves: str = ""
    datacenter: str = ""
    draining: bool = False


def find(
    *workers: Worker,
    tenant: str = "default",
    queue: str = "default",
    task: str = "greet",
    requires: tuple[str, ...] = (),
    datacenters: tuple[str, ...] = (),
    priority: int | None = None,
) -> tuple[str, ...]:
    return Obstacles(workers).find(tenant, queue, task, requires, datacenters, priority)


def test_a_worker_of_the_queue_that_knows_the_task_leaves_no_obstacle() -> None:
    assert find(Worker()) == ()
    assert find(Worker(tasks=())) == ()
    assert find(Worker(labels=("gpu=a100",)), requires=("gpu=a100",)) == ()


@pytest.mark.parametrize("workers", [(), (Worker(draining=True),), (Worker(serves="acme"),)])
def test_without_a_worker_for_the_tenant_the_job_waits_until_one_starts(workers: tuple[Worker, ...]) -> None:
    [found] = find(*workers)
    assert found.startswith("no worker is running; the job waits until one starts")


def test_a_queue_that_no_worker_serves_is_named_with_those_that_are_served() -> None:
    [found] = find(Worker(queues=("mail", "default")), queue="reports")
    assert found == (
        "no live worker serves queue 'reports'; start one with --queue reports (served queues: default, mail)"
    )


def test_a_priority_that_no_worker_of_the_queue_has_slots_for_is_named() -> None:
    pools = Worker(priorities=(1, 2, 3))
    [found] = find(pools, priority=5)
    assert found == "no live worker of queue 'default' takes priority 5; they have slots for priorities 1, 2, 3 alone"
    assert find(pools, priority=2) == find(pools) == find(pools, Worker(), priority=5) == ()
    assert len(find(pools, Worker(queues=("mail",)), priority=5)) == 1, "another queue's worker does not help"


def test_a_misspelled_queue_has_a_suggestion() -> None:
    [found] = find(Worker(queues=("billing",)), queue="biling")
    assert found == "no live worker serves queue 'biling'; did you mean 'billing'?"


def test_a_misspelled_task_has_a_suggestion() -> None:
    assert find(Worker(), task="great") == ("no live worker knows task 'great'; did you mean 'greet'?",)


def test_a_task_that_no_worker_of_the_queue_knows_is_named() -> None:
    assert find(Worker(), task="bill") == ("no live worker knows task 'bill'; it waits until one does",)
    [found] = find(Worker(), Worker(queues=("mail",), tasks=("bill",)), task="bill")
    assert found == "no live worker of queue 'default' knows task 'bill'; workers of mail do"


def test_an_unknown_queue_task_and_data_center_are_all_named() -> None:
    workers = (Worker(datacenter="eu"), Worker(queues=("mail",)))
    assert find(*workers, queue="nowhere", task="bill", datacenters=("mars",)) == (
        "no live worker serves queue 'nowhere'; start one with --queue nowhere (served queues: default, mail)",
        "no live worker is in data center 'mars'; data centers with live workers: eu",
        "no live worker knows task 'bill'; it waits until one does",
    )
    assert len(find(*workers, queue="nowhere", datacenters=("eu",))) == 1


def test_labels_must_be_those_of_a_worker_that_knows_the_task() -> None:
    other = Worker(tasks=("bill",), labels=("gpu=a100",))
    assert find(Worker(), other, requires=("gpu=a100",)) == (
        "no live worker of queue 'default' has the labels gpu=a100",
    )


def test_each_data_center_without_a_worker_of_the_queue_is_named() -> None:
    workers = (Worker(datacenter="eu"), Worker(datacenter="us"))
    assert find(*workers, datacenters=("eu", "us")) == ()
    assert find(*workers, datacenters=("*",)) == ()
    [found] = find(*workers, datacenters=("eu", "mars"))
    assert found == (
        "no live worker of queue 'default' is in data center 'mars'; "
        "data centers with live workers of the queue: eu, us"
    )
    [found] = find(Worker(), requires=("datacenter=mars",))
    assert found == "no live worker of queue 'default' is in data center 'mars'; no live worker names one"


def test_an_order_of_preference_needs_one_of_its_data_centers() -> None:
    wanted = (Preference(("mars", "eu"), 30_000_000).word,)
    assert find(Worker(datacenter="eu"), requires=wanted) == ()
    [found] = find(Worker(datacenter="us"), requires=wanted)
    assert found == (
        "no live worker of queue 'default' is in mars, eu; data centers with live workers of the queue: us"
    )
