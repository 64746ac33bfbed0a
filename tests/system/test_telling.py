"""What handlers tell and are given, on the loop, on threads and in real child processes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mainspring.bootstrap.node import Node, Role
from mainspring.domain.ids import RunId
from mainspring.domain.run import RunState, RunView
from mainspring.sdk.task import Task
from mainspring.settings import load
from tests.support import telling_tasks
from tests.support.telling_tasks import NOTES, app

pytestmark = pytest.mark.system

HERE = "tests.support.telling_tasks:app"


# No fixture: pytest would put another stdout in the place of the one that is listened to.
@asynccontextmanager
async def a_node(tmp_path: Path) -> AsyncIterator[Node]:
    settings = load({"store": str(tmp_path / "app.db"), "worker.children": "1"})
    node = Node(settings, {Role.WORKER, Role.SCHEDULER}, app, HERE)
    await node.engine.open()
    app.use(node.engine)
    try:
        await node.start()
        yield node
    finally:
        await node.stop()
        await app.close()
        await node.engine.close()


async def seen(node: Node, run: str) -> RunView:
    [view] = await node.engine.store.runs([RunId(run)])
    assert view is not None
    return view


async def log(node: Node, run: str) -> list[str]:
    pieces = await node.engine.store.log(RunId(run), 0, 1_000)
    return [line for piece in pieces for line in piece.text.splitlines()]


@pytest.mark.parametrize("task", ["on_loop", "on_thread", "in_child", "in_process"])
async def test_everything_is_told_wherever_it_runs(tmp_path: Path, task: str) -> None:
    async with a_node(tmp_path) as node:
        chosen: Task[[], Any, dict[str, Any]] = getattr(telling_tasks, task)
        handle = await chosen.submit()
        result = await asyncio.wait_for(handle.result(), 40)
        assert result["state"] == {"page": 7}
        assert result["pid"] == result["pool"]
        view = await seen(node, handle.id)
        assert view.progress is not None
        assert (view.progress.done, view.progress.total, view.progress.note) == (2, 2, "all")
        lines = await log(node, handle.id)
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


async def test_what_a_child_tells_is_seen_while_it_runs(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        handle = await telling_tasks.slow.submit()
        for _ in range(500):
            if len(await log(node, handle.id)) >= 4:
                break
            await asyncio.sleep(0.02)
        view = await seen(node, handle.id)
        assert view.state is RunState.RUNNING
        assert view.progress is not None
        assert view.progress.done == 1
        assert (await log(node, handle.id))[2:] == ["begun", "INFO mainspring.task.slow: going on"]


async def test_a_child_that_shows_no_life_is_stopped(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        handle = await telling_tasks.silent.submit()
        view = await handle.wait("30s")
        assert (view.state, view.reason) == (RunState.FAILED, "no heartbeat")
        assert (await log(node, handle.id))[-1] == "failed Interrupted True True"


async def test_code_that_looks_sees_that_it_should_stop(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        handle = await telling_tasks.polls.submit()
        for _ in range(500):
            if (await seen(node, handle.id)).state is RunState.RUNNING:
                break
            await asyncio.sleep(0.01)
        await handle.cancel()
        view = await handle.wait("20s")
        assert view.state in (RunState.SUCCEEDED, RunState.CANCELLED)


async def test_a_child_process_spawns(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        handle = await telling_tasks.parent.submit()
        child = await asyncio.wait_for(handle.result(), 20)
        about = (await seen(node, child)).about
        assert about is not None
        assert about.parent == handle.id


async def test_every_process_opens_and_closes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    monkeypatch.setenv(NOTES, str(notes))
    async with a_node(tmp_path):
        await (await telling_tasks.parent.submit()).wait("20s")
    found = sorted(path.name.split(".")[0] for path in notes.iterdir())
    assert found == ["close"] * 2 + ["open"] * 2 + ["start"] * 2 + ["stop"] * 2
