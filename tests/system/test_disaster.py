"""A backup from processes under load, restored elsewhere: what had finished stays so, the rest runs once."""

import asyncio
import json
import os
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mainspring.bootstrap.backups import opened_store
from mainspring.domain.ids import RunId
from mainspring.domain.run import RunState
from mainspring.settings import Settings
from tests.conftest import create_database, drop_database, with_database
from tests.support.builders import a_run
from tests.support.processes import PYTHONPATH, ROOT, Processes, kill

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

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
    """Submit without an end, and never so much that it could not be done in a moment. Some take longer than others."""
    random, submitted = Random(1), 0
    async with opened_store(Settings(store=store)) as opened:
        while True:
            if submitted - sum(witnessed(witness, "end").values()) < 200:
                payloads = [b'{"milliseconds":%d}' % random.choice((0, 5, 50, 600)) for _ in range(20)]
                await opened.submit([a_run(task="seen", queue="load", payload=payload) for payload in payloads])
                submitted += len(payloads)
            await asyncio.sleep(0.05)


async def until_ended(witness: Path, count: int, processes: Processes) -> None:
    until = time.monotonic() + 90
    while sum(witnessed(witness, "end").values()) < count:
        assert time.monotonic() < until, processes.logs()
        await asyncio.sleep(0.1)


async def test_backup_under_load(stores: tuple[str, str], tmp_path: Path) -> None:
    before, after = stores
    first, second, file = tmp_path / "first.txt", tmp_path / "second.txt", str(tmp_path / "a.backup")
    (tmp_path / "one").mkdir()
    async with Processes(before, tmp_path / "one", {"WITNESS": str(first)}) as processes:
        await command("migrate", "--store", before)
        started = [processes.start("scheduler"), processes.start("worker", APP, "--queue", "load:50")]
        submitting = asyncio.create_task(load(before, first))
        await until_ended(first, 100, processes)
        taken = await command("backup", file, "--store", before)
        # It goes on, and what the backup has as unfinished ends.
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
    (tmp_path / "two").mkdir()
    async with Processes(after, tmp_path / "two", {"WITNESS": str(second)}) as processes:
        processes.start("scheduler")
        processes.start("worker", APP, "--queue", "load:50")
        async with opened_store(Settings(store=after)) as store:
            until = time.monotonic() + 60
            while not await store.sessions("worker") or await store.lost_runs(1):
                assert time.monotonic() < until, processes.logs()
                await asyncio.sleep(0.2)
            await asyncio.sleep(3)
            assert not second.exists(), "something ran in a store that was held"

            seen = await command("restore", "review", "--store", after)
            assert seen["held"]
            doubtful = {one["id"] for one in seen["inDoubt"]}
            assert doubtful
            # What the witness has seen to end in the old life, though the backup knew it as unfinished, is in doubt.
            known = await store.runs([RunId(run) for run in ended])
            open_here = {run.id for run in known if run is not None and not run.state.ended}
            assert open_here <= doubtful
            finished = tmp_path / "finished.txt"
            finished.write_text("\n".join(ended))
            told = await command("restore", "finished", str(finished), "--store", after)
            assert told["settled"] == {"succeeded": len(open_here)}
            await command("restore", "release", "--store", after)

            left = [RunId(run) for run in doubtful if run not in ended]
            until = time.monotonic() + 60
            while True:
                found = [run for run in await store.runs(left) if run is not None]
                if all(run.state.ended for run in found):
                    break
                assert time.monotonic() < until, processes.logs()
                await asyncio.sleep(0.2)
    assert all(run.state is RunState.SUCCEEDED for run in found)
    again = witnessed(second, "start")
    assert not set(again) & set(ended), "what had finished was run again"
    assert set(left) <= set(again)
    assert [run for run in left if again[run] != 1] == []
