"""A region is lost, and the other takes over by the commands of the page: two real servers, processes in both.

``REGIONS=file`` appends what was measured to a file: a line for each kind of standby.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from mainspring.adapters.store.postgres import PostgresStore
from mainspring.bench.local_postgres import ROLE, LocalPostgres
from mainspring.domain.errors import StoreUnavailable
from mainspring.domain.ids import RunId
from mainspring.ports.access import AuditFilter
from tests.support.builders import a_run
from tests.support.processes import PYTHONPATH, ROOT, Processes, kill
from tests.support.standbys import Standby, primary_and_standbys
from tools.chaos.link import BOTH, Link

pytestmark = [pytest.mark.postgres, pytest.mark.system, pytest.mark.timeout(300), pytest.mark.xdist_group("failover")]

PAGE = ROOT / "docs" / "operations" / "disaster.md"
APP = "tests.support.load_tasks:app"
_BLOCK = re.compile(r"^ *```sh\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


def commands(heading: str) -> list[str]:
    """The commands of a section of the page."""
    section = PAGE.read_text().split(f"### {heading}\n")[1].split("\n### ")[0]
    return _BLOCK.findall(section)


async def follow(text: str, binaries: Path, **environment: str) -> str:
    done = await asyncio.to_thread(
        subprocess.run,
        ["/bin/sh", "-ec", text],
        cwd=ROOT,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{binaries}:{os.environ['PATH']}",
            "PYTHONPATH": PYTHONPATH,
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (text, done.stderr, done.stdout)
    return done.stdout


class Client:
    """Submits without a pause, asks again until it has an answer, and knows what was acknowledged, and when."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self.acknowledged: list[tuple[float, RunId]] = []
        self._task = asyncio.create_task(self._go_on())

    async def _go_on(self) -> None:
        while True:
            runs = [a_run(task="moment", queue="load", payload=b'{"milliseconds":1}') for _ in range(5)]
            while True:
                try:
                    async with asyncio.timeout(3):
                        await self._store.submit(runs)
                    break
                except (StoreUnavailable, TimeoutError):
                    await asyncio.sleep(0.05)
            self.acknowledged += [(time.monotonic(), run.id) for run in runs]
            await asyncio.sleep(0.01)

    async def more(self, count: int) -> None:
        wanted = len(self.acknowledged) + count
        async with asyncio.timeout(90):
            while len(self.acknowledged) < wanted:
                await asyncio.sleep(0.02)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@asynccontextmanager
async def regions() -> AsyncIterator[tuple[LocalPostgres, Standby, Link]]:
    """Two servers, and the line over which one follows the other."""
    context = primary_and_standbys("far")
    near, (far,) = await asyncio.to_thread(context.__enter__)
    line = Link("127.0.0.1", near.port)
    await line.open()
    try:
        source = f"host=127.0.0.1 port={line.port} user=postgres application_name=far"
        connection = await asyncpg.connect(far.admin_dsn)
        await connection.execute(f"ALTER SYSTEM SET primary_conninfo = '{source}'")
        await connection.execute("SELECT pg_reload_conf()")
        await connection.close()
        yield near, far, line
    finally:
        await line.close()
        await asyncio.to_thread(context.__exit__, None, None, None)


async def until_follows(near: LocalPostgres, sync: bool) -> None:
    connection = await asyncpg.connect(near.admin_dsn)
    try:
        async with asyncio.timeout(60):
            while not await connection.fetchval(
                "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = $1)",
                "sync" if sync else "async",
            ):
                await asyncio.sleep(0.1)
    finally:
        await connection.close()


@pytest.mark.parametrize("kind", ["synchronous", "asynchronous"])
async def test_a_region_is_lost(kind: str, tmp_path: Path, postgres_dsn: str) -> None:
    sync = kind == "synchronous"
    choose, look = commands("Before")
    promote, see = commands("The region is lost")
    async with regions() as (near, far, line):
        binaries = (near.binaries / "pg_ctl").resolve().parent
        both = f"postgresql://{ROLE}@127.0.0.1:{near.port},127.0.0.1:{far.port}/{ROLE}"
        addresses = {
            "NEAR": f"postgresql://postgres@127.0.0.1:{near.port}/{ROLE}",
            "FAR": f"postgresql://postgres@127.0.0.1:{far.port}/{ROLE}",
            "MAINSPRING_STORE": both,
        }
        if sync:
            await follow(choose, binaries, **addresses)
        await until_follows(near, sync)
        assert "far" in await follow(look, binaries, **addresses)
        store = PostgresStore(both, connections=3)
        await store.open()
        client = None
        (tmp_path / "logs").mkdir()
        try:
            async with Processes(both, tmp_path / "logs") as processes:
                lost = [processes.start("scheduler"), processes.start("worker", APP, "--queue", "load:20")]
                processes.start("scheduler")
                processes.start("worker", APP, "--queue", "load:20")
                client = Client(store)
                await client.more(200)
                async with asyncio.timeout(90):
                    while len(await store.sessions("worker")) < 2:
                        await asyncio.sleep(0.1)
                epoch = await epoch_of(near)
                # While the old one writes, nothing is promoted.
                refused = await asyncio.to_thread(
                    subprocess.run,
                    [sys.executable, "-m", "mainspring", "promote", addresses["FAR"], "--store", both],
                    env={**os.environ, "PYTHONPATH": PYTHONPATH},
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert refused.returncode != 0
                assert f"127.0.0.1:{near.port} still writes" in refused.stderr

                line.silence(*BOTH)
                await asyncio.sleep(1)
                for process in lost:
                    kill(process)
                pid = near.pid
                assert pid is not None
                kill_all(pid)
                await line.cut()
                died = time.monotonic()
                told = await follow(promote, binaries, **addresses)
                promoted = time.monotonic() - died
                assert f"127.0.0.1:{far.port} is the primary" in told
                assert await epoch_of(far) == epoch + 1

                # An answer may have been on its way. No program that promotes has started so soon.
                last = died + 0.3
                before = [run for at, run in client.acknowledged if at <= last]
                await client.more(100)
                answered = min(at for at, _ in client.acknowledged if at > last) - died
                await client.stop()
                seen = await store.runs(before)
                gone = [run for run, view in zip(before, seen, strict=True) if view is None]
                # What is there ends, by the processes of the other region.
                rest = [run for _, run in client.acknowledged if run not in set(gone)]
                await until_ended(store, rest)
                # The old server comes up again, and believes to be the primary: nobody goes back, and nobody comes.
                await until_buried(pid)
                await asyncio.to_thread(near.start)
                await asyncio.sleep(6)
                [late] = await store.submit([a_run(task="moment", queue="load", payload=b'{"milliseconds":1}')])
                assert "load" in await follow(see, binaries, **addresses)
                assert await knows(far, late.id)
                assert not await knows(near, late.id)
                assert await epoch_of(near) < await epoch_of(far)
                [entry] = await store.audit(None, AuditFilter(action="store.promote"))
                assert entry.target == f"127.0.0.1:{far.port}"
        finally:
            if client is not None:
                await client.stop()
            await store.close()
        figures = {
            "kind": kind,
            "acknowledged": len(before),
            "lost": len(gone),
            "promote": round(promoted, 1),
            "server": float(told.split(" is the primary after ")[1].split(" s,")[0]),
            "down": round(answered, 1),
        }
        note(figures)
        if sync:
            assert gone == [], figures
        else:
            # The line was silent for a second, and commits were acknowledged all the same: this is what it costs.
            assert gone, figures
        assert answered < 60, figures


async def until_ended(store: PostgresStore, runs: list[RunId]) -> None:
    until = time.monotonic() + 120
    while True:
        views = await store.runs(runs)
        left = Counter("nowhere" if view is None else view.state.value for view in views)
        if not any(view is None or not view.state.ended for view in views):
            return
        assert time.monotonic() < until, left
        await asyncio.sleep(0.2)


def kill_all(pid: int) -> None:
    """A server with its processes: one that serves a client would go on for a moment, and acknowledge."""
    for each in [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


async def until_buried(pid: int) -> None:
    """Whoever looks after processes without a parent has seen its end. Until then it counts as running."""
    async with asyncio.timeout(60):
        while os.path.exists(f"/proc/{pid}"):  # noqa: ASYNC240
            await asyncio.sleep(0.1)


async def knows(server: LocalPostgres, run: RunId) -> bool:
    connection = await asyncpg.connect(server.dsn)
    try:
        return bool(await connection.fetchval("SELECT EXISTS (SELECT FROM mainspring.body WHERE id = $1)", run))
    finally:
        await connection.close()


def note(figures: dict[str, Any]) -> None:
    if file := os.environ.get("REGIONS"):
        with Path(file).open("a") as out:
            out.write(json.dumps(figures) + "\n")


async def epoch_of(server: LocalPostgres) -> int:
    connection = await asyncpg.connect(server.dsn)
    try:
        return int(await connection.fetchval("SELECT store_epoch FROM mainspring.meta"))
    finally:
        await connection.close()
