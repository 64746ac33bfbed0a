"""Restarts PostgreSQL under heavy load, and measures how fast runs complete again.

    python -m tools.recovery [--rounds 8] [--mode immediate|fast]

Starts a PostgreSQL of its own, two schedulers and two workers, and submits batches without a pause. In each round the
server is stopped as by a crash (``immediate``) and started again. All times are seconds after it accepts connections:
until the first submit is accepted, until the first run completes, and until runs complete at half of the rate from
before. Exits with 1 if the first completion takes 3 s or longer at the median. Takes about three minutes.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

import asyncpg

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.stores.postgres import PostgresStore
from tests.support.load import APP, a_moment, make_jobs
from tests.support.processes import START_SECONDS, Processes, kill
from tests.support.waiting import eventually
from tools.services.local_postgres import LocalPostgres, throwaway_postgres

_TARGET_SECONDS = 3.0
_SUBMITTERS = 4
_BATCH = 200
#: Runs that wait at most: more would only fill the disk.
_MOST_QUEUED = 20_000
_BEFORE_SECONDS = 5
_LONGEST_WAIT_SECONDS = 60.0
_WORKER = ("worker", APP, "--queue", "load:500")
_COMMANDS = (("scheduler",), ("scheduler",), _WORKER, _WORKER)
_COMPLETED = "SELECT count(*) FROM mainspring.history WHERE finished_at > $1"
_FIRST = "SELECT min(finished_at) FROM mainspring.history WHERE finished_at > $1"
_NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


class Round(NamedTuple):
    rate_before: float
    away: float
    submitted: float
    completed: float
    half_rate: float


class Load:
    """Submits batches without a pause, while not too many runs wait."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._jobs = make_jobs(store)
        self._stopping = False
        self.accepted_at = 0.0
        self.accepted = 0

    async def submit(self) -> None:
        while not self._stopping:
            with suppress(StoreUnavailable):
                if sum(depth.queued for depth in await self._store.depths()) > _MOST_QUEUED:
                    await asyncio.sleep(0.05)
                    continue
                await self._jobs.submit_many([a_moment(self._jobs, 1) for _ in range(_BATCH)])
                self.accepted += _BATCH
                self.accepted_at = time.monotonic()

    def stop(self) -> None:
        self._stopping = True


async def _measure(server: LocalPostgres, load: Load, mode: Literal["immediate", "fast"]) -> Round:
    connection = await asyncpg.connect(server.dsn)
    since = await connection.fetchval(_NOW)
    await asyncio.sleep(_BEFORE_SECONDS)
    rate = await connection.fetchval(_COMPLETED, since) / _BEFORE_SECONDS
    await connection.close()
    stopped_at = time.monotonic()
    await asyncio.to_thread(server.stop, mode)
    await asyncio.to_thread(server.start)
    connection = await asyncpg.connect(server.dsn)
    back = await connection.fetchval(_NOW)
    back_at = time.monotonic()
    try:
        submitted = completed = half_rate = _LONGEST_WAIT_SECONDS
        counted = 0
        while time.monotonic() - back_at < _LONGEST_WAIT_SECONDS:
            await asyncio.sleep(0.1)
            if load.accepted_at > back_at:
                submitted = min(submitted, load.accepted_at - back_at)
            if (first := await connection.fetchval(_FIRST, back)) is not None:
                completed = (first - back) / 1e6
            before, counted = counted, await connection.fetchval(_COMPLETED, back)
            # Ten looks a second.
            if completed < _LONGEST_WAIT_SECONDS and (counted - before) * 10 >= rate / 2:
                half_rate = time.monotonic() - back_at
                break
    finally:
        await connection.close()
    return Round(rate, back_at - stopped_at, submitted, completed, half_rate)


async def _run(rounds: int, mode: Literal["immediate", "fast"], folder: Path) -> int:
    context = throwaway_postgres()
    server = await asyncio.to_thread(context.__enter__)
    try:
        store = PostgresStore(server.dsn, connections=8)
        await store.open()
        load = Load(store)
        submitters = [asyncio.create_task(load.submit()) for _ in range(_SUBMITTERS)]
        processes = Processes(server.dsn, folder / "logs")
        started = [processes.start(*command) for command in _COMMANDS]
        try:

            async def executing() -> bool:
                return sum(depth.running for depth in await store.depths()) > 0

            await eventually(executing, processes.logs, deadline=START_SECONDS)
            print(f"load {os.getloadavg()[0]:.1f}; seconds after the server accepts connections until", flush=True)
            print("round  runs/s before  away  first submit  first completion  half the rate", flush=True)
            found = []
            for number in range(1, rounds + 1):
                one = await _measure(server, load, mode)
                found.append(one)
                print(
                    f"{number:>5}  {one.rate_before:>13,.0f}  {one.away:>4.1f}  {one.submitted:>12.2f}  "
                    f"{one.completed:>16.2f}  {one.half_rate:>13.2f}",
                    flush=True,
                )
            load.stop()
            await asyncio.gather(*submitters)
        finally:
            for process in started:
                kill(process)
            await store.close()
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)
    median = statistics.median(one.completed for one in found)
    worst = max(one.completed for one in found)
    print(f"first completion: median {median:.2f} s, worst {worst:.2f} s; load {os.getloadavg()[0]:.1f}")
    return int(median >= _TARGET_SECONDS)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.recovery", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--mode", choices=["immediate", "fast"], default="immediate")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mainspring-recovery-") as folder:
        return asyncio.run(_run(arguments.rounds, arguments.mode, Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
