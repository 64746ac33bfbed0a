"""Two real worker processes, one of them with labels."""

from pathlib import Path

import pytest

from mainspring.core.model.runs.run import RunState
from tests.support.labelled_tasks import anywhere, app, everywhere, on_a_gpu
from tests.support.processes import START_SECONDS, Processes, kill
from tests.support.waiting import eventually

pytestmark = [pytest.mark.postgres, pytest.mark.system, pytest.mark.timeout(900), pytest.mark.xdist_group("system")]

APP = "tests.support.labelled_tasks:app"


async def test_runs_and_broadcasts_reach_the_workers_with_the_required_labels(
    postgres_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_STORE", postgres_database)
    async with Processes(postgres_database, tmp_path) as processes:
        processes.start("scheduler")
        plain = processes.start("worker", APP)
        labelled = processes.start("worker", APP, "--label", "gpu=a100", "--label", "region=eu")
        try:
            store = (await app.runtime()).store

            async def registered() -> bool:
                found = {session.labels for session in await store.sessions("worker")}
                return found == {(), ("gpu=a100", "region=eu")}

            await eventually(registered, processes.logs, deadline=START_SECONDS)
            both = {plain.pid, labelled.pid}
            handles = await app.submit_many([on_a_gpu.prepare() for _ in range(200)])
            assert {await handle.result("2m") for handle in handles} == {labelled.pid}
            handles = await app.submit_many([anywhere.options(delay="300ms").prepare() for _ in range(200)])
            assert {await handle.result("2m") for handle in handles} <= both

            handles = await app.broadcast(everywhere.prepare())
            assert {await handle.result("2m") for handle in handles} == both
            handles = await app.broadcast(everywhere.options(requires={"gpu": "a100"}).prepare())
            assert [await handle.result("2m") for handle in handles] == [labelled.pid]

            # A worker that is dead skips its run, and the other one runs its own.
            kill(labelled)
            handles = await app.broadcast(everywhere.prepare())
            views = [await handle.wait("2m") for handle in handles]
            ended = sorted((view.state.value, view.reason) for view in views)
            assert ended == [("skipped", "its worker left"), ("succeeded", "")]
            [waiting] = await app.submit_many([on_a_gpu.prepare()])
            # The worker without labels takes a later run, but not this one.
            assert await (await anywhere.submit()).result("2m") == plain.pid
            assert (await waiting.view()).state is RunState.QUEUED
        finally:
            await app.close()
