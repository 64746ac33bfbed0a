"""A cancel on real processes reaches the worker by a wake-up, and completes the run after its work has stopped."""

from pathlib import Path

import pytest

from mainspring.config.loading import load
from mainspring.config.node import Node, Role
from mainspring.config.runtime import Runtime
from mainspring.core.model.runs.run import RunState
from tests.support import stopping_tasks
from tests.support.processes import until_written

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


async def test_a_cancel_reaches_a_running_task_without_waiting_for_a_heartbeat(any_store: str, tmp_path: Path) -> None:
    """Another process asks for it, with its own connections and wake-ups."""
    app = stopping_tasks.app
    # A worker sends a heartbeat after three tenths of its lease: longer than this test waits.
    settings = load({"store": any_store, "worker.children": "1", "worker.lease": "1h"})
    node = Node(settings, {Role.WORKER, Role.SCHEDULER}, app, "tests.support.stopping_tasks:app")
    other = Runtime(settings)
    await node.runtime.open()
    await other.open()
    app.use(node.runtime)
    try:
        await node.start()
        for name, task in (("loop", stopping_tasks.on_the_loop), ("child", stopping_tasks.in_a_child)):
            note = str(tmp_path / name)
            handle = await task.submit(note)
            await until_written(Path(f"{note}.began"))
            assert await other.jobs.cancel_runs([handle.id]) == {handle.id: RunState.CANCELLING}
            assert (await handle.wait("2m")).state is RunState.CANCELLED
            assert Path(f"{note}.stopped").exists(), "it was completed before its work had stopped"  # noqa: ASYNC240
            assert await other.jobs.cancel_runs([handle.id]) == {handle.id: RunState.CANCELLED}
    finally:
        await node.stop()
        await app.close()
        await other.close()
        await node.runtime.close()
