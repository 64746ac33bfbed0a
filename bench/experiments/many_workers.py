"""What a thousand workers cost while there is nothing to do, and whether they all get work when there is.

    # on the pull API: one API process, PostgreSQL
    python -m bench.experiments.many_workers --workers 1000
    # sessions on PostgreSQL, as the product's own workers have them
    python -m bench.experiments.many_workers --workers 1000 --direct

A worker here is what the servers see of one: it registers, waits for work, beats and reports. The processors' time of
the API and of PostgreSQL is taken over a while in which nothing happens; then each worker gets a job, and all must end.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence

import asyncpg

from bench.machine import family_processor_seconds, processor_seconds
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import SECOND
from mainspring.core.store import Demand, NewSession
from mainspring.stores.postgres import PostgresStore
from tools.services.local_postgres import LocalPostgres, throwaway_postgres

_LEASE_SECONDS = 30
_WAIT_SECONDS = 20
#: Workers of one API process.
_EACH = 2_500


class Overloaded(Exception):
    """It may or may not have been done."""


class Peer:
    """One connection that asks one thing at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def post(self, path: str, body: object) -> dict[str, object]:
        text = json.dumps(body).encode()
        fields = f"host: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n"
        self._writer.write(f"POST {path} HTTP/1.1\r\n{fields}\r\n".encode() + text)
        status = await self._reader.readline()
        length = 0
        while (line := await self._reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        answer = await self._reader.readexactly(length)
        if b" 503 " in status or b" 408 " in status:
            raise Overloaded(f"{path}: {answer[:200]!r}")
        if b" 2" not in status:
            raise RuntimeError(f"{path}: {status!r} {answer[:200]!r}")
        found: dict[str, object] = json.loads(answer)
        return found

    async def insist(self, path: str, body: object) -> dict[str, object]:
        """The same until it is done: what is asked twice counts once."""
        while True:
            try:
                return await self.post(path, body)
            except Overloaded:
                await asyncio.sleep(0.5)


async def a_remote_worker(
    port: int, number: int, at_once: asyncio.Semaphore, came: asyncio.Queue[int], done: asyncio.Queue[float]
) -> None:
    """Until it is cancelled."""
    async with at_once:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", port))
        body = {"name": f"w{number}", "queues": ["default"], "leaseSeconds": _LEASE_SECONDS}
        worker = (await peer.insist("/v1/workers/register", body))["workerId"]
    came.put_nowait(number)
    while True:
        claimed = await peer.insist(f"/v1/workers/{worker}/claim", {"limit": 1, "waitSeconds": _WAIT_SECONDS})
        for run in claimed["runs"]:  # type: ignore[attr-defined]
            await peer.insist(f"/v1/runs/{run['runId']}/complete", {"fence": run["fence"]})
            done.put_nowait(time.monotonic())


async def a_direct_worker(store: PostgresStore, number: int) -> None:
    """What our own worker asks of the store: a claim every second while it is idle, a beat every three."""
    session: SessionId = await store.open_session(
        NewSession(name=f"w{number}", kind="worker", ttl=10 * SECOND, queues=("default",))
    )
    await asyncio.sleep(number % 100 / 100)
    claims = 0
    while True:
        claims += 1
        await store.claim(session, claims, [Demand("default", 100)])
        if claims % 3 == 0:
            await store.heartbeat(session, 10 * SECOND, (), (), claims)
        await asyncio.sleep(1)


@contextlib.asynccontextmanager
async def the_api(dsn: str) -> AsyncIterator[tuple[int, int]]:
    """Its port and process id."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    environment = os.environ | {"MAINSPRING_STORE": dsn, "MAINSPRING_LOG_LEVEL": "warning"}
    command = [sys.executable, "-m", "mainspring", "api", "--port", str(port)]
    process = await asyncio.create_subprocess_exec(*command, env=environment)
    try:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                if process.returncode is not None:
                    raise RuntimeError("the API did not start") from None
                await asyncio.sleep(0.2)
            else:
                writer.close()
                break
        yield port, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


async def the_servers(server: LocalPostgres, apis: Sequence[int], seconds: float) -> dict[str, float]:
    """What they do while nothing is to be done, per second."""
    connection = await asyncpg.connect(server.dsn)
    try:
        transactions = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        postmaster = server.pid or 0
        before = family_processor_seconds(postmaster), sum(map(processor_seconds, apis))
        committed, began = await connection.fetchval(transactions), time.monotonic()
        await asyncio.sleep(seconds)
        took = time.monotonic() - began
        after = family_processor_seconds(postmaster), sum(map(processor_seconds, apis))
        found = {
            "postgres processors": (after[0] - before[0]) / took,
            "api processors": (after[1] - before[1]) / took,
            "transactions a second": (await connection.fetchval(transactions) - committed) / took,
            "connections": await connection.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ),
        }
    finally:
        await connection.close()
    return found


async def remote(server: LocalPostgres, workers: int, seconds: float) -> dict[str, float]:
    came: asyncio.Queue[int] = asyncio.Queue()
    done: asyncio.Queue[float] = asyncio.Queue()
    async with contextlib.AsyncExitStack() as stack:
        # One of them takes some 4,000 connections.
        apis = [await stack.enter_async_context(the_api(server.dsn)) for _ in range(0, workers, _EACH)]
        group = await stack.enter_async_context(asyncio.TaskGroup())
        at_once = asyncio.Semaphore(50)
        began = time.monotonic()
        peers = [
            group.create_task(a_remote_worker(apis[number // _EACH][0], number, at_once, came, done))
            for number in range(workers)
        ]
        for _ in range(workers):
            await came.get()
        registered = time.monotonic() - began
        await asyncio.sleep(_WAIT_SECONDS / 4)
        print_figures(await the_servers(server, [pid for _, pid in apis], seconds))
        boss = Peer(*await asyncio.open_connection("127.0.0.1", apis[0][0]))
        submitted = time.monotonic()
        for first in range(0, workers, 500):
            jobs = [{"task": "nothing", "payload": number} for number in range(first, min(first + 500, workers))]
            await boss.insist("/v1/jobs/batch", {"jobs": jobs})
        ended = [await done.get() for _ in range(workers)]
        for peer in peers:
            peer.cancel()
    return {
        "seconds to register all": registered,
        "seconds until as many jobs were done": max(ended) - submitted,
    }


async def direct(server: LocalPostgres, workers: int, seconds: float) -> dict[str, float]:
    store = PostgresStore(server.dsn, connections=16)
    await store.open()
    try:
        tasks = [asyncio.create_task(a_direct_worker(store, number)) for number in range(workers)]
        await asyncio.sleep(5)
        print_figures(await the_servers(server, [], seconds))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        await store.close()
    return {}


def print_figures(found: dict[str, float]) -> None:
    for name, value in found.items():
        print(f"{name:40} {value:10.2f}", flush=True)


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--workers", type=int, default=1_000)
    reader.add_argument("--seconds", type=float, default=30)
    reader.add_argument("--direct", action="store_true")
    given = reader.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, given.workers + 1_000), hard))
    with throwaway_postgres() as server:
        measure = direct if given.direct else remote
        print_figures(asyncio.run(measure(server, given.workers, given.seconds)))


if __name__ == "__main__":
    main()
