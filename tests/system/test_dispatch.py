"""Real processes fed by a real engine that is flushed, killed and taken away under load: nothing is lost, nothing is
completed twice, no run waits for long, and the engine feeds the workers again after each fault."""

import asyncio
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import httpx2
import pytest
import redis.asyncio as redis

from mainspring.adapters.clock.system import SystemClock
from mainspring.adapters.dispatch.redis import RedisDispatch
from mainspring.adapters.store.postgres import PostgresStore
from mainspring.control.jobs import Jobs
from mainspring.domain.hints import Hint, Sealer
from mainspring.domain.ids import RunId
from mainspring.domain.instant import SECOND
from mainspring.domain.run import NewRun
from tests.support.processes import Processes, free_port, until_ready
from tests.support.servers import started
from tests.system.test_deaths import the_jobs
from tools.services.redis import Redis

pytestmark = [pytest.mark.postgres, pytest.mark.system, pytest.mark.timeout(180), pytest.mark.xdist_group("system")]

APP = "tests.support.load_tasks:app"
#: A worker asks the store once a second whatever its engine says; the sweeper and the breaker are as quick. The rest is
#: for a busy machine.
LATE = 15.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Redis]:
    server = Redis(tmp_path / "redis")
    started(server)
    yield server
    server.remove()


@pytest.fixture
async def store(postgres_database: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_database)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def processes(
    postgres_database: str, store: PostgresStore, server: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Processes]:
    monkeypatch.setenv("MAINSPRING_DISPATCH_ENGINE", server.address())
    (tmp_path / "logs").mkdir()
    async with Processes(postgres_database, tmp_path / "logs") as processes:
        yield processes


class Load:
    """A steady stream of small jobs, and what became of each."""

    def __init__(self, store: PostgresStore, dsn: str) -> None:
        self.dsn = dsn
        self.runs: set[RunId] = set()
        self._jobs: Jobs = the_jobs(store)
        self._enough = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Load":
        self._task = asyncio.create_task(self._submit())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._enough = True
        await self._task

    def hints(self) -> list[Hint]:
        """Of every run so far; most of them have ended."""
        return [Hint(run, "load", 0) for run in self.runs]

    async def _submit(self) -> None:
        while not self._enough:
            runs = [
                NewRun(id=self._jobs.new_run_id(), task="moment", payload=b'{"milliseconds":20}', queue="load")
                for _ in range(10)
            ]
            await self._jobs.submit_many(runs)
            self.runs |= {run.id for run in runs}
            await asyncio.sleep(0.05)

    async def judge(self, processes: Processes) -> float:
        """All have succeeded, each once; how long the one waited that waited longest."""
        connection = await asyncpg.connect(self.dsn)
        try:
            until = time.monotonic() + 60
            while await connection.fetchval("SELECT count(*) FROM mainspring.history") < len(self.runs):
                assert time.monotonic() < until, processes.logs()
                await asyncio.sleep(0.2)
            rows = await connection.fetch(
                "SELECT id::text, state, (started_at - greatest(due, created_at)) AS waited FROM mainspring.history"
            )
            assert await connection.fetchval("SELECT count(*) FROM mainspring.run") == 0
        finally:
            await connection.close()
        found = [row["id"].replace("-", "") for row in rows]
        assert len(found) == len(set(found)), "a run was completed twice"
        assert set(found) == self.runs
        assert {row["state"] for row in rows} == {5}
        return max(row["waited"] for row in rows) / SECOND


async def begin(processes: Processes) -> httpx2.AsyncClient:
    """A scheduler with an API and two workers; the client asks how the scheduler is."""
    port = free_port()
    up = processes.start("up", APP, "--port", str(port), "--queue", "load:20")
    processes.start("worker", APP, "--queue", "load:20")
    client = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}")
    await until_ready(client, up, processes)
    return client


async def dispatch_state(client: httpx2.AsyncClient) -> str:
    health = (await client.get("/healthz")).json()
    [engine] = health["dispatch"].values()
    return str(engine["state"])


async def until_state(client: httpx2.AsyncClient, state: str, processes: Processes) -> None:
    until = time.monotonic() + 30
    while await dispatch_state(client) != state:
        assert time.monotonic() < until, processes.logs()
        await asyncio.sleep(0.1)


async def claimed_by_hint(client: httpx2.AsyncClient) -> float:
    """How many runs the worker of this process has started by a hint."""
    shown = (await client.get("/metrics")).text
    return sum(map(float, re.findall(r"^mainspring_dispatch_claimed_total\{.*\} (.*)$", shown, re.MULTILINE)))


async def until_fed(client: httpx2.AsyncClient, processes: Processes) -> None:
    """The engine feeds its worker from now on, more than it may have had in hand."""
    before, until = await claimed_by_hint(client), time.monotonic() + 40
    while await claimed_by_hint(client) < before + 25:
        assert time.monotonic() < until, processes.logs()
        await asyncio.sleep(0.1)


async def test_what_the_engine_forgets_loses_and_repeats_is_done_once_and_soon(
    server: Redis, store: PostgresStore, processes: Processes, postgres_database: str
) -> None:
    client = await begin(processes)
    address = server.address()
    again = RedisDispatch(address, SystemClock(), Sealer((await store.hint_key()).encode()))
    await again.open(await store.identity())
    async with Load(store, postgres_database) as load:
        async with redis.Redis.from_url(address) as outside:
            await until_fed(client, processes)
            for _ in range(3):
                await outside.flushall()
                await asyncio.sleep(0.7)
            await until_fed(client, processes)
            # Everything is delivered three times more, stale or not.
            for _ in range(3):
                await again.publish(load.hints())
                await asyncio.sleep(0.3)
        await until_fed(client, processes)
        assert await dispatch_state(client) == "ok"
        for node in server.nodes:
            node.signal(signal.SIGKILL)
        await asyncio.to_thread(server.start)
        await until_fed(client, processes)
        # Away for a while: the breaker opens, the store feeds, and it closes by itself.
        for node in server.nodes:
            node.signal(signal.SIGKILL)
        await until_state(client, "away", processes)
        await asyncio.sleep(3)
        await asyncio.to_thread(server.start)
        await until_fed(client, processes)
        # Frozen: connections stay open, and nobody answers.
        for node in server.nodes:
            node.signal(signal.SIGSTOP)
        await until_state(client, "away", processes)
        for node in server.nodes:
            node.signal(signal.SIGCONT)
        await until_fed(client, processes)
        assert await dispatch_state(client) == "ok"
    await again.close()
    await client.aclose()
    longest = await load.judge(processes)
    assert len(load.runs) > 500, "too little load to say anything"
    assert longest < LATE
