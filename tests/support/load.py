"""Runs that processes under test have to complete, and the check that each was completed once."""

import asyncio
import random
import re
from contextlib import suppress
from types import TracebackType
from typing import Self

import asyncpg
import httpx2

from mainspring.core.model.base.errors import BrokerUnavailable, StoreUnavailable
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Micros
from mainspring.core.model.cluster.hints import Hint
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.ports.dispatch import Broker
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.core.submit.jobs import Jobs
from mainspring.stores.postgres import PostgresStore
from tests.support.processes import START_SECONDS, Processes, api_client, free_port, until_ready
from tests.support.waiting import eventually

APP = "tests.support.load_tasks:app"
PAUSE_SECONDS = 0.05
#: More than the workers of these tests hold at once.
MOST_LEFT = 200


def make_jobs(store: PostgresStore) -> Jobs:
    return Jobs(store, LocalWakeups(), SystemClock(), random.Random(), shards=store.shards)


def a_moment(jobs: Jobs, milliseconds: int, delay: Micros = 0) -> NewRun:
    """A run of ``load_tasks.moment``, which takes so long."""
    payload = b'{"milliseconds":%d}' % milliseconds
    return NewRun(id=jobs.new_run_id(), task="moment", payload=payload, queue="load", delay=delay)


async def until_succeeded(dsn: str, runs: set[RunId], processes: Processes, *, more: bool = False) -> None:
    """Wait until no run is left that no schedule has made. All of these must have succeeded, each once.

    ``more``: others may have succeeded, too. A submit whose answer was lost may have been applied.
    """
    connection = await asyncpg.connect(dsn)
    try:

        async def none_left() -> bool:
            return await _count_left(connection) == 0

        await eventually(none_left, processes.logs, deadline=START_SECONDS)
        rows = await connection.fetch("SELECT id::text, state FROM mainspring.history WHERE job_id IS NULL")
    finally:
        await connection.close()
    found = [row["id"].replace("-", "") for row in rows]
    assert len(found) == len(set(found)), "a run was completed twice"
    assert not runs - set(found), f"{len(runs - set(found))} lost\n{processes.logs()}"
    assert more or set(found) == runs
    assert {row["state"] for row in rows} == {5}


async def _count_left(connection: "asyncpg.Connection[asyncpg.Record]") -> int:
    count: int = await connection.fetchval(
        "SELECT (SELECT count(*) FROM mainspring.run WHERE job_id IS NULL) "
        "+ (SELECT count(*) FROM mainspring.waiting WHERE job_id IS NULL)"
    )
    return count


class Load:
    """A steady stream of small runs, and the check of their outcomes."""

    def __init__(self, store: PostgresStore, dsn: str) -> None:
        self.runs: set[RunId] = set()
        self._dsn = dsn
        self._jobs = make_jobs(store)
        self._enough = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._submit())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._enough.set()
        await self._task

    async def repeat_hints(self, broker: Broker) -> None:
        """Publish a hint for every run so far. Most of them have ended."""
        hints = [Hint(run, "load", 0) for run in self.runs]

        async def published() -> bool:
            with suppress(BrokerUnavailable):
                await broker.publish(hints)
                return True
            return False

        await eventually(published)

    async def until_more(self, count: int, processes: Processes) -> None:
        """Wait until so many more runs are submitted."""
        wanted = len(self.runs) + count

        def reached() -> bool:
            assert self._task is not None
            if self._task.done():
                self._task.result()
            return len(self.runs) >= wanted

        await eventually(reached, processes.logs, deadline=START_SECONDS)

    async def _submit(self) -> None:
        connection = await asyncpg.connect(self._dsn)
        try:
            while not self._enough.is_set():
                # On a busy machine workers are slower than this loop: what is left must not grow without end.
                if await _count_left(connection) < MOST_LEFT:
                    await self._submit_ten()
                await asyncio.sleep(PAUSE_SECONDS)
        finally:
            await connection.close()

    async def _submit_ten(self) -> None:
        runs = [a_moment(self._jobs, 20) for _ in range(10)]

        async def accepted() -> bool:
            with suppress(StoreUnavailable):
                await self._jobs.submit_many(runs)
                return True
            return False

        await eventually(accepted)
        self.runs |= {run.id for run in runs}

    async def check(self, processes: Processes) -> None:
        """Wait until all runs have ended. Each must have succeeded, once."""
        await until_succeeded(self._dsn, self.runs, processes)


async def start_two_workers(processes: Processes) -> httpx2.AsyncClient:
    """Start a process with every role and a second worker; a client of the first one."""
    port = free_port()
    up = processes.start("up", APP, "--port", str(port), "--queue", "load:20")
    processes.start("worker", APP, "--queue", "load:20")
    client = api_client(port)
    await until_ready(client, up, processes)
    return client


async def read_broker_state(client: httpx2.AsyncClient) -> str:
    [broker] = (await client.get("/healthz")).json()["dispatch"].values()
    return str(broker["state"])


async def until_broker_is(state: str, client: httpx2.AsyncClient, processes: Processes) -> None:
    async def reached() -> bool:
        return await read_broker_state(client) == state

    await eventually(reached, processes.logs, deadline=START_SECONDS)


async def count_hinted_claims(client: httpx2.AsyncClient) -> float:
    """How many runs the worker of this process has claimed by a hint."""
    shown = (await client.get("/metrics")).text
    return sum(map(float, re.findall(r"^mainspring_dispatch_claimed_total\{.*\} (.*)$", shown, re.MULTILINE)))


async def until_fed(client: httpx2.AsyncClient, processes: Processes, claims: int = 25) -> None:
    """Wait until the worker has claimed more runs by hints than it may have held before."""
    before = await count_hinted_claims(client)

    async def fed() -> bool:
        return await count_hinted_claims(client) >= before + claims

    await eventually(fed, processes.logs, deadline=START_SECONDS)
