"""No page scans a whole table that grows with history.

The test uses a small store whose statistics claim ten million runs. It allows sequential scans, because our own
connections forbid them (ADR 7) and would hide a missing index. ``tools/page_times.py`` measures a large store.
"""

import re
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import asyncpg
import httpx2
import pytest

from mainspring.config.pages import PAGES
from mainspring.core.model.base.instant import DAY, HOUR
from mainspring.stores.postgres import database
from mainspring.web.app import DashboardSettings, build_dashboard
from tests.api.conftest import Service
from tests.support.builders import a_job, a_run, a_spec, every
from tests.support.databases import as_administrator
from tests.support.store_harness import PostgresHarness
from tools.much_history import write_history
from tools.page_times import pages_of

pytestmark = pytest.mark.postgres

_RUNS = 20_000
_AS_IF = 10_000_000
#: A sequential scan of a smaller table is right: looking up 1,000 ids takes longer. Such are the partitions of future
#: days and of the oldest day.
_LARGE = 10_000
_LATE = 23 * HOUR
_SCANNED = re.compile(r"Seq Scan on (?:\w+\.)?(\w+)")
#: Tables that grow with every completed run, and their indexes. The page of dead letters counts all open ones, so
#: their table is not among them.
_GROWS = "^(history|body|ledger|attempt|label|log|audit)"
#: The planner takes the number of pages from the files and the rows per page from here. A sequential scan then costs
#: the processor time of ten million rows but little input, so the planner chooses it sooner than in reality.
_PRETEND = """
UPDATE pg_class SET reltuples = reltuples * $1
WHERE relnamespace = 'mainspring'::regnamespace AND relkind IN ('r', 'i') AND reltuples > 0 AND relname ~ $2
"""
#: No index covers a text search. It reads 2,000 rows per page by the index of their time, as our connections do.
_TEXT_SEARCHES = {"runs by text"}
_SIZES = """
SELECT relname, reltuples FROM pg_class
WHERE relnamespace = 'mainspring'::regnamespace AND relkind = 'r' AND reltuples >= $1 AND relname ~ $2
"""


class Statements:
    """Records the statements that the store sends to the server, each once."""

    def __init__(self, harness: PostgresHarness) -> None:
        self.harness = harness
        self.statements: dict[str, Sequence[Any]] = {}

    def __call__(self, query: Any) -> None:
        self.statements.setdefault(query.query, query.args)


@pytest.fixture
async def recorder(postgres_database: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Statements]:
    await PostgresHarness.prepare(postgres_database)
    harness = PostgresHarness(postgres_database)
    found = Statements(harness)
    prepare = database.prepare_connection

    async def listen(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        await prepare(connection)
        connection.add_query_logger(found)

    monkeypatch.setattr(database, "prepare_connection", listen)
    await harness.open()
    try:
        # Move to late in the day, so that today's partition is large at any time of day.
        await harness.advance((_LATE - await harness.now()) % DAY)
        jobs = [(await harness.put(a_job(a_spec(schedule=every(DAY))))).id for _ in range(10)]
        await write_history(postgres_database, harness.store, _RUNS, jobs, await harness.now())
        await harness.submit(*[a_run(delay=DAY) for _ in range(200)], *[a_run() for _ in range(200)])
        yield found
    finally:
        await harness.close()


async def inflate_statistics(dsn: str) -> dict[str, float]:
    """Make the planner see ten million runs, and return the tables that are large then."""
    connection = await asyncpg.connect(as_administrator(dsn))
    try:
        await connection.execute("VACUUM (ANALYZE)")
        await connection.execute(_PRETEND, float(_AS_IF / _RUNS), _GROWS)
        return {row["relname"]: row["reltuples"] for row in await connection.fetch(_SIZES, float(_LARGE), _GROWS)}
    finally:
        await connection.close()


@pytest.fixture
async def planner(recorder: Statements, postgres_database: str) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
    """A connection with our settings, but with sequential scans allowed."""
    connection = await asyncpg.connect(postgres_database, server_settings=database.SESSION | {"enable_seqscan": "on"})
    await database.prepare_connection(connection)
    yield connection
    await connection.close()


async def explain(connection: "asyncpg.Connection[asyncpg.Record]", statement: str, arguments: Sequence[Any]) -> str:
    return "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN {statement}", *arguments))


async def test_no_page_scans_all_of_the_history(
    recorder: Statements, planner: "asyncpg.Connection[asyncpg.Record]", postgres_database: str
) -> None:
    service = Service(auth=False, store=recorder.harness.store)
    nodes = {"first": {"task": "t"}, "last": {"task": "t", "after": ["first"]}}
    async with service.client() as api:
        workflow = (await api.post("/v1/workflows", json={"name": "w", "nodes": nodes})).json()["workflowId"]
        run = (await api.get("/v1/runs?status=failed&limit=1")).json()["items"][0]["runId"]
        job = (await api.get("/v1/jobs?kind=recurring&limit=1")).json()["items"][0]["jobId"]
    large = await inflate_statistics(postgres_database)
    assert sum(rows for name, rows in large.items() if name.startswith("history")) > 0.9 * _AS_IF
    assert "audit" in large
    assert await planner.fetchval("SHOW enable_seqscan") == "on"
    transport = httpx2.ASGITransport(
        app=cast(Any, build_dashboard(service.api, service.app, PAGES, DashboardSettings()))
    )
    found: dict[str, str] = {}
    explained = 0
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for name, path in pages_of(run, job, workflow).items():
            recorder.statements.clear()
            answer = await client.get(path)
            assert answer.status_code == 200, path
            allowed = database.SESSION["enable_seqscan"] if name in _TEXT_SEARCHES else "on"
            # This also runs the event loop once, which delivers the last statement to the recorder.
            await planner.execute(f"SET enable_seqscan = {allowed}")
            for statement, arguments in list(recorder.statements.items()):
                if not statement.lstrip().startswith(("SELECT", "WITH", "--")):
                    continue
                for mode in ("force_custom_plan", "force_generic_plan"):
                    await planner.execute(f"SET plan_cache_mode = {mode}")
                    plan = await explain(planner, statement, arguments)
                    explained += 1
                    if tables := [table for table in _SCANNED.findall(plan) if table in large]:
                        found[f"{name}, {mode}: {', '.join(tables)}"] = f"{statement}\n{plan}"
    assert explained > 60
    assert list(found) == [], "\n\n".join([*found, *found.values()])


async def test_the_check_finds_a_statement_without_an_index(
    recorder: Statements, planner: "asyncpg.Connection[asyncpg.Record]", postgres_database: str
) -> None:
    large = await inflate_statistics(postgres_database)
    for table, condition in (("history", "fence = 7"), ("attempt", "number = 7"), ("body", "payload = 'x'")):
        plan = await explain(planner, f"SELECT * FROM mainspring.{table} WHERE {condition}", ())
        assert [found for found in _SCANNED.findall(plan) if found in large], plan
