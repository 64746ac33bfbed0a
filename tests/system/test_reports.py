"""Reports of handlers, and the resources they use, on the loop, on threads and in real child processes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mainspring.config.loading import load
from mainspring.config.node import Node, Role
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.sdk.task import Task
from tests.support import reporting_tasks
from tests.support.reporting_tasks import NOTES, app
from tests.support.waiting import eventually

pytestmark = pytest.mark.system

HERE = "tests.support.reporting_tasks:app"


# Not a fixture: pytest replaces the standard output between a fixture and a test, and the worker captures it.
@asynccontextmanager
async def a_node(tmp_path: Path) -> AsyncIterator[Node]:
    settings = load({"store": str(tmp_path / "app.db"), "worker.children": "1"})
    node = Node(settings, {Role.WORKER, Role.SCHEDULER}, app, HERE)
    await node.runtime.open()
    app.use(node.runtime)
    try:
        await node.start()
        yield node
    finally:
        await node.stop()
        await app.close()
        await node.runtime.close()


async def view_run(node: Node, run: str) -> RunView:
    [view] = await node.runtime.store.runs([RunId(run)])
    assert view is not None
    return view


async def read_log(node: Node, run: str) -> list[str]:
    pieces = await node.runtime.store.log(RunId(run), 0, 1_000)
    return [line for piece in pieces for line in piece.text.splitlines()]


@pytest.mark.parametrize("task", ["on_loop", "on_thread", "in_child", "in_process"])
async def test_reports_are_stored_from_every_executor(tmp_path: Path, task: str) -> None:
    async with a_node(tmp_path) as node:
        chosen: Task[[], Any, dict[str, Any]] = getattr(reporting_tasks, task)
        handle = await chosen.submit()
        result = await handle.result("2m")
        assert result["state"] == {"page": 7}
        assert result["pid"] == result["pool"]
        view = await view_run(node, handle.id)
        assert view.progress is not None
        assert (view.progress.done, view.progress.total, view.progress.note) == (2, 2, "all")
        lines = await read_log(node, handle.id)
        name = f"INFO mainspring.task.{task}"
        assert lines[:3] == [f"around {task}", f"{name}: traced", "failed ConnectionError False False"]
        assert lines[3:8] == [
            f"around {task}",
            f"{name}: traced",
            f"{name}: hello",
            "WARNING library: careful",
            "printed",
        ]
        assert lines[8].startswith(f"{name}: done {{'state': {{'page': 7}}")


async def test_reports_of_a_child_are_stored_while_it_runs(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        handle = await reporting_tasks.endless.submit()

        async def reported() -> bool:
            return len(await read_log(node, handle.id)) >= 4 and (await view_run(node, handle.id)).progress is not None

        await eventually(reported)
        view = await view_run(node, handle.id)
        assert view.state is RunState.RUNNING
        assert view.progress is not None
        assert view.progress.done == 1
        assert (await read_log(node, handle.id))[2:] == ["begun", "INFO mainspring.task.endless: continues"]
        await handle.cancel()
        await handle.wait("2m")


async def test_a_task_in_a_child_is_stopped_when_its_heartbeats_stop(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        handle = await reporting_tasks.silent.submit()
        view = await handle.wait("2m")
        assert (view.state, view.reason) == (RunState.FAILED, "no heartbeat")
        assert (await read_log(node, handle.id))[-1] == "failed Interrupted True True"


async def test_a_task_on_a_thread_sees_in_its_context_that_it_was_cancelled(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        handle = await reporting_tasks.polls.submit()

        async def running() -> bool:
            return (await view_run(node, handle.id)).state is RunState.RUNNING

        await eventually(running)
        await handle.cancel()
        view = await handle.wait("2m")
        assert view.state in (RunState.SUCCEEDED, RunState.CANCELLED)


async def test_a_task_in_a_child_process_spawns_a_child_run(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        handle = await reporting_tasks.parent.submit()
        child = await handle.result("2m")
        about = (await view_run(node, child)).about
        assert about is not None
        assert about.parent == handle.id


async def test_every_process_runs_its_hooks_and_opens_and_closes_its_resources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    monkeypatch.setenv(NOTES, str(notes))
    async with a_node(tmp_path):
        await (await reporting_tasks.parent.submit()).wait("2m")
    found = sorted(path.name.split(".")[0] for path in notes.iterdir())
    assert found == ["close"] * 2 + ["open"] * 2 + ["start"] * 2 + ["stop"] * 2
