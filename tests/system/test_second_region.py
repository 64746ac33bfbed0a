"""A region is lost, and the other one takes over by the commands of the page: two real servers, processes in both.

``REGIONS=file`` appends the measurements to a file, one line for each kind of standby.
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
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.ids import RunId
from mainspring.core.ports.storage.access import AuditFilter
from mainspring.stores.postgres import PostgresStore
from tests.support.builders import a_run
from tests.support.load import APP, PAUSE_SECONDS
from tests.support.processes import PYTHONPATH, ROOT, START_SECONDS, Processes, kill
from tests.support.standbys import Standby, primary_and_standbys
from tests.support.waiting import eventually
from tools.chaos.link import BOTH, Link
from tools.services.local_postgres import ROLE, LocalPostgres

pytestmark = [pytest.mark.postgres, pytest.mark.system, pytest.mark.timeout(900), pytest.mark.xdist_group("failover")]

PAGE = ROOT / "docs" / "operate" / "backup.md"
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
    """Submits without end, repeats a submit until it is accepted, and records accepted runs with their times."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self.acknowledged: list[tuple[float, RunId]] = []
        self.refusals = 0
        self._task = asyncio.create_task(self._submit_on())

    async def _submit_on(self) -> None:
        while True:
            runs = [a_run(task="moment", queue="load", payload=b'{"milliseconds":1}') for _ in range(5)]
            while True:
                try:
                    async with asyncio.timeout(60):
                        await self._store.submit(runs)
                    break
                except (StoreUnavailable, TimeoutError):
                    self.refusals += 1
                    await asyncio.sleep(PAUSE_SECONDS)
            self.acknowledged += [(time.monotonic(), run.id) for run in runs]
            await asyncio.sleep(PAUSE_SECONDS)

    async def until_more(self, count: int) -> None:
        """Wait until so many more runs are accepted."""
        wanted = len(self.acknowledged) + count
        await eventually(lambda: len(self.acknowledged) >= wanted)

    async def until_refused(self) -> None:
        """Wait until a submit has failed."""
        before = self.refusals
        await eventually(lambda: self.refusals > before)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@asynccontextmanager
async def regions() -> AsyncIterator[tuple[LocalPostgres, Standby, Link]]:
    """Two servers, and the connection over which one replicates the other."""
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


async def until_replicated(near: LocalPostgres, sync: bool) -> None:
    connection = await asyncpg.connect(near.admin_dsn)
    query = "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = $1)"
    try:
        await eventually(lambda: connection.fetchval(query, "sync" if sync else "async"))
    finally:
        await connection.close()


@pytest.mark.parametrize("kind", ["synchronous", "asynchronous"])
async def test_the_far_region_takes_over_when_the_near_one_is_lost(
    kind: str, tmp_path: Path, postgres_dsn: str
) -> None:
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
        await until_replicated(near, sync)
        assert "far" in await follow(look, binaries, **addresses)
        store = PostgresStore(both, connections=3)
        await store.open()
        client = None
        try:
            async with Processes(both, tmp_path / "logs") as processes:
                lost = [processes.start("scheduler"), processes.start("worker", APP, "--queue", "load:20")]
                processes.start("scheduler")
                processes.start("worker", APP, "--queue", "load:20")
                client = Client(store)
                await client.until_more(200)

                async def both_work() -> bool:
                    return len(await store.sessions("worker")) == 2

                await eventually(both_work, processes.logs, deadline=START_SECONDS)
                epoch = await read_epoch(near)
                # A server is not promoted while the old primary accepts writes.
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
                silent_since = time.monotonic()
                if not sync:
                    # Commits are acknowledged that the other region does not receive.
                    await client.until_more(50)
                # The page says that it is silent for a second.
                await eventually(lambda: time.monotonic() >= silent_since + 1)
                for process in lost:
                    kill(process)
                pid = near.pid
                assert pid is not None
                kill_all(pid)
                await line.cut()
                died = time.monotonic()
                # Answers that were on their way have arrived.
                await client.until_refused()
                before = [run for _, run in client.acknowledged]
                started = time.monotonic()
                output = await follow(promote, binaries, **addresses)
                promoted = time.monotonic() - started
                assert f"127.0.0.1:{far.port} is the primary" in output
                assert await read_epoch(far) == epoch + 1
                await client.until_more(100)
                answered = client.acknowledged[len(before)][0] - died
                await client.stop()
                seen = await store.runs(before)
                gone = [run for run, view in zip(before, seen, strict=True) if view is None]
                # The processes of the other region complete all runs that were not lost.
                rest = [run for _, run in client.acknowledged if run not in set(gone)]

                async def all_ended() -> bool:
                    return all(view is not None and view.state.ended for view in await store.runs(rest))

                await eventually(all_ended, processes.logs)
                # The old server starts again as a primary. Processes that look at it stay with the new one.
                await until_reaped(pid)
                await asyncio.to_thread(near.start)
                await until_looked_at(near, 6)
                [late] = await store.submit([a_run(task="moment", queue="load", payload=b'{"milliseconds":1}')])
                assert "load" in await follow(see, binaries, **addresses)
                assert await knows(far, late.id)
                assert not await knows(near, late.id)
                assert await read_epoch(near) < await read_epoch(far)
                [entry] = await store.audit(None, AuditFilter(action="store.promote"))
                assert entry.target == f"127.0.0.1:{far.port}"
        finally:
            if client is not None:
                await client.stop()
            await store.close()
        metrics = {
            "kind": kind,
            "acknowledged": len(before),
            "lost": len(gone),
            "promote": round(promoted, 1),
            "server": float(output.split(" is the primary after ")[1].split(" s,")[0]),
            "down": round(answered, 1),
        }
        note(metrics)
        if sync:
            assert gone == [], metrics
        else:
            # The near region acknowledged commits while it could not reach the far one.
            assert gone, metrics


def kill_all(pid: int) -> None:
    """Kill a server with all of its processes. One that serves a client could acknowledge a little longer."""
    for each in [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


async def until_reaped(pid: int) -> None:
    """Wait until a killed process is gone. Until then a server seems to run."""
    await eventually(lambda: not Path(f"/proc/{pid}").exists())


async def until_looked_at(server: LocalPostgres, times: int) -> None:
    """Wait until others have connected to a server so many times since it started."""
    connection = await asyncpg.connect(server.dsn)
    query = "SELECT sessions FROM pg_stat_database WHERE datname = current_database()"
    before: int = await connection.fetchval(query)

    async def looked_at() -> bool:
        return bool(await connection.fetchval(query) >= before + times)

    try:
        await eventually(looked_at)
    finally:
        await connection.close()


async def knows(server: LocalPostgres, run: RunId) -> bool:
    connection = await asyncpg.connect(server.dsn)
    try:
        return bool(await connection.fetchval("SELECT EXISTS (SELECT FROM mainspring.body WHERE id = $1)", run))
    finally:
        await connection.close()


def note(metrics: dict[str, Any]) -> None:
    if file := os.environ.get("REGIONS"):
        with Path(file).open("a") as out:
            out.write(json.dumps(metrics) + "\n")


async def read_epoch(server: LocalPostgres) -> int:
    connection = await asyncpg.connect(server.dsn)
    try:
        return int(await connection.fetchval("SELECT store_epoch FROM mainspring.meta"))
    finally:
        await connection.close()
