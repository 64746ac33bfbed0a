"""The warnings about queued runs that no live worker can start, on the memory store and in virtual time."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from mainspring.core.maintenance.unserved_runs import UnservedRuns
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, SECOND, Micros
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import Pause
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.store import NewSession
from mainspring.stores.memory import MemoryStore
from mainspring.testing.virtual_time import VirtualClock
from tests.support.builders import a_policy, a_run, some_runs
from tests.support.virtual import in_virtual_time

AUTHOR = Author("ada", None)


class Watched:
    """A store with a live worker of the queue ``default``."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = MemoryStore(self.clock, 4)

    async def open_worker(self, *queues: str, tasks: tuple[str, ...] = ()) -> None:
        worker = NewSession(name="worker", kind="worker", ttl=DAY, queues=queues or ("default",), tasks=tasks)
        await self.store.open_session(worker)

    async def watch(self, span: Micros, owned: dict[int, int] | None = None) -> list[dict[str, Any]]:
        """Return the warnings that are logged within a span of time."""
        with capture_logs() as logs:
            owned = {0: 1} if owned is None else owned
            async with UnservedRuns(self.store, LocalWakeups(), self.clock, lambda: owned):
                await self.clock.sleep(span)
        return [dict(line) for line in logs if line["event"] == "queued run cannot start"]


@in_virtual_time
async def test_a_run_in_a_queue_without_a_worker_is_logged_with_the_reason() -> None:
    watched = Watched()
    await watched.open_worker()
    run = a_run(queue="reports", task="report")
    await watched.store.submit([run])
    [line] = await watched.watch(MINUTE)
    assert (line["log_level"], line["task"], line["queue"], line["run"]) == ("warning", "report", "reports", run.id)
    assert line["reason"] == (
        "no live worker serves queue 'reports'; start one with --queue reports (served queues: default)"
    )


@in_virtual_time
async def test_each_queue_and_task_is_logged_once_in_ten_minutes() -> None:
    watched = Watched()
    await watched.open_worker()
    await watched.store.submit([a_run(queue="a"), a_run(queue="a"), a_run(queue="b")])
    lines = await watched.watch(9 * MINUTE)
    assert sorted(line["queue"] for line in lines) == ["a", "b"]
    assert len(await watched.watch(HOUR)) in (10, 12, 14)


@in_virtual_time
async def test_runs_that_a_worker_can_start_are_not_logged() -> None:
    watched = Watched()
    await watched.open_worker("default", "reports")
    await watched.store.submit([*some_runs(3), a_run(queue="reports"), a_run(queue="nowhere", delay=HOUR)])
    assert await watched.watch(10 * MINUTE) == []


@in_virtual_time
async def test_a_worker_that_is_back_soon_leaves_no_warning() -> None:
    watched = Watched()
    await watched.store.submit([a_run()])
    with capture_logs() as logs:
        async with UnservedRuns(watched.store, LocalWakeups(), watched.clock, lambda: {0: 1}):
            await watched.clock.sleep(SECOND)
            await watched.open_worker()
            await watched.clock.sleep(MINUTE)
    assert logs == []


@pytest.mark.parametrize("pause", [Pause(tenant=None, queue="reports"), Pause(tenant="default", queue=None)])
@in_virtual_time
async def test_paused_runs_are_not_logged(pause: Pause) -> None:
    watched = Watched()
    await watched.open_worker()
    await watched.store.submit([a_run(queue="reports")])
    await watched.store.pause(pause, AUTHOR)
    assert await watched.watch(MINUTE) == []


@in_virtual_time
async def test_a_missing_task_and_a_missing_data_center_are_reasons_too() -> None:
    watched = Watched()
    await watched.open_worker("default", "mail", tasks=("send",))
    elsewhere = a_run(queue="mail", task="send", policy=a_policy(requires=("datacenter=mars",)))
    await watched.store.submit([a_run(task="sendd"), elsewhere])
    reasons = sorted(line["reason"] for line in await watched.watch(MINUTE))
    assert reasons == [
        "no live worker knows task 'sendd'; did you mean 'send'?",
        "no live worker of queue 'mail' is in data center 'mars'; no live worker names one",
    ]


@in_virtual_time
async def test_only_the_owner_of_shard_0_logs() -> None:
    watched = Watched()
    await watched.store.submit([a_run()])
    assert await watched.watch(10 * MINUTE, owned={1: 1}) == []
