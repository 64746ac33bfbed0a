"""Query plans on PostgreSQL: hot statements and lists use their indexes, with any statistics."""

import re
from collections.abc import AsyncIterator, Mapping
from importlib.resources import files

import asyncpg
import pytest

from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.ports.storage.catalog import RunFilter
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.database import PACKAGE, SESSION, load_statements, prepare_connection
from mainspring.stores.postgres.records import run_lists
from tests.support.builders import a_run
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres

#: Every statement of the store by its name.
STATEMENTS = load_statements(
    "mainspring",
    tuple(file.name.removesuffix(".sql") for file in files(PACKAGE).joinpath("queries").iterdir()),
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


async def explain(connection: asyncpg.Connection, name: str, parameters: Mapping[str, str]) -> str:
    """Return the plan of a statement. ``parameters``: type and value by name."""
    statement = STATEMENTS[name]
    assert parameters.keys() == set(statement.parameters)
    types, values = zip(*(parameters[parameter].split(" ", 1) for parameter in statement.parameters), strict=True)
    await connection.execute(f"PREPARE {name} ({', '.join(types)}) AS {statement.text}")
    return "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN EXECUTE {name}({', '.join(values)})"))


#: Statement → the index that its plan must have, and its parameters: type and value.
HOT = {
    "claim": (
        "run_ready",
        {
            "session": "bigint 1",
            "claim": "int 1",
            "queues": "int[] '{1}'",
            "limits": "int[] '{500}'",
            "start_ranks": "bigint[] '{0}'",
        },
    ),
    "lowest_ranks": ("run_ready", {"queues": "int[] '{1}'"}),
    "claim_hinted": (
        "run_pkey",
        {"session": "bigint 1", "claim": "int 1", "queues": "int[] '{1}'", "runs": "uuid[] '{}'"},
    ),
    "hints": ("run_pkey", {"runs": "uuid[] '{}'"}),
    "hints_ready": ("run_ready", {"queues": "text[] NULL", "limit": "int 1000"}),
    "claim_from_groups": (
        "run_ready",
        {"session": "bigint 1", "claim": "int 1", "queues": "int[] '{1}'", "limits": "int[] '{500}'"},
    ),
    "best_runs": (
        "run_ready",
        {
            "queue": "int 1",
            "tenant": "int NULL",
            "excluded_tenants": "int[] '{}'",
            "excluded_runs": "uuid[] '{}'",
            "limit": "int 10",
            "claim_group": "int 0",
        },
    ),
    "running_by_tenant": ("run_held", {"tenants": "int[] '{1}'"}),
    "running_in_queue": ("run_held", {"queue": "int 1"}),
    "active_claim_groups": ("run_ready", {"queue": "int 1"}),
    "queue_fronts": ("run_ready", {"limit": "int 100"}),
    "move_to_claim_groups": (
        "run_ready",
        {
            "queue": "int 1",
            "claim_groups": "int[] '{0}'",
            "bases": "int[] '{0}'",
            "limit": "int 1000",
            "fair": "boolean true",
            "pooled": "boolean true",
        },
    ),
    "best_of_claim_groups": (
        "run_ready",
        {
            "queue": "int 1",
            "claim_groups": "int[] '{0}'",
            "limits": "int[] '{10}'",
            "tenant": "int NULL",
            "excluded_tenants": "int[] '{}'",
            "excluded_runs": "uuid[] '{}'",
            "weighted": "boolean true",
            "priority": "int NULL",
        },
    ),
    "complete_succeeded": (
        "run_pkey",
        {
            "runs": "uuid[] '{}'",
            "fences": "bigint[] '{}'",
            "results": "bytea[] '{}'",
            "cpu": "bigint[] NULL",
            "units": "text[] NULL",
        },
    ),
    "complete_others": (
        "run_pkey",
        {
            "runs": "uuid[] '{}'",
            "fences": "bigint[] '{}'",
            "outcomes": "smallint[] '{}'",
            "states": "smallint[] '{}'",
            "reasons": "text[] '{}'",
            "delays": "bigint[] '{}'",
            "errors": "text[] '{}'",
            "results": "bytea[] '{}'",
            "fingerprints": "text[] '{}'",
            "cpu": "bigint[] NULL",
            "units": "text[] NULL",
        },
    ),
    "stage": ("waiting_due", {"owner": "bigint 1", "shards": "smallint[] '{0,1,2,3}'", "limit": "int 1000"}),
    "due_jobs": ("schedule_due", {"shards": "smallint[] '{0,1,2,3}'", "until": "bigint 1", "limit": "int 500"}),
    "recorded_ticks": (
        "Index Cond: ((job_id = t.job_id)",
        {"jobs": "uuid[] '{}'", "times": "bigint[] '{}'", "targets": "text[] '{}'"},
    ),
    "upcoming": ("waiting_due", {"shards": "smallint[] '{0,1,2,3}'", "until": "bigint 1", "limit": "int 500"}),
    "heartbeat": (
        "run_held",
        {
            "session": "bigint 1",
            "ttl": "bigint 1",
            "held": "uuid[] '{}'",
            "pending": "int[] '{}'",
            "last_claim": "int 1",
        },
    ),
    "lock_limiters": ("limiter_pkey", {"numbers": "bigint[] '{1}'", "peeks": "int[] '{1}'"}),
    "runs_blocked_by_limiters": (
        "waiting_limit",
        {"numbers": "bigint[] '{1}'", "limits": "int[] '{3}'", "seen": "uuid[] '{}'"},
    ),
    "save_limiters": (
        "waiting_limit",
        {
            "number": "bigint[] '{1}'",
            "used": "int[] '{1}'",
            "times": "text[] '{NULL}'",
            "open_until": "bigint[] '{NULL}'",
            "forget_at": "bigint[] '{0}'",
            "recalls": "boolean[] '{false}'",
            "wake_at": "bigint[] '{NULL}'",
        },
    ),
    "due_limiters": ("limiter_wake", {"limit": "int 100"}),
    "runs_queued_behind_breakers": ("run_breaker", {"breakers": "bigint[] '{1}'", "limit": "int 100"}),
    "blocking_limiters": ("waiting_limit", {"after": "bigint -1", "limit": "int 1000"}),
    "limiters_with_wrong_counts": ("run_limited", {"limit": "int 1000"}),
    "undecided_children": ("waiting_p", {"after": "uuid '00000000-0000-0000-0000-000000000000'", "limit": "int 1000"}),
    "decide_edges": ("edge_undecided", {"parents": "uuid[] '{}'", "states": "smallint[] '{}'", "limit": "int 100"}),
    "lock_children": ("waiting_p", {"children": "uuid[] '{}'"}),
    "release_children": ("waiting_pkey", {"children": "uuid[] '{}'"}),
    "skip_runs": ("waiting_pkey", {"runs": "uuid[] '{}'", "reasons": "text[] '{}'"}),
    "unique_runs": ("unique_run_pkey", {"tenants": "int[] '{}'", "keys": "bytea[] '{}'"}),
}


async def test_the_server_accepts_every_statement(connection: asyncpg.Connection) -> None:
    wrong = {}
    for name, statement in STATEMENTS.items():
        try:
            await connection.prepare(statement.text)
        except asyncpg.PostgresError as error:
            wrong[name] = str(error)
    assert wrong == {}


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
    for name, (index, parameters) in HOT.items():
        plan = await explain(connection, name, parameters)
        unwanted = [f"Seq Scan on {table} " for table in ("run", "waiting", "history_succeeded")]
        needed = [index]
        if name in ("claim_hinted", "hints_of"):
            unwanted.append("run_ready")
        if name.startswith("complete"):
            unwanted.append("run_held")
            needed.append("Index Cond: (id = ANY")
        if any(part in plan for part in unwanted) or not all(part in plan for part in needed):
            wrong[name] = plan
    assert list(wrong) == [], "\n\n".join(f"{name}\n{plan}" for name, plan in wrong.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("pass_keys_on", {"keys": "bigint[] '{}'"}),
        ("find_completed", {"runs": "uuid[] '{}'", "fences": "bigint[] '{}'", "outcomes": "smallint[] '{}'"}),
        ("stuck_ordering_keys", {"limit": "int '1'"}),
        ("stuck_delays", {"limit": "int '1'"}),
        ("events", {"reader": "text '1'", "limit": "int '1'"}),
        ("event_facts", {"runs": "uuid[] '{}'", "since": "bigint '1'", "max_error": "int '1'"}),
        ("release_children", {"children": "uuid[] '{}'"}),
    ],
)
@pytest.mark.parametrize("analysed", [False, True], ids=["new", "analysed"])
async def test_a_plan_for_empty_tables_suits_full_ones(
    connection: asyncpg.Connection, name: str, parameters: dict[str, str], analysed: bool
) -> None:
    if analysed:
        await connection.execute("ANALYZE")
    plan = await explain(connection, name, parameters)
    assert "hashed SubPlan" not in plan, plan
    for table in ("run", "waiting", "schedule", "outbox", "attempt"):
        assert f"Seq Scan on {table} " not in plan, plan


@pytest.mark.slow
async def test_a_catch_up_of_many_ticks_is_no_nested_loop(connection: asyncpg.Connection) -> None:
    statement = STATEMENTS["fire"]
    types = dict(re.findall(r"(?<!:):([a-z_]+)::(\w+(?:\[\])?)", statement.source))
    kinds = {name: types.get(name, "bigint") for name in statement.parameters}
    values = {name: f"{kind} '{{}}'" if kind.endswith("[]") else f"{kind} '1'" for name, kind in kinds.items()}
    plan = await explain(connection, "fire", values)
    assert "hashed SubPlan" in plan.split("CTE made")[1].split("CTE queued")[0], plan


# Lists


@pytest.mark.slow
async def test_a_page_of_a_filter_without_an_index_reads_a_limited_number_of_rows(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lists, "_MOST_EXAMINED", 8)
    monkeypatch.setattr(run_lists, "_CHUNK", 2)
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


async def test_one_read_looks_into_the_bodies_of_one_statement_only(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A search checks its time between reads, and 5,000 bodies that are not in memory took up to two seconds.
    for name in ("_CHUNK", "_LARGEST_STEP", "_MOST_EXAMINED"):
        monkeypatch.setattr(run_lists, name, getattr(run_lists, name) // 100)
    runs = [a_run() for _ in range(100)]
    await store.submit([a_run(queue="other", tenant="acme"), *runs])
    by_text = await store.list_runs(RunFilter(tenant="default", text="rare"), None, 10)
    by_queue = await store.list_runs(RunFilter(tenant="default", queue="other"), None, 10)
    assert (by_text.items, by_text.after) == ([], runs[-10].id)
    assert (by_queue.items, by_queue.after) == ([], None)


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
