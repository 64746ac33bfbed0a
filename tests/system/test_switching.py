"""From the store to an engine and back, one process after the other, under load: nothing is lost, nothing is completed
twice, and no run waits for long."""

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from mainspring.adapters.store.postgres import PostgresStore
from tests.support.processes import Processes, free_port, until_ready
from tests.support.servers import started
from tests.system.test_dispatch import APP, LATE, Load, claimed_by_hint
from tools.services.redis import Redis

pytestmark = [pytest.mark.postgres, pytest.mark.system, pytest.mark.timeout(180), pytest.mark.xdist_group("system")]


@pytest.fixture
async def store(postgres_database: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_database)
    await store.open()
    yield store
    await store.close()


class Generation:
    """A scheduler, a worker and an API in one process."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        port = free_port()
        self.process: subprocess.Popen[bytes] = processes.start("up", APP, "--port", str(port), "--queue", "load:20")
        self.client = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}")

    async def ready(self) -> None:
        await until_ready(self.client, self.process, self._processes)

    async def leave(self) -> None:
        await self.client.aclose()
        self.process.terminate()
        assert await asyncio.to_thread(self.process.wait, 60) == 0, self._processes.logs()


async def test_engines_change_under_load(
    store: PostgresStore, postgres_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Redis(tmp_path / "redis")
    address = started(server)
    (tmp_path / "logs").mkdir()
    try:
        async with Processes(postgres_database, tmp_path / "logs") as processes:
            old = Generation(processes)
            await old.ready()
            async with Load(store, postgres_database) as load:
                await asyncio.sleep(1)
                assert await claimed_by_hint(old.client) == 0
                monkeypatch.setenv("MAINSPRING_DISPATCH_ENGINE", address)
                new = Generation(processes)
                await new.ready()
                # For a while they are there together.
                await asyncio.sleep(1)
                await old.leave()
                until = time.monotonic() + 30
                while await claimed_by_hint(new.client) < 50:
                    assert time.monotonic() < until, processes.logs()
                    await asyncio.sleep(0.1)
                monkeypatch.delenv("MAINSPRING_DISPATCH_ENGINE")
                last = Generation(processes)
                await last.ready()
                await new.leave()
                await asyncio.sleep(1)
            longest = await load.judge(processes)
            assert await claimed_by_hint(last.client) == 0
            await last.leave()
        assert longest < LATE
    finally:
        server.remove()
