"""What pgqueuer does, measured as Mainspring is: the same server, machine, payload, clock and definitions."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import msgspec

from bench.children import Children
from bench.figures import Figures, spread
from bench.machine import scratch_parent
from bench.peers.pgqueuer_worker import DSN
from bench.sizes import Sizes
from bench.stamps import Stamps
from bench.tasks import DIRECTORY

DATABASE = "pgqueuer_bench"
#: Two processes: with more of them it is slower here.
PROCESSES = 2
_WARM_UP = 5


class Peer:
    """A fresh database with its tables, and processes on it."""

    def __init__(self, dsn: str, children: Children, directory: Path) -> None:
        self.dsn = dsn
        self.children = children
        self.stamps = Stamps(directory)
        self._environment = {DSN: dsn, DIRECTORY: str(directory)}

    async def submit(self, what: str, count: int) -> Any:
        program = ("bench.peers.pgqueuer_submitter", what, str(count))
        child = self.children.start(f"pgqueuer-{what}", *program, environment=self._environment, pipes=True)
        assert child.process.stdout is not None
        answer = await asyncio.to_thread(child.process.stdout.read)
        if child.process.wait() != 0:
            child.check()
        await self.children.stop(child.kind)
        return msgspec.json.decode(answer)

    async def start_workers(self, task: str, count: int) -> None:
        started = [
            self.children.start("pgqueuer", "bench.peers.pgqueuer_worker", task, environment=self._environment)
            for _ in range(count)
        ]
        for child in started:
            await child.ready()


@asynccontextmanager
async def peer_on(server: str) -> AsyncIterator[Peer]:
    dsn = urlunsplit(urlsplit(server)._replace(path=f"/{DATABASE}"))
    await _execute(server, f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)", f"CREATE DATABASE {DATABASE}")
    try:
        with tempfile.TemporaryDirectory(prefix="mainspring-peer-", dir=scratch_parent()) as name:
            async with Children(Path(name)) as children:
                peer = Peer(dsn, children, Path(name))
                await peer.submit("install", 0)
                yield peer
    finally:
        await _execute(server, f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")


async def drain(server: str, sizes: Sizes, say: Callable[[str], None]) -> Figures:
    count = sizes.drain
    async with peer_on(server) as peer:
        say(f"pgqueuer: queueing {count:,} jobs")
        bulk = await peer.submit("fill", count)
        say(f"pgqueuer: working off {count:,} jobs")
        await peer.start_workers("nothing", PROCESSES)
        connection = await asyncpg.connect(peer.dsn)
        try:
            give_up_at = time.monotonic() + count / 500 + 30
            # The newest is found in one step, however many rows before it are gone.
            last = "SELECT id FROM pgqueuer ORDER BY id DESC LIMIT 1"
            while await connection.fetchval(last) is not None and time.monotonic() < give_up_at:
                peer.children.check()
                await asyncio.sleep(0.25)
            row = await connection.fetchrow(
                "SELECT count(*) FILTER (WHERE status = 'successful'), "
                "extract(epoch FROM max(created) FILTER (WHERE status = 'successful') "
                "- min(created) FILTER (WHERE status = 'picked')) FROM pgqueuer_log"
            )
        finally:
            await connection.close()
    assert row is not None
    assert row[0] == count, f"{row[0]} of {count} jobs were done"
    return {"drain_jobs_per_s": round(count / float(row[1])), "submit_batch_jobs_per_s": bulk}


async def submit(server: str, sizes: Sizes, say: Callable[[str], None]) -> Figures:
    async with peer_on(server) as peer:
        say("pgqueuer: submitting one by one")
        return {"submit_single_jobs_per_s": await peer.submit("single", max(1, round(sizes.submit_seconds)))}


async def idle(server: str, sizes: Sizes, say: Callable[[str], None]) -> Figures:
    async with peer_on(server) as peer:
        await peer.start_workers("stamp", 1)
        say(f"pgqueuer: {sizes.idle_samples} jobs, one at a time")
        sent: dict[str, int] = await peer.submit("idle", sizes.idle_samples + _WARM_UP)
        started = {item.run: item.started for item in await peer.stamps.wait_for(len(sent), timeout=10)}
    latencies = [(started[job] - before) / 1_000 for job, before in sent.items()]
    return spread("idle_latency", latencies[_WARM_UP:])


async def herd(server: str, sizes: Sizes, say: Callable[[str], None]) -> Figures:
    async with peer_on(server) as peer:
        await peer.start_workers("stamp", PROCESSES)
        say(f"pgqueuer: {sizes.herd:,} jobs due at one instant")
        await peer.submit("herd", sizes.herd)
        connection = await asyncpg.connect(peer.dsn)
        try:
            due = await connection.fetchval(
                "SELECT (extract(epoch FROM max(execute_after)) * 1e6)::bigint FROM pgqueuer"
            )
        finally:
            await connection.close()
        stamps = await peer.stamps.wait_for(sizes.herd, timeout=60)
    assert len(stamps) == sizes.herd, f"{len(stamps)} of {sizes.herd} jobs were started"
    return spread("herd_5000_lateness", [(item.started - due) / 1_000 for item in stamps])


async def _execute(dsn: str, *statements: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()
