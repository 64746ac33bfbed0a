"""Two real worker processes, one of them with a label."""

import asyncio
from pathlib import Path

import pytest

from mainspring.domain.ids import SessionId
from mainspring.domain.instant import MILLISECOND
from mainspring.domain.run import RunState
from tests.support.labelled_tasks import anywhere, app, everywhere, on_a_gpu
from tests.support.processes import Processes, kill

pytestmark = [pytest.mark.postgres, pytest.mark.system, pytest.mark.timeout(120), pytest.mark.xdist_group("system")]

APP = "tests.support.labelled_tasks:app"


async def sessions_of(count: int, processes: Processes) -> dict[tuple[str, ...], SessionId]:
    """The workers by their labels, when there are so many."""
    store = (await app.engine()).store
    for _ in range(300):
        found = {session.labels: session.id for session in await store.sessions("worker")}
        if len(found) == count:
            return found
        await asyncio.sleep(0.1)
    raise AssertionError(processes.logs())


async def test_labels_and_broadcasts_with_real_processes(
    postgres_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_STORE", postgres_database)
    async with Processes(postgres_database, tmp_path) as processes:
        processes.start("scheduler")
        plain = processes.start("worker", APP)
        labelled = processes.start("worker", APP, "--label", "gpu=a100", "--label", "region=eu")
        try:
            sessions = await sessions_of(2, processes)
            assert set(sessions) == {(), ("gpu=a100", "region=eu")}
            both = {plain.pid, labelled.pid}
            handles = await app.submit_many([on_a_gpu.prepare() for _ in range(200)])
            assert {await handle.result("30s") for handle in handles} == {labelled.pid}
            handles = await app.submit_many([anywhere.options(delay="300ms").prepare() for _ in range(200)])
            assert {await handle.result("30s") for handle in handles} <= both

            handles = await app.broadcast(everywhere.prepare())
            assert {await handle.result("30s") for handle in handles} == both
            handles = await app.broadcast(everywhere.options(requires={"gpu": "a100"}).prepare())
            assert [await handle.result("30s") for handle in handles] == [labelled.pid]

            # One dies before it could run its own; the other's succeeds.
            kill(labelled)
            handles = await app.broadcast(everywhere.prepare())
            views = [await handle.wait("60s") for handle in handles]
            ended = sorted((view.state.value, view.reason) for view in views)
            assert ended == [("skipped", "its worker left"), ("succeeded", "")]
            [waiting] = await app.submit_many([on_a_gpu.prepare()])
            await asyncio.sleep(200 * MILLISECOND / 1_000_000)
            assert (await waiting.view()).state is RunState.QUEUED
        finally:
            await app.close()
