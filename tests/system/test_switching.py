"""A broker is added and removed under load, one process after the other: nothing is lost or completed twice."""

import subprocess
from pathlib import Path

import pytest

from mainspring.stores.postgres import PostgresStore
from tests.support.load import APP, Load, count_hinted_claims, until_fed
from tests.support.processes import Processes, api_client, free_port, until_ended, until_ready
from tests.support.servers import started
from tools.services.redis import Redis

pytestmark = [pytest.mark.postgres, pytest.mark.system, pytest.mark.timeout(900), pytest.mark.xdist_group("system")]


class Generation:
    """A scheduler, a worker and an API in one process."""

    def __init__(self, processes: Processes, **settings: str) -> None:
        self._processes = processes
        port = free_port()
        words = ("up", APP, "--port", str(port), "--queue", "load:20")
        self.process: subprocess.Popen[bytes] = processes.start(*words, **settings)
        self.client = api_client(port)

    async def ready(self) -> None:
        await until_ready(self.client, self.process, self._processes)

    async def leave(self) -> None:
        await self.client.aclose()
        self.process.terminate()
        assert await until_ended(self.process, self._processes) == 0, self._processes.logs()


async def test_a_broker_is_added_and_removed_under_load(
    store: PostgresStore, postgres_database: str, tmp_path: Path
) -> None:
    server = Redis(tmp_path / "redis")
    address = started(server)
    try:
        async with Processes(postgres_database, tmp_path / "logs") as processes:
            old = Generation(processes)
            await old.ready()
            async with Load(store, postgres_database) as load:
                await load.until_more(100, processes)
                assert await count_hinted_claims(old.client) == 0
                new = Generation(processes, MAINSPRING_DISPATCH_BROKER=address)
                await new.ready()
                # Both run at the same time for a while.
                await load.until_more(100, processes)
                await old.leave()
                await until_fed(new.client, processes, 50)
                last = Generation(processes)
                await last.ready()
                await new.leave()
                await load.until_more(100, processes)
            await load.check(processes)
            assert await count_hinted_claims(last.client) == 0
            await last.leave()
    finally:
        server.remove()
