"""A worker registers the tasks that it runs when it starts."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from mainspring import Context, Mainspring, RetryPolicy
from mainspring.config.node import Node, Role
from mainspring.config.services.worker import REGISTERED
from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.instant import MINUTE
from mainspring.core.model.limits.limits import Limit
from mainspring.core.model.tasks.task_entry import KnownTask, TaskEntry
from mainspring.core.submit.task_registration import TaskRegistration
from mainspring.stores.memory import MemoryStore
from tests.support.waiting import eventually


@asynccontextmanager
async def started(app: Mainspring, *roles: Role) -> AsyncIterator[Node]:
    node = Node(app.settings(), set(roles) or {Role.WORKER}, app, None)
    await node.runtime.open()
    await node.start()
    try:
        yield node
    finally:
        await node.stop()
        await node.runtime.close()


async def registered(node: Node) -> dict[str, KnownTask]:
    return {known.entry.name: known for known in await node.runtime.store.list_tasks()}


def new_app(store: str = "memory:", queue: str = "video") -> Mainspring:
    app = Mainspring(store)

    @app.task(queue=queue, priority=2, retries=7, timeout="5m", limit=3, weight=2, tags=["video"])
    def encode(context: Context, clip: str, frames: int = 10) -> None:
        """Encode a clip.

        Frame by frame.
        """

    @app.task(aliases=["old-ping"], upgrade=lambda old: old, preset="payouts")
    async def ping(host: str) -> None: ...

    return app


async def test_a_worker_registers_what_its_application_declares() -> None:
    async with started(new_app()) as node:
        found = await registered(node)
    encode = found["encode"].entry
    assert (encode.queue, encode.priority, encode.policy.timeout, encode.policy.weight) == ("video", 2, 5 * MINUTE, 2)
    assert encode.policy.retry == RetryPolicy(max_retries=7).kept
    assert encode.policy.limits == (Limit(key="task:encode", most=3),)
    assert encode.tags == ("video",)
    assert encode.description == "Encode a clip.\n\nFrame by frame."
    assert encode.arguments == {
        "type": "object",
        "properties": {"clip": {"type": "string"}, "frames": {"type": "integer", "default": 10}},
        "additionalProperties": False,
        "required": ["clip"],
    }
    assert (found["ping"].entry.preset, found["ping"].entry.checked, encode.checked) == ("payouts", False, True)
    assert found["old-ping"].entry == msgspec.structs.replace(found["ping"].entry, name="old-ping")
    assert found["encode"].registered_by


async def test_a_worker_registers_the_built_in_tasks() -> None:
    async with started(Mainspring("memory:")) as node:
        found = await registered(node)
    assert set(found) == {"http", "workflow", "fan_out"}
    assert found["http"].entry.arguments["required"] == ["url"]
    assert all(known.entry.description for known in found.values())


async def test_a_task_of_the_application_replaces_a_built_in_one() -> None:
    app = Mainspring("memory:")

    @app.task(queue="calls")
    def http(host: str) -> None: ...

    async with started(app) as node:
        entry = (await registered(node))["http"].entry
    assert (entry.queue, entry.arguments["required"]) == ("calls", ["host"])


async def test_a_process_without_a_worker_registers_nothing() -> None:
    async with started(new_app(), Role.SCHEDULER) as node:
        assert await registered(node) == {}


async def test_the_newest_worker_wins_while_the_older_one_runs_on(tmp_path: Path) -> None:
    store = str(tmp_path / "mainspring.db")
    async with started(new_app(store)) as older:
        async with started(new_app(store, queue="faster")):
            pass
        # Its session is renewed and registered again; its tasks are not.
        assert older._registration is not None
        for _ in range(3):
            await older._registration.step()
        found = await registered(older)
    assert (found["encode"].entry.queue, found["encode"].version) == ("faster", 2)
    assert found["ping"].version == 1


async def test_a_recycled_worker_does_not_replace_a_newer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = str(tmp_path / "mainspring.db")
    monkeypatch.setenv(REGISTERED, "")
    async with started(new_app(store)) as older:
        older.hand_over_registration()
    async with started(new_app(store, queue="faster")):
        pass
    async with started(new_app(store)) as fresh:
        assert (await registered(fresh))["encode"].entry.queue == "faster"


async def test_a_worker_registers_when_the_store_is_back() -> None:
    node = Node(Mainspring("memory:").settings(), {Role.WORKER}, None, None)
    await node.runtime.open()
    calls = []

    class Registry(MemoryStore):
        async def register_tasks(self, entries: Sequence[TaskEntry], worker: str) -> int:
            calls.append(worker)
            if len(calls) < 3:
                raise StoreUnavailable("away for the test")
            return await super().register_tasks(entries, worker)

    service = TaskRegistration(
        Registry(node.runtime.clock), [TaskEntry(name="t")], "w1", node.runtime.clock, node.runtime.wakeups.listen([])
    )
    await service.start()
    await eventually(lambda: len(calls) == 3)
    await service.stop()
    await node.runtime.close()
