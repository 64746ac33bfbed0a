"""A day of a cluster: load, a failing task, an alert and its runbook, retention, a backup and its restore."""

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from time import time_ns

import asyncpg
import pytest

from mainspring.core.model.base.ids import JobId
from mainspring.core.model.base.instant import DAY, SECOND, Instant
from mainspring.stores.postgres import PostgresStore
from tests.support.databases import create_database, drop_database, with_database
from tests.support.load import PAUSE_SECONDS
from tests.support.monitoring import Monitoring
from tests.support.processes import PYTHONPATH
from tests.support.watched_cluster import Cluster, a_cluster
from tools.much_history import write_history

ROOT = Path(__file__).parents[2]
_LAST_WEEK = 7_000
FAILURE_ALERTS = {"MainspringDeadLettersGrowing", "MainspringFailureRate", "MainspringTaskFailing"}
_ENDED = """
SELECT state::text AS kind, count(payload),
       md5(string_agg(concat_ws('/', h.id, result, error, payload), ',' ORDER BY h.id)) AS sum
FROM mainspring.history h LEFT JOIN mainspring.body b ON b.bucket = h.body_bucket AND b.id = coalesce(h.body_id, h.id)
WHERE finished_at < $1 GROUP BY state
"""
_BESIDE = """
SELECT 'dead letters' AS kind, count(*),
       md5(string_agg(concat_ws('/', run_id, state, at, fingerprint), ',' ORDER BY run_id)) AS sum
FROM mainspring.dead_letter WHERE at < $1
UNION ALL
SELECT 'schedules', count(*),
       md5(string_agg(concat_ws('/', j.id, name, state, v.version, spec), ',' ORDER BY j.id, v.version))
FROM mainspring.job j JOIN mainspring.job_version v ON v.job_id = j.id WHERE v.made_at < $1
"""
pytestmark = [pytest.mark.system, pytest.mark.postgres, pytest.mark.timeout(900), pytest.mark.xdist_group("system")]


class Desk:
    """The operator's terminal and the documentation."""

    def __init__(self, url: str) -> None:
        self._url = url

    def commands(self, page: str, chapter: str) -> list[str]:
        """The commands of a chapter of a runbook."""
        text = (ROOT / "docs" / "operate" / "runbooks" / page).read_text()
        [part] = re.findall(rf"^## {chapter}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        return [line for block in re.findall(r"```sh\n(.*?)```", part, re.DOTALL) for line in block.splitlines()]

    async def type(self, command: str, **settings: str) -> str:
        """Run a command, which must succeed; its output. With settings it opens the store, without it asks the API."""
        program, *words = shlex.split(command)
        assert program == "mainspring", command
        where = settings or {"MAINSPRING_URL": self._url}
        environment = {**os.environ, **where, "PYTHONPATH": PYTHONPATH, "COLUMNS": "200"}
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
    """Submits jobs until it is ended."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ended = asyncio.Event()
        self._task = asyncio.create_task(self._go())

    async def _go(self) -> int:
        made = 0
        while not self._ended.is_set():
            await self._cluster.submit(20)
            made += 20
            await asyncio.sleep(4 * PAUSE_SECONDS)
        return made

    async def end(self) -> int:
        """Stop; how many jobs were submitted."""
        self._ended.set()
        return await self._task


async def write_last_week(dsn: str, cluster: Cluster) -> None:
    """Add the history of seven days."""
    [tick] = (await cluster.client.get("/v1/jobs", params={"kind": "recurring"})).raise_for_status().json()["items"]
    store = PostgresStore(dsn)
    await store.open()
    try:
        await write_history(dsn, store, _LAST_WEEK, [JobId(tick["jobId"])], await store.now())
    finally:
        await store.close()


async def summarize(dsn: str, until: Instant) -> dict[str, tuple[int, str]]:
    """The number and a checksum of all runs that had ended by then, by state, and of dead letters and schedules."""
    connection = await asyncpg.connect(dsn)
    try:
        rows = [*await connection.fetch(_ENDED, until), *await connection.fetch(_BESIDE, until)]
        return {row["kind"]: (row["count"], row["sum"]) for row in rows}
    finally:
        await connection.close()


async def fetch_number(dsn: str, query: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        return int(await connection.fetchval(query))
    finally:
        await connection.close()


@pytest.fixture
async def elsewhere(postgres_dsn: str) -> AsyncIterator[str]:
    """A new empty database."""
    name = f"elsewhere_{uuid.uuid4().hex}"
    await create_database(postgres_dsn, name)
    yield with_database(postgres_dsn, name)
    await drop_database(postgres_dsn, name)


async def test_a_cluster_alerts_recovers_by_its_runbook_archives_and_restores(
    postgres_database: str, elsewhere: str, tmp_path: Path, address_of: Callable[[str], str]
) -> None:
    for folder in (watching := tmp_path / "watching", archive := tmp_path / "archive"):
        folder.mkdir()
    kept = {"MAINSPRING_RETENTION_SUCCEEDED": "3d", "MAINSPRING_RETENTION_UNSUCCESSFUL": "3d"}
    kept |= {"MAINSPRING_RETENTION_ARCHIVE": str(archive)}
    async with (
        a_cluster(postgres_database, tmp_path, schedulers=3, workers=4, **kept) as cluster,
        Monitoring(watching, address_of, cluster.targets) as monitoring,
    ):
        desk = Desk(str(cluster.client.base_url))
        await monitoring.until(lambda: monitoring.query("mainspring_live_workers == 4"), "four workers are live")
        await monitoring.until(lambda: monitoring.query("mainspring_live_schedulers == 3"), "three schedulers are live")
        load = Load(cluster)
        completed = "sum(mainspring_ended_runs_total) > 200"
        await monitoring.until(lambda: monitoring.query(completed), "200 runs have ended")
        # Other alerts may fire on a busy machine, such as the one for a process that answers Prometheus too late.
        assert not FAILURE_ALERTS & (await monitoring.alerts()).keys()

        # The mail server of the task goes away.
        (broken := tmp_path / "broken").touch()
        alert = await monitoring.until_fires("MainspringDeadLettersGrowing")
        broken.unlink()
        page = alert["annotations"]["runbook_url"].rpartition("/")[2].replace(".html", ".md")
        assert page == "dead-letters-growing.md"
        looked = [await desk.type(command) for command in desk.commands(page, "Check")]
        assert "the mail server is away" in looked[0]
        replay, *_ = desk.commands(page, "Fix")
        assert replay.endswith(" --dry-run")
        await desk.type(replay)
        await desk.type(replay.removesuffix(" --dry-run"))

        async def replayed() -> bool:
            found = (await cluster.client.get("/v1/dead-letters")).raise_for_status().json()
            return not found["items"]

        await monitoring.until(replayed, "every dead letter was run again")
        await monitoring.until_resolved("MainspringDeadLettersGrowing")

        # In the evening, old days are archived and removed from the store under load.
        await write_last_week(postgres_database, cluster)

        async def removed() -> bool:
            oldest = await fetch_number(postgres_database, "SELECT min(finished_at) FROM mainspring.history")
            return oldest > time_ns() // 1_000 - 5 * DAY

        await monitoring.until(removed, "days past their retention are gone")
        made = await load.end()
        listed = json.loads(await desk.type("mainspring archive list --json", **kept))
        assert sum(part["runs"] for part in listed["items"]) > _LAST_WEEK // 4

        async def done() -> bool:
            submitted = "SELECT count(*) FROM mainspring.run WHERE job_id IS NULL"
            return await fetch_number(postgres_database, submitted) == 0

        await monitoring.until(done, "every submitted run has ended")
        backup = tmp_path / "evening.backup"
        moment = time_ns() // 1_000

        async def ticked_on() -> bool:
            newest = await fetch_number(postgres_database, "SELECT max(finished_at) FROM mainspring.history")
            return newest > moment + 5 * SECOND

        # A transaction that completed a run before this moment has ended by now.
        await monitoring.until(ticked_on, "ticks have run for five more seconds")
        await desk.type(f"mainspring backup {backup}", MAINSPRING_STORE=postgres_database)
        await desk.type(f"mainspring backup verify {backup}", MAINSPRING_STORE=postgres_database)
        await desk.type(f"mainspring restore {backup}", MAINSPRING_STORE=elsewhere)
        there, here = await summarize(elsewhere, moment), await summarize(postgres_database, moment)
        assert there == here
        assert here["5"][0] + here["6"][0] > made
        assert all(here[kind][0] for kind in ("dead letters", "schedules"))
