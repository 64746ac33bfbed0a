"""A cancel on real processes: how soon it is seen, and that nothing is said before the work has stopped."""

import asyncio
import logging
import time
from pathlib import Path

import pytest

from mainspring.bootstrap.engine import Engine
from mainspring.bootstrap.node import Node, Role
from mainspring.domain.run import RunState
from mainspring.settings import load
from tests.support import stopping_tasks

pytestmark = pytest.mark.system

_log = logging.getLogger(__name__)


async def appears(path: Path) -> float:
    for _ in range(4_000):
        if text := _read(path):
            return float(text)
        await asyncio.sleep(0.005)
    raise AssertionError(f"{path.name} was never written")


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        database: str = request.getfixturevalue("postgres_database")
        return database
    return str(tmp_path / "cancel.db")


async def test_a_cancel_is_seen_within_a_second(store: str, tmp_path: Path) -> None:
    """Asked for by somebody else than the worker's process: another engine, with its own connections and wake-ups."""
    app = stopping_tasks.app
    settings = load({"store": store, "worker.children": "1"})
    node = Node(settings, {Role.WORKER, Role.SCHEDULER}, app, "tests.support.stopping_tasks:app")
    other = Engine(settings)
    await node.engine.open()
    await other.open()
    app.use(node.engine)
    try:
        await node.start()
        for name, task in (("loop", stopping_tasks.on_the_loop), ("child", stopping_tasks.in_a_child)):
            note = str(tmp_path / name)
            handle = await task.submit(note)
            await appears(Path(f"{note}.began"))
            assert await other.jobs.cancel_runs([handle.id]) == {handle.id: RunState.CANCELLING}
            asked = time.time()
            seen = await appears(Path(f"{note}.stopped"))
            assert (await handle.wait("20s")).state is RunState.CANCELLED
            ended = time.time()
            _log.info("%s: seen after %.3f s, ended after %.3f s", name, seen - asked, ended - asked)
            # By a wake-up: the next heartbeat may be seconds away.
            assert seen - asked < 1
            assert await other.jobs.cancel_runs([handle.id]) == {handle.id: RunState.CANCELLED}
    finally:
        await node.stop()
        await app.close()
        await other.close()
        await node.engine.close()
