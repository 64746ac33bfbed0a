"""Submits to pgqueuer: ``python -m bench.peers.pgqueuer_submitter WHAT COUNT``; answers with JSON on stdout."""

import asyncio
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

import asyncpg
import msgspec
import uvloop
from pgqueuer import AsyncpgDriver, Queries

from bench.peers.pgqueuer_worker import DSN
from bench.sizes import PAYLOAD

BATCH = 1_000


async def install(queries: Queries, count: int) -> object:
    """Its tables, with the vacuum settings that it recommends."""
    await queries.install()
    await queries.optimize_autovacuum()
    return None


async def fill(queries: Queries, count: int) -> object:
    """Queue so many; jobs a second."""
    started = time.perf_counter()
    for _ in range(0, count, BATCH):
        await queries.enqueue(["nothing"] * BATCH, [PAYLOAD] * BATCH, [0] * BATCH)
    return round(count / (time.perf_counter() - started))


async def single(queries: Queries, count: int) -> object:
    """One by one for so many seconds; jobs a second."""
    started = time.perf_counter()
    submitted = 0
    while time.perf_counter() < started + count:
        await queries.enqueue("nothing", PAYLOAD)
        submitted += 1
    return round(submitted / (time.perf_counter() - started))


async def idle(queries: Queries, count: int) -> object:
    """One at a time; when each was about to be submitted, by its id."""
    sent: dict[str, int] = {}
    for _ in range(count):
        await asyncio.sleep(random.uniform(0.020, 0.060))
        before = time.time_ns() // 1_000
        ids = await queries.enqueue("stamp", b"{}")
        sent[ids[0].to_bytes(16, "big").hex()] = before
    return sent


async def herd(queries: Queries, count: int) -> object:
    """So many for the same instant, three seconds from now."""
    ahead = timedelta(seconds=3)
    await queries.enqueue(["stamp"] * count, [b"{}"] * count, [0] * count, [ahead] * count)
    return None


WHAT: dict[str, Callable[[Queries, int], Awaitable[object]]] = {
    "install": install,
    "fill": fill,
    "single": single,
    "idle": idle,
    "herd": herd,
}


async def main(what: str, count: int) -> None:
    connection = await asyncpg.connect(os.environ[DSN])
    try:
        answer = await WHAT[what](Queries(AsyncpgDriver(connection)), count)
    finally:
        await connection.close()
    sys.stdout.write(msgspec.json.encode(answer).decode())


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
