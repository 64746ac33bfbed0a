"""A backup of a store under load, restored elsewhere: completed runs stay completed, and the others run once."""

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mainspring.config.backups import open_store
from mainspring.config.settings import Settings
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.runs.run import RunState
from tests.support.builders import a_run
from tests.support.databases import create_database, drop_database, with_database
from tests.support.load import PAUSE_SECONDS
from tests.support.processes import PYTHONPATH, ROOT, START_SECONDS, Processes, kill
from tests.support.waiting import eventually

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

APP = "tests.support.witness_tasks:app"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[str, str]]:
    if request.param == "sqlite":
        yield str(tmp_path / "before.db"), str(tmp_path / "after.db")
        return
    dsn = request.getfixturevalue("postgres_dsn")
    names = [f"test_{uuid.uuid4().hex}" for _ in range(2)]
    for name in names:
        await create_database(dsn, name)
    yield with_database(dsn, names[0]), with_database(dsn, names[1])
    for name in names:
        await drop_database(dsn, name)


async def command(*arguments: str) -> Any:
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "mainspring", *arguments, "--json"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def witnessed(file: Path, word: str) -> Counter[str]:
    lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return Counter(line[1] for line in lines if line[0] == word)


async def load(store: str, witness: Path) -> None:
    """Submit runs of different lengths until cancelled, at most 200 ahead of the worker."""
    random, submitted = Random(1), 0
    async with open_store(Settings(store=store)) as opened:
        while True:
            if submitted - sum(witnessed(witness, "end").values()) < 200:
                payloads = [b'{"milliseconds":%d}' % random.choice((0, 5, 50, 600)) for _ in range(20)]
                await opened.submit([a_run(task="seen", queue="load", payload=payload) for payload in payloads])
                submitted += len(payloads)
            await asyncio.sleep(PAUSE_SECONDS)


async def until_ended(witness: Path, count: int, processes: Processes) -> None:
    await eventually(lambda: sum(witnessed(witness, "end").values()) >= count, processes.logs, deadline=START_SECONDS)


async def test_a_backup_under_load_is_restored_without_running_completed_runs_again(
    stores: tuple[str, str], tmp_path: Path
) -> None:
    before, after = stores
    first, second, file = tmp_path / "first.txt", tmp_path / "second.txt", str(tmp_path / "a.backup")
    async with Processes(before, tmp_path / "one", {"WITNESS": str(first)}) as processes:
        await command("migrate", "--store", before)
        started = [processes.start("scheduler"), processes.start("worker", APP, "--queue", "load:50")]
        submitting = asyncio.create_task(load(before, first))
        await until_ended(first, 100, processes)
        taken = await command("backup", file, "--store", before)
        # Runs that are unfinished in the backup end after it.
        await until_ended(first, sum(witnessed(first, "end").values()) + 300, processes)
        submitting.cancel()
        await asyncio.gather(submitting, return_exceptions=True)
        for process in started:
            kill(process)
    ended = witnessed(first, "end")
    assert (await command("backup", "verify", file))["rows"] == taken["rows"]
    assert sum(taken["unfinished"].values()) > 0

    restored = await command("restore", file, "--store", after)
    assert restored["rows"] == taken["rows"]
    async with Processes(after, tmp_path / "two", {"WITNESS": str(second)}) as processes:
        processes.start("scheduler")
        processes.start("worker", APP, "--queue", "load:50")
        async with open_store(Settings(store=after)) as store:

            async def ready() -> bool:
                return bool(await store.sessions("worker")) and not await store.lost_runs(1)

            leases: set[Instant] = set()

            async def renewed_twice() -> bool:
                leases.update([session.lease_until for session in await store.sessions("worker")])
                return len(leases) > 2

            await eventually(ready, processes.logs, deadline=START_SECONDS)
            # A worker looks for runs more often than it sends heartbeats.
            await eventually(renewed_twice, processes.logs)
            assert not second.exists(), "a run started in a store that is held"

            seen = await command("restore", "review", "--store", after)
            assert seen["held"]
            doubtful = {one["id"] for one in seen["inDoubt"]}
            assert doubtful
            # Runs that ended after the backup are in doubt: only the witness has seen it.
            known = await store.runs([RunId(run) for run in ended])
            open_here = {run.id for run in known if run is not None and not run.state.ended}
            assert open_here <= doubtful
            finished = tmp_path / "finished.txt"
            finished.write_text("\n".join(ended))
            completed = await command("restore", "finished", str(finished), "--store", after)
            assert completed["completed"] == {"succeeded": len(open_here)}
            await command("restore", "release", "--store", after)

            left = [RunId(run) for run in doubtful if run not in ended]

            async def ended_here() -> bool:
                return all(run.state.ended for run in await store.runs(left) if run is not None)

            await eventually(ended_here, processes.logs)
            found = [run for run in await store.runs(left) if run is not None]
    assert all(run.state is RunState.SUCCEEDED for run in found)
    again = witnessed(second, "start")
    assert not set(again) & set(ended), "a completed run started again"
    assert set(left) <= set(again)
    assert [run for run in left if again[run] != 1] == []
