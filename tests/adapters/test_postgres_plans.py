"""Query plans on PostgreSQL: hot statements and lists use their indexes, whatever the statistics say."""

import re
from collections.abc import AsyncIterator
from importlib.resources import files

import asyncpg
import pytest

from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.ports.storage.catalog import RunFilter
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.database import PACKAGE, SESSION, load_statements, prepare_connection
from mainspring.stores.postgres.records import catalog
from tests.support.builders import a_run
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres

#: Every statement of the store by its name.
STATEMENTS = load_statements(
    "mainspring",
    [file.name.removesuffix(".sql") for file in files(PACKAGE).joinpath("queries").iterdir()],
)


@pytest.fixture
async def store(postgres_database: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_database, shards=4)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def connection(postgres_database: str, store: PostgresStore) -> AsyncIterator["asyncpg.Connection"]:
    """A connection with the planner settings of the store, which always uses generic plans."""
    connection = await asyncpg.connect(postgres_database, server_settings={"search_path": "mainspring"})
    for setting, value in SESSION.items():
        if not setting.endswith("timeout"):
            await connection.execute(f"SET {setting} = '{value}'")
    await connection.execute("SET plan_cache_mode = force_generic_plan")
    yield connection
    await connection.close()


async def explain(connection: asyncpg.Connection, name: str, types: str, values: str) -> str:
    await connection.execute(f"PREPARE {name} ({types}) AS {STATEMENTS[name].text}")
    return "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN EXECUTE {name}({values})"))


HOT = {
    "claim": ("run_ready", "bigint, int, int[], int[], bigint[]", "1, 1, '{1}', '{500}', '{0}'"),
    "lowest_ranks": ("run_ready", "int[]", "'{1}'"),
    "claim_hinted": ("run_pkey", "bigint, int, int[], uuid[]", "1, 1, '{1}', '{}'"),
    "hints_of": ("run_pkey", "uuid[]", "'{}'"),
    "hints_ready": ("run_ready", "text[], int", "NULL, 1000"),
    "claim_lanes": ("run_ready", "bigint, int, int[], int[]", "1, 1, '{1}', '{500}'"),
    "claim_best": ("run_ready", "int, int, int[], uuid[], int, int", "1, NULL, '{}', '{}', 10, 0"),
    "running_of": ("run_held", "int[]", "'{1}'"),
    "running_of_queue": ("run_held", "int", "1"),
    "active_lanes": ("run_ready", "int", "1"),
    "sort_lanes": ("run_ready", "int, int[], int[], int, boolean, boolean", "1, '{0}', '{0}', 1000, true, true"),
    "best_of_lanes": (
        "run_ready",
        "int, int[], int[], int, int[], uuid[], boolean, int",
        "1, '{0}', '{10}', NULL, '{}', '{}', true, NULL",
    ),
    "settle_succeeded": ("run_pkey", "uuid[], bigint[], bytea[], bigint[], text[]", "'{}', '{}', '{}', NULL, NULL"),
    "settle_other": (
        "run_pkey",
        "uuid[], bigint[], smallint[], smallint[], text[], bigint[], text[], bytea[], text[], bigint[], text[]",
        "'{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', NULL, NULL",
    ),
    "stage": ("waiting_due", "bigint, smallint[], int", "1, '{0,1,2,3}', 1000"),
    "due_jobs": ("schedule_due", "smallint[], bigint, int", "'{0,1,2,3}', 1, 500"),
    "recorded_ticks": ("Index Cond: ((job_id = t.job_id)", "uuid[], bigint[], text[]", "'{}', '{}', '{}'"),
    "upcoming": ("waiting_due", "smallint[], bigint, int", "'{0,1,2,3}', 1, 500"),
    "beat": ("run_held", "bigint, bigint, uuid[], int[], int", "1, 1, '{}', '{}', 1"),
    "lock_limiters": ("limiter_pkey", "bigint[], int[]", "'{1}', '{1}'"),
    "limit_waiters": ("waiting_limit", "bigint[], int[], uuid[]", "'{1}', '{3}', '{}'"),
    "save_limiters": (
        "waiting_limit",
        "bigint[], int[], text[], bigint[], bigint[], boolean[], bigint[]",
        "'{1}', '{1}', '{NULL}', '{NULL}', '{0}', '{false}', '{NULL}'",
    ),
    "waking_limiters": ("limiter_wake", "int", "100"),
    "queued_of_breakers": ("run_breaker", "bigint[], int", "'{1}', 100"),
    "awaited_limits": ("waiting_limit", "bigint, int", "-1, 1000"),
    "wrong_counts": ("run_limited", "int", "1000"),
    "orphans": ("waiting_p", "uuid, int", "'00000000-0000-0000-0000-000000000000', 1000"),
    "decide_edges": ("edge_undecided", "uuid[], smallint[], int", "'{}', '{}', 100"),
    "lock_children": ("waiting_p", "uuid[]", "'{}'"),
    "release_children": ("waiting_pkey", "uuid[]", "'{}'"),
    "skip": ("waiting_pkey", "uuid[], text[]", "'{}', '{}'"),
    "first_of_uniques": ("unique_run_pkey", "int[], bytea[]", "'{}', '{}'"),
}


#: Transactions that keep a vacuum from removing deleted rows.
HOLDERS = """
SELECT datname, backend_type, application_name, state, now() - xact_start AS since, backend_xid, backend_xmin, query
FROM pg_stat_activity WHERE backend_xid IS NOT NULL OR backend_xmin IS NOT NULL
UNION ALL SELECT database, 'slot', slot_name, slot_type, NULL, xmin, catalog_xmin, NULL FROM pg_replication_slots
UNION ALL SELECT database, 'prepared', gid, NULL, now() - prepared, transaction, NULL, NULL FROM pg_prepared_xacts
"""


@pytest.mark.parametrize("tables", ["empty", "full", "emptied"])
async def test_hot_statements_use_their_indexes_with_any_statistics(
    connection: asyncpg.Connection, tables: str
) -> None:
    if tables != "empty":
        await connection.execute("""
            INSERT INTO run (id, shard, state, priority, attempt, lost, tenant, queue, body_bucket, rank, due,
                             created_at, timeout, fence, claim, session, attempt_until)
            SELECT gen_random_uuid(), i % 4, CASE WHEN i % 10 = 0 THEN 4 ELSE 3 END, 5, 0, 0, 1, 1 + i % 3, 0, i, 0, 0,
                   1, 1, CASE WHEN i % 10 = 0 THEN 1 END, CASE WHEN i % 10 = 0 THEN 1 END, 1
            FROM generate_series(1, 20000) i;
            INSERT INTO waiting (id, shard, state, priority, attempt, lost, tenant, queue, body_bucket, due,
                                 created_at, timeout)
            SELECT gen_random_uuid(), i % 4, 1, 5, 0, 0, 1, 1, 0, i * 1000000::bigint, 0, 1
            FROM generate_series(1, 20000) i;
            INSERT INTO schedule (job_id, shard, next_fire, tenant)
            SELECT gen_random_uuid(), i % 4, i * 1000000::bigint, 1 FROM generate_series(1, 20000) i;
            ANALYZE;
        """)
    if tables == "emptied":
        # As upkeep leaves an emptied queue: it has pages, and the planner expects no rows.
        await connection.execute("DELETE FROM run; DELETE FROM waiting; DELETE FROM schedule")
        holders: list[object] = []

        async def are_vacuumed() -> bool:
            # Another transaction, such as an autovacuum, may still see the rows.
            await connection.execute("VACUUM (TRUNCATE off) run, waiting, schedule")
            holders[:] = await connection.fetch(HOLDERS)
            left = "SELECT sum(reltuples) FROM pg_class WHERE relname IN ('run', 'waiting', 'schedule')"
            return await connection.fetchval(left) == 0

        await eventually(are_vacuumed, lambda: holders)
    wrong: dict[str, str] = {}
    for name, (index, types, values) in HOT.items():
        plan = await explain(connection, name, types, values)
        unwanted = [f"Seq Scan on {table} " for table in ("run", "waiting", "history_succeeded")]
        needed = [index]
        if name in ("claim_hinted", "hints_of"):
            unwanted.append("run_ready")
        if name.startswith("settle"):
            unwanted.append("run_held")
            needed.append("Index Cond: (id = ANY")
        if any(part in plan for part in unwanted) or not all(part in plan for part in needed):
            wrong[name] = plan
    assert list(wrong) == [], "\n\n".join(f"{name}\n{plan}" for name, plan in wrong.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("let_go", "bigint[]"),
        ("settled_before", "uuid[], bigint[], smallint[]"),
        ("stuck_gates", "int"),
        ("stuck_delays", "int"),
        ("events", "text, int"),
        ("facts_of", "uuid[], bigint, int"),
        ("release_children", "uuid[]"),
    ],
)
@pytest.mark.parametrize("analysed", [False, True], ids=["new", "analysed"])
async def test_a_plan_for_empty_tables_suits_full_ones(
    connection: asyncpg.Connection, name: str, types: str, analysed: bool
) -> None:
    if analysed:
        await connection.execute("ANALYZE")
    values = ", ".join("'{}'" if kind.endswith("[]") else "'1'" for kind in types.split(", "))
    plan = await explain(connection, name, types, values)
    assert "hashed SubPlan" not in plan, plan
    for table in ("run", "waiting", "schedule", "outbox", "attempt"):
        assert f"Seq Scan on {table} " not in plan, plan


@pytest.mark.slow
async def test_a_catch_up_of_many_ticks_is_no_nested_loop(connection: asyncpg.Connection) -> None:
    kinds = dict(re.findall(r"\$(\d+)::(\w+(?:\[\])?)", STATEMENTS["fire"].text))
    types = [kinds.get(str(number), "bigint") for number in range(1, max(map(int, kinds)) + 1)]
    values = ", ".join("'{}'" if kind.endswith("[]") else "'1'" for kind in types)
    plan = await explain(connection, "fire", ", ".join(types), values)
    assert "hashed SubPlan" in plan.split("CTE made")[1].split("CTE queued")[0], plan


# Lists


@pytest.mark.slow
async def test_a_page_of_a_filter_without_an_index_reads_a_limited_number_of_rows(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "_MOST_EXAMINED", 8)
    monkeypatch.setattr(catalog, "_CHUNK", 2)
    old = [a_run(task="rare") for _ in range(2)]
    await store.submit(old)
    for part in range(3):
        await store.submit([a_run(tenant="acme" if part == 1 else "default") for _ in range(4)])
    rare = RunFilter(tenant="default", text="rare")
    first = await store.list_runs(rare, None, 10)
    assert first.items == []
    assert first.after is not None
    found: list[RunId] = []
    after: str | None = first.after
    while after is not None:
        page = await store.list_runs(rare, RunId(after), 10)
        found += [view.id for view in page.items]
        after = page.after
    assert found == [run.id for run in reversed(old)]
    assert await store.count_runs(rare, 10) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runs", "indexes"),
    [
        (RunFilter(tenant="default"), ["run_pkey", "waiting_tenant", "tenant_id_idx"]),
        (RunFilter(tenant=None), ["run_pkey", "waiting_pkey"]),
        (RunFilter(tenant="default", tag="x"), ["tenant_label_id_idx"]),
        (RunFilter(tenant=None, tag="x"), ["tenant_label_id_idx"]),
        (RunFilter(tenant="default", dead=True), ["dead_letter_tenant"]),
        (RunFilter(tenant=None, fingerprint="f"), ["dead_letter_kind"]),
        (RunFilter(tenant="default", job=JobId("0" * 32)), ["run_job", "waiting_job", "job_id_id_idx"]),
    ],
)
async def test_a_list_uses_an_index(
    store: PostgresStore, connection: asyncpg.Connection, runs: RunFilter, indexes: list[str]
) -> None:
    # The text of the statement depends on the filter, and only this private method builds it.
    sources = await store._sources(runs)
    await prepare_connection(connection)
    statement = f"EXPLAIN SELECT * FROM ({sources.found}) AS found ORDER BY id DESC LIMIT $3"
    rows = await connection.fetch(statement, *sources.arguments(sources.below, 100))
    plan = "\n".join(row[0] for row in rows)
    assert "Seq Scan" not in plan, plan
    for index in indexes:
        assert index in plan, plan
