"""A submit goes to the store that the process was started with, and leaves nothing open."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from mainspring import Invalid, Mainspring
from mainspring.config.loading import load
from mainspring.config.node import Node, Role
from mainspring.config.runtime import Runtime
from mainspring.core.model.runs.run import RunState
from tests.support import submitting_tasks


def _count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_submitting_from_short_lived_loops_leaks_no_threads_and_descriptors(tmp_path: Path) -> None:
    app = Mainspring(str(tmp_path / "app.db"))

    @app.task
    async def noop() -> None: ...

    asyncio.run(noop.submit())
    threads, descriptors = threading.active_count(), _count_descriptors()
    for _ in range(10):
        asyncio.run(noop.submit())
    assert threading.active_count() < threads + 5
    assert _count_descriptors() < descriptors + 5


async def test_each_loop_opens_the_store_of_the_process(tmp_path: Path) -> None:
    app = Mainspring(str(tmp_path / "code.db"))

    @app.task
    async def noop() -> None: ...

    runtime = Runtime(load({"store": str(tmp_path / "flag.db")}))
    await runtime.open()
    try:
        app.use(runtime)
        # Like a task that runs in a thread.
        elsewhere = await asyncio.to_thread(asyncio.run, noop.submit())
        assert await app.runtime() is runtime
        assert (await runtime.store.runs([elsewhere.id]))[0] is not None
        assert not (tmp_path / "code.db").exists()
        # The application does not close a runtime that it was given.
        await app.close()
        assert await runtime.store.now()
    finally:
        await runtime.close()


async def test_a_store_in_memory_rejects_submits_from_other_loops() -> None:
    app = Mainspring("memory:")

    @app.task
    async def noop() -> None: ...

    runtime = Runtime(app.settings())
    await runtime.open()
    try:
        app.use(runtime)
        with pytest.raises(Invalid, match="memory: is there for one event loop alone"):
            await asyncio.to_thread(asyncio.run, noop.submit())
    finally:
        await runtime.close()


@pytest.mark.system
@pytest.mark.parametrize("task", ["from_child", "from_thread", "from_loop"])
async def test_a_task_submits_to_the_store_of_its_worker(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = submitting_tasks.app
    node = Node(
        app.settings({"store": "flag.db"}), {Role.SCHEDULER, Role.WORKER}, app, "tests.support.submitting_tasks:app"
    )
    await node.runtime.open()
    app.use(node.runtime)
    try:
        await node.start()
        for _ in range(2):
            handle = await app._tasks[task].submit()
            view = await handle.wait("2m")
            assert view.state is RunState.SUCCEEDED, view.error
        assert {name for name in os.listdir(tmp_path) if name.endswith(".db")} == {"flag.db"}
    finally:
        await node.stop()
        await app.close()
        await node.runtime.close()
