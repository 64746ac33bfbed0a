"""Row-level security: the role that reads for users sees the rows of one tenant, with any query."""

import asyncio
import random
import re
import uuid
from collections.abc import AsyncIterator

import asyncpg
import pytest

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import JobId
from mainspring.core.ports.storage.catalog import RunFilter
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.database import SESSION, Connection
from mainspring.stores.postgres.records.catalog import CatalogMixin
from mainspring.stores.postgres.row_security import GUARDED, SHARED
from mainspring.stores.postgres.tenant_scope import PostgresTenantScope
from mainspring.stores.statements import Statement
from tests.support.builders import a_run
from tests.support.databases import as_administrator, create_database, drop_database, with_database, with_user
from tests.support.store_harness import PostgresHarness
from tests.support.tenant_objects import TenantObjects, two_tenants

pytestmark = pytest.mark.postgres

_TABLES = """
SELECT c.relname AS name, c.relrowsecurity AS guarded,
       (SELECT count(*) FROM pg_policy p WHERE p.polrelid = c.oid AND p.polcmd = 'r') AS policies,
       (SELECT count(*) FROM pg_policy p WHERE p.polrelid = c.oid AND p.polcmd <> 'r') AS other_policies,
       ARRAY(SELECT a.attname::text FROM pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS columns,
       ARRAY(SELECT a.attname::text FROM pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
               AND has_column_privilege($1, c.oid, a.attnum, 'SELECT')) AS readable,
       has_table_privilege($1, c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
           OR has_any_column_privilege($1, c.oid, 'INSERT, UPDATE, REFERENCES') AS writable
FROM pg_class c WHERE c.relnamespace = 'mainspring'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
"""


@pytest.fixture
async def harness(postgres_database: str) -> AsyncIterator[PostgresHarness]:
    await PostgresHarness.prepare(postgres_database)
    harness = PostgresHarness(postgres_database)
    await harness.open()
    yield harness
    await harness.close()


@pytest.fixture
async def owner(harness: PostgresHarness, postgres_database: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_database, server_settings={"search_path": "mainspring"})
    yield connection
    await connection.close()


@pytest.fixture
async def reader(owner: asyncpg.Connection, postgres_database: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection with the role of the API and no tenant scope."""
    settings = SESSION | {"search_path": "mainspring", "role": await read_role(owner)}
    connection = await asyncpg.connect(postgres_database, server_settings=settings)
    yield connection
    await connection.close()


async def read_role(connection: asyncpg.Connection) -> str:
    role: str = await connection.fetchval("""
        SELECT format('mainspring_reader_%s_%s', d.oid, 'mainspring'::regnamespace::oid)
        FROM pg_database d WHERE d.datname = current_database()
    """)
    return role


async def set_tenant(reader: asyncpg.Connection, number: int, name: str) -> None:
    await reader.execute("SELECT set_config('mainspring.tenant', $1, false)", str(number))
    await reader.execute("SELECT set_config('mainspring.tenant_name', $1, false)", name)


async def read_number(owner: asyncpg.Connection, tenant: str) -> int:
    number: int = await owner.fetchval("SELECT id FROM name WHERE kind = 1 AND name = $1", tenant)
    return number


# Permissions of the role


async def test_every_table_with_a_tenant_and_every_readable_table_has_a_policy(
    owner: asyncpg.Connection, reader: asyncpg.Connection
) -> None:
    """Fails for a table of a later migration without a policy."""
    role = await read_role(owner)
    tables = [row for row in await owner.fetch(_TABLES, role) if row["name"] not in ("test_clock", "state_change")]
    parents = [row for row in tables if not re.search(r"_d\d+$", row["name"])]
    of_tenants = {row["name"] for row in parents if {"tenant", "number"} & set(row["columns"])} - {
        # Partitions are only read through their parents.
        *("history_succeeded", "history_unsuccessful", "history_short", "history_long", "history_audit"),
        *("body_kept", "body_forever", "label_kept"),
        # These have a column ``number`` of another meaning.
        *("attempt", "limiter", "server", "departed"),
    }
    guarded = {row["name"] for row in parents if row["guarded"] and row["policies"] and not row["other_policies"]}
    assert of_tenants | {"attempt"} == guarded
    readable = {row["name"]: tuple(row["readable"]) for row in tables if row["readable"]}
    assert {name for name, columns in readable.items() if name not in SHARED} == set(GUARDED)
    assert {name: columns for name, columns in readable.items() if name in SHARED} == SHARED
    assert set(GUARDED) <= guarded
    assert [row["name"] for row in tables if row["writable"]] == []


async def keep_some(owner: asyncpg.Connection) -> None:
    """Copy rows as retention does for runs that are kept longer."""
    for table in ("attempt", "ledger", "log"):
        await owner.execute(f"DELETE FROM {table}_kept; INSERT INTO {table}_kept SELECT * FROM {table}")


async def test_without_a_tenant_scope_the_role_sees_no_rows(
    harness: PostgresHarness, owner: asyncpg.Connection, reader: asyncpg.Connection
) -> None:
    await two_tenants(harness)
    await keep_some(owner)
    for table in GUARDED:
        assert await owner.fetchval(f"SELECT count(*) FROM {table}") > 0, f"{table} is empty: this proves nothing"
        assert await reader.fetchval(f"SELECT count(*) FROM {table}") == 0, table
    await set_tenant(reader, 0, "")
    for table in GUARDED:
        assert await reader.fetchval(f"SELECT count(*) FROM {table} WHERE '{table}' <> 'pause'") == 0, table


async def test_with_a_tenant_scope_the_role_sees_the_rows_of_that_tenant(
    harness: PostgresHarness, owner: asyncpg.Connection, reader: asyncpg.Connection
) -> None:
    tenants = await two_tenants(harness)
    await keep_some(owner)
    for objects in tenants:
        number = await read_number(owner, objects.tenant)
        await set_tenant(reader, number, objects.tenant)
        for table in GUARDED:
            seen = await reader.fetch(f"SELECT tenant, count(*) FROM {table} GROUP BY tenant")
            known = await owner.fetch(f"SELECT tenant, count(*) FROM {table} GROUP BY tenant")
            mine = [row for row in known if row["tenant"] in (number, objects.tenant)]
            assert seen == mine, table
            assert len(mine) == 1, table


async def test_the_role_writes_no_table_and_reads_no_other_table(
    owner: asyncpg.Connection, reader: asyncpg.Connection
) -> None:
    role = await read_role(owner)
    await set_tenant(reader, 1, "default")
    for row in await owner.fetch(_TABLES, role):
        table, columns = row["name"], ", ".join(row["columns"])
        column = row["columns"][0]
        forbidden = [
            f"INSERT INTO {table} DEFAULT VALUES",
            f"UPDATE {table} SET {column} = DEFAULT",
            f"DELETE FROM {table}",
            f"TRUNCATE {table}",
            f"SELECT * FROM {table} FOR UPDATE",
        ]
        # The role may read the clock of the tests, which now_us() uses.
        if table not in (*GUARDED, "test_clock") and SHARED.get(table) != tuple(row["columns"]):
            forbidden.append(f"SELECT {columns} FROM {table}")
        for statement in forbidden:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await reader.execute(statement)
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await reader.execute("CREATE TABLE mainspring.mine (id int)")
    # A reset leads back to the role that the connection began with, which is this role.
    await reader.execute("RESET ROLE")
    assert await reader.fetchval("SELECT current_user") == role


async def test_a_query_without_a_tenant_condition_returns_rows_of_its_tenant_only(harness: PostgresHarness) -> None:
    mine, theirs = await two_tenants(harness)
    number = await read_number(harness._connection, mine.tenant)

    async def forgetful(connection: Connection) -> set[int]:
        tables = ("run", "waiting", "history", "body", "log", "job", "job_version")
        union = " UNION ".join(f"SELECT tenant FROM mainspring.{table}" for table in tables)
        return {row["tenant"] for row in await connection.fetch(union)}

    assert len(await harness.store._db.run(forgetful)) == 2
    assert await _scope_to_tenant(harness.store, mine.tenant)._db.run(forgetful) == {number}
    assert await _scope_to_tenant(harness.store, mine.tenant)._db.transaction(forgetful) == {number}
    assert await _scope_to_tenant(harness.store, "nobody")._db.run(forgetful) == set()
    # The queries name the tenant as well: without RLS they return no rows of other tenants, either.
    seen = _scope_to_tenant(harness.store, mine.tenant)
    seen._db = harness.store._db
    assert await seen.runs(theirs.runs) == [None] * len(theirs.runs)
    assert await seen.log(theirs.runs[2], 0, 10) == []
    assert await seen.versions(theirs.job) == []


@pytest.mark.slow
async def test_a_tenant_scope_never_leaks_to_another_caller(harness: PostgresHarness) -> None:
    """Callers share few connections, and some are cancelled in the middle of a query."""
    mine, theirs = await two_tenants(harness)
    numbers = {one.tenant: await read_number(harness._connection, one.tenant) for one in (mine, theirs)}
    rng = random.Random(5)
    answered = 0

    async def look(connection: Connection) -> set[int]:
        rows = await connection.fetch("SELECT tenant, pg_sleep(0.002) FROM mainspring.run")
        return {row["tenant"] for row in rows}

    async def ask(objects: TenantObjects, turns: int | None) -> None:
        """``turns``: of the event loop, after which the caller is cancelled."""
        nonlocal answered
        asking = asyncio.create_task(_scope_to_tenant(harness.store, objects.tenant)._db.run(look))
        for _ in range(turns or 0):
            await asyncio.sleep(0)
        if turns is not None:
            asking.cancel()
        try:
            assert await asking == {numbers[objects.tenant]}
            answered += 1
        except asyncio.CancelledError:
            assert turns is not None

    for _ in range(10):
        await asyncio.gather(
            *(ask(rng.choice((mine, theirs)), rng.choice((None, rng.randrange(200)))) for _ in range(20))
        )
    assert answered > 50


def _scope_to_tenant(store: PostgresStore, tenant: str) -> PostgresTenantScope:
    seen = store.seen_by(tenant)
    assert isinstance(seen, PostgresTenantScope)
    return seen


# Creation of the role
@pytest.fixture
async def administrator(postgres_database: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(as_administrator(postgres_database))
    yield connection
    await connection.close()


@pytest.fixture
async def builder(postgres_dsn: str) -> AsyncIterator[str]:
    """The name of a role that may create roles."""
    name = f"builder_{uuid.uuid4().hex}"
    connection = await asyncpg.connect(as_administrator(postgres_dsn))
    await connection.execute(f"CREATE ROLE {name} LOGIN CREATEDB CREATEROLE")
    yield name
    await connection.execute(f"DROP ROLE {name}")
    await connection.close()


async def test_a_store_that_may_not_create_roles_logs_the_statements_and_works_without_rls(
    postgres_database: str, administrator: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    store = PostgresStore(postgres_database, shards=4)
    await store.open()
    try:
        assert not warnings_in(caplog), "schedulers and workers do not need the role"
        mine, theirs = a_run(tenant="acme"), a_run(tenant="zeta")
        await store.submit([mine, theirs])
        for _ in range(3):
            [found, foreign] = await store.seen_by("acme").runs([mine.id, theirs.id])
            assert found is not None
            assert foreign is None
        assert len((await store.seen_by("acme").list_runs(RunFilter(tenant=None), None, 10)).items) == 1
        assert await read_user(_scope_to_tenant(store, "acme")) == "mainspring"
    finally:
        await store.close()
    [warning] = warnings_in(caplog)
    statements = warning.partition("statements='")[2].removesuffix("'")
    assert statements.startswith("CREATE ROLE mainspring_reader_")
    await administrator.execute(statements)
    caplog.clear()
    again = PostgresStore(postgres_database, shards=4)
    await again.open()
    try:
        assert (await read_user(_scope_to_tenant(again, "acme"))).startswith("mainspring_reader_")
        assert (await again.seen_by("acme").runs([mine.id, theirs.id]))[1] is None
        assert await read_user(again) == "mainspring"
    finally:
        await again.close()
    assert not warnings_in(caplog)


async def test_a_store_that_may_create_roles_has_rls_after_the_migration(
    postgres_dsn: str, builder: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"walled_{uuid.uuid4().hex}"
    dsn = with_database(with_user(postgres_dsn, builder), name)
    await create_database(with_user(postgres_dsn, builder), name)
    try:
        stores = [PostgresStore(dsn, shards=4, schema=schema) for schema in ("mainspring", "mainspring", "other")]
        await asyncio.gather(*(store.open() for store in stores))
        connection = await asyncpg.connect(dsn)
        roles = [
            row["rolname"]
            for row in await connection.fetch("""
                SELECT r.rolname, r.rolcanlogin FROM pg_roles r, pg_database d
                WHERE d.datname = current_database() AND r.rolname LIKE 'mainspring_reader_' || d.oid || '%'
            """)
        ]
        await connection.close()
        users = await asyncio.gather(*(read_user(_scope_to_tenant(store, "acme")) for store in stores))
        await asyncio.gather(*(store.close() for store in stores))
        # Each schema has its own role, because roles belong to the whole server.
        assert sorted(roles) == sorted(set(users))
        assert len(roles) == 2
        assert not warnings_in(caplog)
    finally:
        await drop_database(with_user(postgres_dsn, builder), name)


async def test_a_role_that_bypasses_rls_is_not_used(
    harness: PostgresHarness, owner: asyncpg.Connection, administrator: asyncpg.Connection
) -> None:
    role = await read_role(owner)
    for above, below in (
        (f"ALTER ROLE {role} BYPASSRLS", f"ALTER ROLE {role} NOSUPERUSER NOBYPASSRLS"),
        (f"ALTER ROLE {role} SUPERUSER", f"ALTER ROLE {role} NOSUPERUSER NOBYPASSRLS"),
    ):
        await administrator.execute(above)
        assert below in await harness.store._reader_role.build()
        await administrator.execute(below)
    assert await harness.store._reader_role.build() == []


async def test_a_store_whose_own_role_is_bound_by_rls_does_not_open(
    harness: PostgresHarness, postgres_database: str, administrator: asyncpg.Connection, builder: str
) -> None:
    """A role that does not own the tables would see no runs, and report no error."""
    await administrator.execute(
        f"GRANT USAGE ON SCHEMA mainspring TO {builder}; GRANT ALL ON ALL TABLES IN SCHEMA mainspring TO {builder}"
    )
    with pytest.raises(Invalid, match="row-level security binds this role"):
        await PostgresStore(with_user(postgres_database, builder), shards=4).open()
    await administrator.execute(f"DROP OWNED BY {builder}")


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "row-level security" in record.getMessage()]


async def read_user(store: CatalogMixin) -> str:
    async def ask(connection: Connection) -> str:
        user: str = await connection.fetchval("SELECT current_user")
        return user

    return await store._db.run(ask)


# Plans

#: Lists, and the index conditions that their plans must have.
_LISTS = {
    RunFilter(tenant="acme"): ["(tenant = $4) AND (id >= $1) AND (id < $2)"],
    RunFilter(tenant="acme", job=JobId("0" * 32)): ["(job_id = $5) AND (id >= $1) AND (id < $2)"],
    RunFilter(tenant="acme", tag="red"): ["(tenant = $4) AND (label = $5) AND (id >= $1) AND (id < $2)"],
    RunFilter(tenant="acme", dead=True): ["(tenant = $4) AND (run_id >= $1) AND (run_id < $2)"],
    RunFilter(tenant="acme", fingerprint="f"): ["(fingerprint = $5) AND (run_id >= $1) AND (run_id < $2)"],
}
_ONE = "00000000-0000-0000-0000-000000000001"
_BY_NAME = {
    "runs": (
        {"runs": f"'{{{_ONE}}}'", "payloads": "true", "results": "true", "tenant": "1"},
        ["(id = ANY (:runs))", *(f"AND (id = CASE WHEN ({row}.body_id IS NULL)" for row in "rwh")],
    ),
    "jobs": (
        {"jobs": f"'{{{_ONE}}}'", "tenant": "1"},
        ["(id = ANY (:jobs))", "(job_id = j.id)", "(job_id = "],
    ),
    "bodies": ({"bodies": f"'{{{_ONE}}}'", "tenant": "1"}, ["(bucket = 0) AND (id = ANY (:bodies))"]),
    "list_jobs": (
        {"tenant": "1", "below": "'ffffffff-ffff-ffff-ffff-ffffffffffff'", "first": f"'{_ONE}'", "limit": "100"},
        ["(tenant = :tenant) AND (id < :below) AND (id >= :first)", "(job_id = "],
    ),
    "attempts": ({"run": f"'{_ONE}'", "tenant": "1"}, ["(run_id = :run)"]),
    "ledger": (
        {"job": f"'{_ONE}'", "since": "0", "until": str(2**62), "limit": "100", "tenant": "1"},
        ["(job_id = :job) AND (scheduled_at >= :since) AND (scheduled_at < :until)"],
    ),
    "versions": (
        {"job": f"'{_ONE}'", "tenant": "1", "below": "9", "limit": "10"},
        ["(job_id = :job) AND (version < :below)"],
    ),
    "log": (
        {"run": f"'{_ONE}'", "after": "0", "limit": "100", "tenant": "1"},
        ['(run_id = :run) AND ("position" > :after)'],
    ),
    "minutes": (
        {"tenant": "1", "since": "0", "until": "1", "step": "60000000"},
        ["(at >= :since) AND (at < :until)"],
    ),
}


@pytest.mark.parametrize("tables", ["empty", "full"])
async def test_queries_of_users_use_indexes_under_rls(
    harness: PostgresHarness, owner: asyncpg.Connection, reader: asyncpg.Connection, tables: str
) -> None:
    """Under RLS only leakproof expressions may be index conditions; coalesce() is none."""
    await harness.submit(a_run(tenant="acme"), a_run(tenant="zeta"))
    acme = await read_number(owner, "acme")
    if tables == "full":
        await _fill(owner, acme, await read_number(owner, "zeta"))
    statements: list[tuple[str, str, list[str]]] = []
    for name, (parameters, named) in _BY_NAME.items():
        statement = harness.store._db.sql[name]
        needed = [_number_parameters(condition, statement) for condition in named]
        statements.append(
            (statement.text, ", ".join(parameters[parameter] for parameter in statement.parameters), needed)
        )
    for wanted, needed in _LISTS.items():
        sources = await harness.store._sources(wanted)
        arguments = sources.arguments("f" * 32, 50)
        values = ", ".join(repr(value) if isinstance(value, str) else str(value) for value in arguments)
        statements.append((f"SELECT * FROM ({sources.found}) AS found ORDER BY id DESC LIMIT $3", values, needed))
    await reader.execute("SET plan_cache_mode = force_generic_plan")
    await set_tenant(reader, acme, "acme")
    for text, values, needed in statements:
        await reader.execute(f"PREPARE look AS {text}")
        plan = "\n".join(row[0] for row in await reader.fetch(f"EXPLAIN EXECUTE look({values})"))
        await reader.execute("DEALLOCATE look")
        assert "InitPlan" in plan, f"there is no policy in this\n{plan}"
        assert "Seq Scan on" not in plan, plan
        conditions = "\n".join(re.findall("Index Cond: .*", plan))
        for condition in needed:
            assert condition in conditions, f"{condition} is missing\n{plan}"


def _number_parameters(condition: str, statement: Statement) -> str:
    return re.sub(r":(\w+)", lambda match: f"${statement.parameters.index(match[1]) + 1}", condition)


async def _fill(owner: asyncpg.Connection, acme: int, zeta: int) -> None:
    await owner.execute(f"""
        INSERT INTO run (id, shard, state, priority, attempt, lost, tenant, queue, body_bucket, rank, due, created_at,
                         timeout, job_id)
        SELECT gen_random_uuid(), 0, 3, 5, 0, 0, CASE WHEN i % 10 = 0 THEN {acme} ELSE {zeta} END, 1, 0, i, 0, 0, 1,
               CASE WHEN i % 2 = 0 THEN gen_random_uuid() END
        FROM generate_series(1, 5000) i;
        INSERT INTO waiting (id, shard, state, priority, attempt, lost, tenant, queue, body_bucket, due, created_at,
                             timeout)
        SELECT id, shard, 1, priority, 0, 0, tenant, queue, 0, 0, 0, 1 FROM run;
        INSERT INTO history (id, class, state, priority, attempt, lost, origin, tenant, queue, body_bucket, finished_at,
                             due, created_at, fence, job_id)
        SELECT gen_random_uuid(), 1 + i % 2, 5 + i % 2, 5, 1, 0, 1, CASE WHEN i % 10 = 0 THEN {acme} ELSE {zeta} END, 1,
               0, now_us(), 0, 0, 1, CASE WHEN i % 2 = 0 THEN gen_random_uuid() END
        FROM generate_series(1, 5000) i;
        INSERT INTO body (bucket, id, task, payload, tenant)
        SELECT b.bucket, gen_random_uuid(), 1, 'null', {acme}
        FROM generate_series(1, 5000) i, LATERAL (VALUES (-1), (0), ((now_us() / 86400000000)::int)) AS b(bucket);
        INSERT INTO job (id, tenant, name, version, state, created_at, updated_at)
        SELECT gen_random_uuid(), CASE WHEN i % 10 = 0 THEN {acme} ELSE {zeta} END, 'job ' || i, 1, 1, 0, 0
        FROM generate_series(1, 5000) i;
        INSERT INTO job_version (job_id, version, spec, made_at, tenant) SELECT id, 1, '{{}}', 0, tenant FROM job;
        INSERT INTO schedule (job_id, shard, next_fire, tenant) SELECT id, 0, 1, tenant FROM job;
        ANALYZE;
    """)
