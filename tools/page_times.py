"""``python -m tools.page_times [RUNS]``: the time that each page of the dashboard takes the server.

On PostgreSQL, without a socket: what the page asks of the store, and what is made of it. Needs ``make services``.
"""

import argparse
import asyncio
import os
import statistics
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

import asyncpg
import httpx2
import psutil

from mainspring.config.health import examine
from mainspring.config.pages import PAGES
from mainspring.config.settings import Settings
from mainspring.core.model.base.ids import JobId
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, SECOND
from mainspring.core.model.cluster.diagnosis import Finding
from mainspring.core.ports.health import SettingView
from mainspring.stores.postgres import PostgresStore
from mainspring.web.app import DashboardSettings, build_dashboard
from tests.api.conftest import Service
from tests.support.builders import SHARDS, a_fire, a_job, a_run, a_spec, a_tick, every
from tests.support.databases import create_database, drop_database, with_database
from tests.support.store_harness import PostgresHarness
from tools.much_history import fingerprint_of_most, write_history
from tools.services import ensure

_BATCH = 1_000
_JOBS = 60
_TICKS = 50
_TIMES = 15
_WORKFLOWS = 20
_LATER = 20_000
_CLOCK = """
CREATE OR REPLACE FUNCTION now_us() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE
    AS $$ SELECT (extract(epoch FROM now()) * 1000000)::bigint $$
"""


def pages_of(run: str, job: str, workflow: str) -> dict[str, str]:
    """Every page that shows what is stored, by what it is called."""
    return {
        "overview": "/",
        "overview, 24 hours": "/?range=24h",
        "runs": "/runs",
        "runs, failed": "/runs?status=failed",
        "runs by queue": "/runs?queue=default",
        "runs by text": "/runs?text=nothing-like-it",
        "runs by tag": "/runs?tag=nothing-like-it",
        "runs by task": "/runs?task=task_1",
        "runs by job": f"/runs?job={job}",
        "run": f"/runs/{run}",
        "what a run waits for": f"/runs/{run}/parents",
        "what waits for a run": f"/runs/{run}/children",
        "jobs": "/jobs",
        "one-off jobs": "/jobs?kind=oneOff",
        "jobs by text": "/jobs?text=nothing-like-it",
        "jobs by state": "/jobs?status=paused",
        "job": f"/jobs/{job}",
        "new job": "/jobs/new",
        "edit a job": f"/jobs/{job}/edit",
        "workflows": "/workflows",
        "workflows by text": "/workflows?text=nothing-like-it",
        "workflow": f"/workflows/{workflow}",
        "calendar, week": "/calendar",
        "calendar, day": "/calendar?view=day",
        "dead letters": "/dead-letters",
        "dead letters, one error": f"/dead-letters/{fingerprint_of_most()}",
        "replay, what it would do": "/dead-letters/replay",
        "notifications": "/notifications",
        "queues": "/queues",
        "queue": "/queues/default",
        "workers": "/workers",
        "schedulers": "/schedulers",
        "data centers": "/datacenters",
        "tenants": "/tenants",
        "tenant": "/tenants/default",
        "audit": "/audit",
        "audit by action": "/audit?action=jobs.pause",
        "audit by author": "/audit?author=local",
        "audit by target": f"/audit?target={job}",
        "keys": "/keys",
        "system": "/system",
        "system, what is found": "/system/findings",
    }


class _System:
    """The store as its doctor finds it."""

    def __init__(self, dsn: str) -> None:
        self._settings = Settings(store=dsn, shards=SHARDS)

    def settings(self) -> list[SettingView]:
        return []

    async def examine(self) -> list[Finding]:
        return await examine(self._settings)


async def fill(dsn: str, runs: int, workflows: Sequence[int]) -> None:
    """``workflows``: the number of nodes of each."""
    await PostgresHarness.prepare(dsn)
    harness = PostgresHarness(dsn)
    await harness.open()
    try:
        jobs = await _schedules(harness)
        await write_history(dsn, harness.store, runs, jobs, await harness.now())
        for start in range(0, _LATER, _BATCH):
            await harness.submit(*[a_run(delay=(start + number) * SECOND + HOUR) for number in range(_BATCH)])
        await harness.submit(*[a_run() for _ in range(_BATCH)])
        service = Service(auth=False, store=harness.store)
        for nodes in workflows:
            await _workflow(service, nodes)
        # The clock of the tests is slower than the store's own.
        await harness._connection.execute(_CLOCK)
    finally:
        await harness.close()


async def measure(dsn: str, runs: int) -> None:
    store = PostgresStore(dsn, shards=SHARDS)
    await store.open()
    try:
        service = Service(auth=False, store=store)
        service.api.system = _System(dsn)
        async with service.client() as client:
            failed, job, *found = [
                (await client.get(f"/v1/{path}")).json()["items"]
                for path in ("runs?status=failed&limit=1", "jobs?kind=recurring&limit=1", "workflows?limit=2")
            ]
        large, workflow = [one["workflowId"] for one in found[0]]
        failed, job = failed[0]["runId"], job[0]["jobId"]
        app = build_dashboard(service.api, _nothing, PAGES, DashboardSettings())
        pages = {**pages_of(failed, job, workflow), "of 10,000 nodes": f"/workflows/{large}"}
        server = await find_server(dsn)
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=cast(Any, app)), base_url="http://localhost"
        ) as client:
            print(f"{runs:,} runs, load {os.getloadavg()[0]:.1f}; of {_TIMES}, ms: processor, median, worst; bytes")
            for name, path in pages.items():
                # What the doctor found is remembered for a while: it looks each time.
                await _time(client, server, name, path, service.api.findings.forget)
    finally:
        await store.close()


async def _time(
    client: httpx2.AsyncClient, server: psutil.Process, name: str, path: str, forget: Callable[[], None]
) -> None:
    took = []
    size = 0
    before: dict[int, float] = {}
    for number in range(_TIMES + 2):
        if number == 2:
            before = processor_seconds(server)
        forget()
        began = time.perf_counter()
        async with client.stream("GET", path, headers={"accept-encoding": "gzip"}) as answer:
            size = sum([len(part) async for part in answer.aiter_raw()])
        took.append((time.perf_counter() - began) * 1_000)
        assert answer.status_code == 200, path
    after = processor_seconds(server)
    processor = sum(used - before.get(one, 0) for one, used in after.items()) / _TIMES * 1_000
    print(f"{name:24} {processor:7.1f} {statistics.median(took[2:]):7.1f} {max(took[2:]):7.1f} {size:8,}", flush=True)


def processor_seconds(server: psutil.Process) -> dict[int, float]:
    """Of this process and of each of the PostgreSQL server's."""
    times = dict[int, Any]()
    for one in server.children():
        with suppress(psutil.NoSuchProcess):
            times[one.pid] = one.cpu_times()
    return {0: time.process_time()} | {pid: used.user + used.system for pid, used in times.items()}


async def find_server(dsn: str) -> psutil.Process:
    connection = await asyncpg.connect(dsn)
    try:
        found = psutil.Process(await connection.fetchval("SELECT pg_backend_pid()")).parent()
    finally:
        await connection.close()
    assert found is not None
    return found


async def _schedules(harness: PostgresHarness) -> list[JobId]:
    """Schedules whose last ticks have run."""
    jobs = [(await harness.put(a_job(a_spec(schedule=every(DAY))))).id for _ in range(_JOBS)]
    at = await harness.now() - _TICKS * MINUTE
    owner = await harness.owner()
    for number in range(_TICKS):
        current = [await harness.job(job) for job in jobs]
        fires = [a_fire(job, a_tick(job, at + number * MINUTE), next_fire=job.next_fire) for job in current]
        await harness.store.fire(owner, fires)
        await harness.succeed(*await harness.claim(await harness.worker()))
    return jobs


async def _workflow(service: Service, count: int) -> str:
    """A wide layer between a first node and a last one."""
    names = [f"n{number}" for number in range(count - 2)]
    nodes = {"first": {"task": "t"}, **{name: {"task": "t", "after": ["first"]} for name in names}}
    nodes["last"] = {"task": "t", "after": names[:1_000]}
    async with service.client() as client:
        made = await client.post("/v1/workflows", json={"name": f"of {count}", "nodes": nodes}, timeout=120)
    return str(made.json()["workflowId"])


async def _nothing(scope: object, receive: object, send: object) -> None:
    raise AssertionError("no page asks the API over HTTP")


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m tools.page_times", description=__doc__)
    arguments.add_argument("runs", nargs="?", type=int, default=100_000)
    arguments.add_argument("--database", help="filled if it is not there, and kept")
    given = arguments.parse_args()
    server, name = ensure("postgres"), given.database or f"pages_{uuid.uuid4().hex}"
    try:
        asyncio.run(fill_once(server, name, given.runs, (*[50] * _WORKFLOWS, 10_000)))
        asyncio.run(measure(with_database(server, name), given.runs))
    finally:
        if not given.database:
            asyncio.run(drop_database(server, name))


async def fill_once(server: str, name: str, runs: int, workflows: Sequence[int] = ()) -> None:
    """Create and fill a database, unless it exists. One that was left unfinished is made again."""
    connection = await asyncpg.connect(server)
    try:
        if await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", name) is not None:
            return
        unfinished = f"{name}_unfinished"
        await connection.execute(f"DROP DATABASE IF EXISTS {unfinished} WITH (FORCE)")
        await create_database(server, unfinished)
        await fill(with_database(server, unfinished), runs, workflows)
        await connection.execute(f"ALTER DATABASE {unfinished} RENAME TO {name}")
    finally:
        await connection.close()


if __name__ == "__main__":
    main()
