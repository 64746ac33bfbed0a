"""A day in the life of a cluster: load, a task that fails, an alert, and the runbook that mends it."""

import asyncio
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.monitoring import Monitoring
from tests.support.processes import PYTHONPATH
from tests.support.watched_cluster import Cluster, a_cluster

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.system, pytest.mark.postgres, pytest.mark.timeout(400), pytest.mark.xdist_group("system")]


class Desk:
    """Whoever is on duty: has the pages and a terminal."""

    def __init__(self, url: str) -> None:
        self._url = url

    def commands(self, page: str, chapter: str) -> list[str]:
        """What a chapter of a runbook says to type."""
        text = (ROOT / "docs" / "operations" / "runbooks" / page).read_text()
        [part] = re.findall(rf"^## {chapter}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        return [line for block in re.findall(r"```sh\n(.*?)```", part, re.DOTALL) for line in block.splitlines()]

    async def type(self, command: str) -> str:
        """What it printed; a command that fails fails the day."""
        program, *words = shlex.split(command)
        assert program == "mainspring", command
        environment = {**os.environ, "MAINSPRING_URL": self._url, "PYTHONPATH": PYTHONPATH, "COLUMNS": "200"}
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "mainspring", *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout


class Load:
    """Jobs all the time, until somebody ends it; then it says how many."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ended = asyncio.Event()
        self._task = asyncio.create_task(self._go())

    async def _go(self) -> int:
        made = 0
        while not self._ended.is_set():
            await self._cluster.submit(20)
            made += 20
            await asyncio.sleep(0.2)
        return made

    async def end(self) -> int:
        self._ended.set()
        return await self._task


async def test_from_morning_to_evening(
    postgres_database: str, tmp_path: Path, address_of: Callable[[str], str]
) -> None:
    (watching := tmp_path / "watching").mkdir()
    async with (
        a_cluster(postgres_database, tmp_path, schedulers=3, workers=4) as cluster,
        Monitoring(watching, address_of, cluster.targets) as monitoring,
    ):
        desk = Desk(str(cluster.client.base_url))
        await monitoring.until(lambda: monitoring.query("mainspring_live_workers == 4"), "four workers are seen")
        await monitoring.until(lambda: monitoring.query("mainspring_live_schedulers == 3"), "three schedulers are seen")
        load = Load(cluster)
        await asyncio.sleep(5)
        assert not await monitoring.alerts()

        # What the task needs goes away. Nobody is told by hand.
        (broken := tmp_path / "broken").touch()
        alert = await monitoring.until_fires("MainspringDeadLettersGrowing")
        broken.unlink()
        page = alert["annotations"]["runbook_url"].rpartition("/")[2]
        assert page == "dead-letters-growing.md"
        looked = [await desk.type(command) for command in desk.commands(page, "How to look")]
        assert "the mail server is away" in looked[0]
        replay, *_ = desk.commands(page, "How to mend it")
        assert replay.endswith(" --dry-run")
        await desk.type(replay)
        await desk.type(replay.removesuffix(" --dry-run"))

        async def replayed() -> bool:
            found = (await cluster.client.get("/v1/dead-letters")).raise_for_status().json()
            return not found["items"]

        await monitoring.until(replayed, "every dead letter was run again")
        await monitoring.until_resolved("MainspringDeadLettersGrowing")
        made = await load.end()
        assert made
