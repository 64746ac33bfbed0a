"""No page reads a table that grows with history from its beginning to its end.

Looked at in a small store whose statistics say that it has ten million runs, with sequential scans allowed: our own
connections forbid them (ADR 7), which says nothing about whether there is an index that fits. ``tools/page_times.py``
measures a large one.
"""

import re
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import asyncpg
import httpx2
import pytest

from mainspring.adapters.store.postgres import database
from mainspring.domain.instant import DAY, HOUR
from mainspring.ui.app import UiSettings, make_ui
from tests.api.conftest import Service
from tests.conftest import as_administrator
from tests.support.builders import a_job, a_run, a_spec, every
from tests.support.store_harness import PostgresHarness
from tools.much_history import write_history
from tools.page_times import pages_of

pytestmark = pytest.mark.postgres

_RUNS = 20_000
_AS_IF = 10_000_000
#: What is smaller is read from its beginning to its end by right: to look 1,000 ids up takes longer. These are
#: partitions of days to come, and what is left of the oldest day.
_LARGE = 10_000
_LATE = 23 * HOUR
_SCANNED = re.compile(r"Seq Scan on (?:\w+\.)?(\w+)")
#: What grows with every run that ends; and its indexes. Dead letters are those that nobody has dealt with: all of them
#: are counted, and they are left out.
_GROWS = "^(history|body|ledger|attempt|label|log|audit)"
#: The planner takes the number of pages from the files, and of rows what stands here for each page. So a sequential
#: scan costs what the processor takes for ten million rows, it is chosen sooner than it would be.
_PRETEND = """
UPDATE pg_class SET reltuples = reltuples * $1
WHERE relnamespace = 'mainspring'::regnamespace AND relkind IN ('r', 'i') AND reltuples > 0 AND relname ~ $2
"""
#: No index has any text in it. It looks through 2,000 rows a page, by the index of their time, as our connections do.
_LOOKS_THROUGH = {"runs by text"}
_SIZES = """
SELECT relname, reltuples FROM pg_class
WHERE relnamespace = 'mainspring'::regnamespace AND relkind = 'r' AND reltuples >= $1 AND relname ~ $2
"""


class Asked:
    """What the store asks of the server, each statement once."""

    def __init__(self, harness: PostgresHarness) -> None:
        self.harness = harness
        self.statements: dict[str, Sequence[Any]] = {}

    def __call__(self, query: Any) -> None:
        self.statements.setdefault(query.query, query.args)


@pytest.fixture
async def asked(postgres_database: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Asked]:
    await PostgresHarness.prepare(postgres_database)
    harness = PostgresHarness(postgres_database)
    found = Asked(harness)
    prepare = database.prepare_connection

    async def listen(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        await prepare(connection)
        connection.add_query_logger(found)

    monkeypatch.setattr(database, "prepare_connection", listen)
    await harness.open()
    try:
        # Late in a day, whenever this is run: today's partition is a large one, and of the oldest day little is left.
        await harness.advance((_LATE - await harness.now()) % DAY)
        jobs = [(await harness.put(a_job(a_spec(schedule=every(DAY))))).id for _ in range(10)]
        await write_history(postgres_database, harness.store, _RUNS, jobs, await harness.now())
        await harness.submit(*[a_run(delay=DAY) for _ in range(200)], *[a_run() for _ in range(200)])
        yield found
    finally:
        await harness.close()


async def pretend(dsn: str) -> dict[str, float]:
    """Says to the planner that there is as much as with ten million runs; which tables are large then."""
    connection = await asyncpg.connect(as_administrator(dsn))
    try:
        await connection.execute("VACUUM (ANALYZE)")
        await connection.execute(_PRETEND, float(_AS_IF / _RUNS), _GROWS)
        return {row["relname"]: row["reltuples"] for row in await connection.fetch(_SIZES, float(_LARGE), _GROWS)}
    finally:
        await connection.close()


@pytest.fixture
async def planner(asked: Asked, postgres_database: str) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
    """A connection as ours are, but for what they forbid."""
    connection = await asyncpg.connect(postgres_database, server_settings=database.SESSION | {"enable_seqscan": "on"})
    await database.prepare_connection(connection)
    yield connection
    await connection.close()


async def plan_of(connection: "asyncpg.Connection[asyncpg.Record]", statement: str, arguments: Sequence[Any]) -> str:
    return "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN {statement}", *arguments))


async def test_no_page_reads_all_of_the_history(
    asked: Asked, planner: "asyncpg.Connection[asyncpg.Record]", postgres_database: str
) -> None:
    service = Service(auth=False, store=asked.harness.store)
    nodes = {"first": {"task": "t"}, "last": {"task": "t", "after": ["first"]}}
    async with service.client() as api:
        workflow = (await api.post("/v1/workflows", json={"name": "w", "nodes": nodes})).json()["workflowId"]
        run = (await api.get("/v1/runs?status=failed&limit=1")).json()["items"][0]["runId"]
        job = (await api.get("/v1/jobs?kind=recurring&limit=1")).json()["items"][0]["jobId"]
    large = await pretend(postgres_database)
    assert sum(rows for name, rows in large.items() if name.startswith("history")) > 0.9 * _AS_IF
    assert "audit" in large
    assert await planner.fetchval("SHOW enable_seqscan") == "on"
    transport = httpx2.ASGITransport(app=cast(Any, make_ui(service.api, service.app, UiSettings())))
    found: dict[str, str] = {}
    looked_at = 0
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for name, path in pages_of(run, job, workflow).items():
            asked.statements.clear()
            answer = await client.get(path)
            assert answer.status_code == 200, path
            allowed = database.SESSION["enable_seqscan"] if name in _LOOKS_THROUGH else "on"
            # Also a turn of the loop: what was asked last is told in the next one.
            await planner.execute(f"SET enable_seqscan = {allowed}")
            for statement, arguments in list(asked.statements.items()):
                if not statement.lstrip().startswith(("SELECT", "WITH", "--")):
                    continue
                for mode in ("force_custom_plan", "force_generic_plan"):
                    await planner.execute(f"SET plan_cache_mode = {mode}")
                    plan = await plan_of(planner, statement, arguments)
                    looked_at += 1
                    if tables := [table for table in _SCANNED.findall(plan) if table in large]:
                        found[f"{name}, {mode}: {', '.join(tables)}"] = f"{statement}\n{plan}"
    assert looked_at > 60
    assert list(found) == [], "\n\n".join([*found, *found.values()])


async def test_a_statement_without_an_index_would_be_found(
    asked: Asked, planner: "asyncpg.Connection[asyncpg.Record]", postgres_database: str
) -> None:
    large = await pretend(postgres_database)
    for table, condition in (("history", "fence = 7"), ("attempt", "number = 7"), ("body", "payload = 'x'")):
        plan = await plan_of(planner, f"SELECT * FROM mainspring.{table} WHERE {condition}", ())
        assert [found for found in _SCANNED.findall(plan) if found in large], plan
