"""Jobs that commit or roll back with the data of the application, and runs that complete with its commit."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine

from mainspring import Conflict, Invalid, Mainspring, NotFound, RunFailed, transaction
from mainspring.config.node import Node, Role
from mainspring.core.model.access.access import Quotas, Tenant
from mainspring.core.model.base.ids import decode_shard, is_id, made_at
from mainspring.core.model.base.instant import DAY, HOUR, SECOND, from_datetime
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import RunFilter
from mainspring.sdk.task import Task
from tests.support.databases import (
    as_administrator,
    create_database,
    drop_database,
    migrated_template,
    with_database,
    with_user,
)
from tests.support.drivers import DRIVERS, driver
from tests.support.waiting import eventually

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


class Site:
    """An application and its node on PostgreSQL, with a table of the application in the same database."""

    node: Node

    def __init__(self, app: Mainspring, dsn: str, connection: asyncpg.Connection) -> None:
        self.app = app
        self.dsn = dsn
        #: For queries of the test, and for changes by others.
        self.connection = connection
        #: The arguments of the task ``note``.
        self.noted: list[int] = []
        self.started = asyncio.Event()
        self.may_finish = asyncio.Event()

    def task(self, name: str) -> Task[..., Any, Any]:
        found = self.app.named(name)
        assert isinstance(found, Task)
        return found

    async def rows(self) -> list[int]:
        return [row["number"] for row in await self.connection.fetch("SELECT number FROM orders ORDER BY number")]

    async def runs(self) -> list[RunView]:
        return list((await (await self.app.runtime()).store.list_runs(RunFilter(tenant="default"), None, 1_000)).items)


@pytest.fixture
async def postgres_template(postgres_dsn: str) -> str:
    return await migrated_template(postgres_dsn, 100)


@pytest.fixture
async def site(postgres_database: str) -> AsyncIterator[Site]:
    app = Mainspring(postgres_database)
    # The role has the name of our schema, so "$user" would create its tables there.
    connection = await asyncpg.connect(postgres_database, server_settings={"search_path": "public"})
    await connection.execute("CREATE TABLE orders (number integer)")
    site = Site(app, postgres_database, connection)

    @app.task(queue="notes")
    async def note(number: int) -> int:
        site.noted.append(number)
        return number

    @app.task(retries=1)
    async def order(number: int, db: asyncpg.Connection = transaction()) -> int:
        await db.execute("INSERT INTO orders VALUES ($1)", number)
        return number

    @app.task(retries=0)
    async def faulty(number: int, how: str, db: asyncpg.Connection = transaction()) -> str:
        await db.execute("INSERT INTO orders VALUES ($1)", number)
        site.started.set()
        match how:
            case "raise":
                raise ValueError("out of stock")
            case "commit":
                await db.execute("COMMIT")
            case "swallow":
                with pytest.raises(asyncpg.UndefinedTableError):
                    await db.execute("SELECT * FROM nowhere")
            case "wait":
                await site.may_finish.wait()
            case _:
                return "x" * 100_000
        return how

    node = site.node = Node(app.settings(), {Role.SCHEDULER, Role.WORKER}, app, None)
    await node.runtime.open()
    app.use(node.runtime)
    await node.start()
    yield site
    site.may_finish.set()
    await app.close()
    await node.stop()
    await node.runtime.close()
    await connection.close()


@pytest.mark.parametrize("name", DRIVERS)
async def test_a_job_commits_and_rolls_back_with_the_data(site: Site, name: str) -> None:
    async with driver(name, site.dsn) as mine:
        await mine.execute("INSERT INTO orders VALUES (1)")
        handle = await mine.submit(site.task("note"), 1)
        assert handle.new
        assert handle.state is RunState.QUEUED
        with pytest.raises(NotFound):
            await site.app.handle(handle.id).view()
        await mine.rollback()
        if name.startswith("asyncpg"):
            await mine.execute("BEGIN")
        await mine.execute("INSERT INTO orders VALUES (2)")
        handle = await mine.submit(site.task("note"), 2)
        await mine.execute("SAVEPOINT before")
        gone = await mine.submit(site.task("note"), 3)
        await mine.execute("ROLLBACK TO before")
        many = await mine.submit_many(site.app, [site.task("note").prepare(number) for number in range(4, 7)])
        await mine.commit()
    assert await site.app.handle(handle.id).result("2m") == 2
    for number, one in enumerate(many, 4):
        assert await site.app.handle(one.id).result("2m") == number
    with pytest.raises(NotFound):
        await site.app.handle(gone.id).view()
    assert sorted(site.noted) == [2, 4, 5, 6]
    assert await site.rows() == [2]


async def test_many_jobs_are_submitted_in_one_transaction_and_in_order(site: Site) -> None:
    async with driver("asyncpg", site.dsn) as mine:
        calls = [site.task("note").options(priority=2).prepare(number) for number in range(2_500)]
        handles = await mine.submit_many(site.app, calls)
        assert [handle.id for handle in handles] == sorted({handle.id for handle in handles})
        assert await mine.submit_many(site.app, []) == []
        await mine.commit()
    await asyncio.gather(*(handle.wait("2m") for handle in handles[::100]))
    assert await handles[-1].result("2m") == 2_499


async def test_a_commit_notifies_the_workers(site: Site) -> None:
    worker = site.node._worker
    assert worker is not None
    # Without polling only a notification makes the worker claim.
    worker._claimer._poll_interval = HOUR
    async with driver("asyncpg", site.dsn) as mine:
        for number in range(10):
            handle = await mine.submit(site.task("note"), number)
            await mine.commit()
            await handle.wait("2m")
            await mine.execute("BEGIN")
        await mine.rollback()
    assert site.noted == list(range(10))


async def test_a_delay_counts_from_the_call_and_not_from_the_start_of_the_transaction(site: Site) -> None:
    async with driver("asyncpg", site.dsn) as mine:
        await mine.execute("SELECT 1")
        [row] = await site.connection.fetch("SELECT now() AS transaction_began, pg_sleep(0.3)")
        soon = await mine.submit(site.task("note").options(delay="200ms"), 1)
        late = await mine.submit(site.task("note").options(delay="2h", name="bill", tags=("a", "b")), 2)
        far = await mine.submit(site.task("note").options(delay="30d"), 3)
        assert soon.state is RunState.SCHEDULED
        await mine.commit()
    assert await soon.result("2m") == 1
    view = await soon.view()
    assert view.due >= view.created_at + SECOND // 5
    assert view.started_at is not None
    assert view.started_at >= view.due
    # The transaction began before this one, which took 0.3 s.
    assert view.created_at >= from_datetime(row["transaction_began"], "now") + 3 * SECOND // 10
    assert (await late.view()).about is not None
    store = (await site.app.runtime()).store
    assert [run.id for run in (await store.list_runs(RunFilter(tenant="default", tag="b"), None, 10)).items] == [
        late.id
    ]
    assert (await far.view()).state is RunState.SCHEDULED
    assert await site.connection.fetchval("SELECT bucket FROM mainspring.body WHERE id = $1", far.id) == -1


async def test_an_open_transaction_does_not_hold_the_key_lock_of_its_submits(site: Site) -> None:
    keyed = site.task("note").options(ordering_key="customer 7")
    before = await keyed.submit(0)
    await before.wait("2m")
    async with driver("asyncpg", site.dsn) as mine:
        handles = [await mine.submit(keyed, number) for number in range(1, 6)]
        # An open transaction does not hold the key lock.
        other = await keyed.submit(99)
        await other.wait("2m")
        handles += await mine.submit_many(site.app, [keyed.prepare(number) for number in range(6, 11)])
        await mine.commit()
    for handle in handles:
        await handle.wait("2m")
    assert site.noted == [0, 99, *range(1, 11)]


async def test_a_unique_key_is_taken_by_the_commit(site: Site) -> None:
    once = site.task("note").options(unique="order 1")
    async with driver("psycopg async", site.dsn) as mine:
        gone = await mine.submit(once, 1)
        await mine.rollback()
        first = await mine.submit(once, 1)
        again = await mine.submit(once, 1)
        assert (first.new, again.new) == (True, False)
        assert again.id == first.id != gone.id
        both = await mine.submit_many(site.app, [site.task("note").options(unique="two").prepare(2)] * 2)
        assert [handle.new for handle in both] == [True, False]
        assert both[0].id == both[1].id
        await mine.commit()
        with pytest.raises(Conflict, match="order 1"):
            await mine.submit(once, 2)
        await mine.rollback()
        later = await mine.submit(once, 1)
        assert (later.id, later.new) == (first.id, False)
    # The key counts for submits without a connection, too.
    assert (await once.submit(1)).id == first.id
    assert await first.result("2m") == 1
    assert site.noted.count(1) == 1


async def test_a_due_time_in_the_past_is_refused_in_a_transaction_too(site: Site) -> None:
    late = site.task("note").options(at=datetime(2020, 1, 1, tzinfo=UTC), connection=site.connection)
    async with site.connection.transaction():
        with pytest.raises(Invalid, match=r"^at: 2020-01-01T00:00:00Z is \d+d\S* in the past"):
            await late.submit(1)
    assert await site.rows() == []


async def test_another_database_role_needs_two_grants_to_submit_and_can_do_no_more(site: Site) -> None:
    role = f"shop_{time.monotonic_ns()}"
    admin = await asyncpg.connect(as_administrator(site.dsn))
    await admin.execute(f"CREATE ROLE {role} LOGIN; GRANT INSERT ON orders TO {role}")
    try:
        connection = await asyncpg.connect(with_user(site.dsn, role))
        task = site.task("note").options(connection=connection)
        for right in ("USAGE ON SCHEMA mainspring", "EXECUTE ON FUNCTION mainspring.submit_runs"):
            with pytest.raises(Invalid, match=r"may not submit .*GRANT USAGE.*GRANT EXECUTE"):
                async with connection.transaction():
                    await task.submit(1)
            await site.connection.execute(f"GRANT {right} TO {role}")
        # Tables in the search path of the role do not shadow ours.
        await connection.execute("CREATE TEMP TABLE run (id uuid); CREATE TEMP TABLE meta (shards int)")
        async with connection.transaction():
            await connection.execute("INSERT INTO orders VALUES (1)")
            handle = await task.submit(1)
        assert await handle.result("2m") == 1
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute("SELECT * FROM mainspring.history")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute("SELECT mainspring.submit('note')")
        await connection.close()
    finally:
        await admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
        await admin.close()


async def test_the_connection_must_be_to_the_store_itself(site: Site, postgres_dsn: str) -> None:
    name = f"test_other_{time.monotonic_ns()}"
    await create_database(postgres_dsn, name)
    other = Mainspring(with_database(postgres_dsn, name))
    try:
        connection = await asyncpg.connect(with_database(postgres_dsn, name))
        for problem in ("has no schema mainspring of this version", "is to another store"):
            with pytest.raises(Invalid, match=problem):
                async with connection.transaction():
                    await site.task("note").options(connection=connection).submit(1)
            await other.runtime()
        await connection.close()
    finally:
        await other.close()
        await drop_database(postgres_dsn, name)


async def test_an_unsupported_or_unsuitable_connection_is_rejected(site: Site, tmp_path: Path) -> None:
    note = site.task("note")
    with pytest.raises(Invalid, match=r"object is none that is supported .*asyncpg.*psycopg.*SQLAlchemy"):
        note.options(connection=object())
    connection = site.connection
    with pytest.raises(Invalid, match="in no transaction"):
        await note.options(connection=connection).submit(1)
    with pytest.raises(Invalid, match="does not block"):
        await asyncio.to_thread(note.options(connection=connection).sync.submit, 1)
    with psycopg.connect(site.dsn) as blocking:
        with pytest.raises(Invalid, match="this one blocks"):
            await note.options(connection=blocking).submit(1)
        blocking.autocommit = True
        with pytest.raises(Invalid, match="in no transaction"):
            await asyncio.to_thread(note.options(connection=blocking).sync.submit, 1)
    async with connection.transaction():
        with pytest.raises(Invalid, match="not the same for all"):
            await site.app.submit_many([note.prepare(1), note.options(connection=connection).prepare(1)])
        with pytest.raises(Invalid, match="at most 262144"):
            await site.app.named("x").options(connection=connection).submit(text="x" * 300_000)
        for app in (
            Mainspring(str(tmp_path / "a.db")),
            Mainspring("memory:"),
            Mainspring.connect("http://127.0.0.1:1"),
        ):
            with pytest.raises(Invalid, match=r"PostgreSQL|API"):
                await app.named("note").options(connection=connection).submit()
            await app.close()
    elsewhere = create_engine("sqlite://")
    with elsewhere.connect() as wrong, pytest.raises(Invalid, match="is to sqlite"):
        await asyncio.to_thread(note.options(connection=wrong).sync.submit, 1)
    elsewhere.dispose()
    assert await site.runs() == []


async def test_sql_and_triggers_can_submit(site: Site) -> None:
    connection = site.connection
    before = time.time()
    run = await connection.fetchval("""SELECT mainspring.submit('note', '{"number": 7}', queue => 'notes')""")
    assert is_id(run)
    assert abs(made_at(run) / SECOND - before) < 60
    assert decode_shard(run) < (await site.app.runtime()).store.shards
    assert await site.app.handle(run).result("2m") == 7
    await connection.execute(
        """
        CREATE FUNCTION note_order() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM mainspring.submit('note', jsonb_build_object('number', NEW.number), queue => 'notes', priority => 1,
                                      unique_key => 'order ' || NEW.number, retries => 0, timeout => '30 s');
            RETURN NEW;
        END $$;
        CREATE TRIGGER note_order AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION note_order();
        INSERT INTO orders VALUES (8), (9), (9);
        """
    )
    await eventually(lambda: len(site.noted) == 3)
    assert sorted(site.noted) == [7, 8, 9]
    view = max(await site.runs(), key=lambda run: run.id)
    assert view.policy.retry.max_retries == 0
    assert view.policy.timeout == 30 * SECOND
    later = await connection.fetchval("SELECT mainspring.submit('note', at => now() + interval '1 day', tenant => 'x')")
    due = (await site.app.handle(later).view()).due
    assert due == pytest.approx(made_at(later) + DAY, abs=SECOND)


async def test_a_submit_in_a_transaction_keeps_the_retention_class(site: Site) -> None:
    store = (await site.app.runtime()).store
    await store.put_tenant(Tenant(name="bank", quotas=Quotas(retention="long")), Author("test"))
    note = site.task("note")
    async with driver("asyncpg", site.dsn) as mine:
        audited = await mine.submit(note.options(retention="audit"), 1)
        await mine.commit()
    # A store caches the classes of tenants for a second; this one has not read them yet.
    async with Mainspring(site.dsn) as other, driver("asyncpg", site.dsn) as mine:
        [banked] = await mine.submit_many(other, [note.options(tenant="bank").prepare(2)])
        await mine.commit()
    spoken = await site.connection.fetchval(
        """SELECT mainspring.submit('note', '{"number": 3}', queue => 'notes', tenant => 'bank')"""
    )
    for run in (audited.id, banked.id, spoken):
        await site.app.handle(run).result("2m")
    classes = await site.connection.fetch("SELECT id, class FROM mainspring.history")
    by_id = {row["id"].hex: row["class"] for row in classes}
    assert [by_id[run] for run in (audited.id, banked.id, spoken)] == [5, 4, 4]


async def test_invalid_arguments_of_the_sql_function_are_rejected(site: Site) -> None:
    for arguments, problem in {
        "' x'": "not a name",
        "NULL": "not a name",
        "repeat('x', 201)": "not a name",
        "E'a\\nb'": "not a name",
        "'x', queue => ''": "not a name",
        "'x', priority => 11": "1 .urgent. to 10 .idle.",
        "'x', to_jsonb(repeat('x', 262143))": "bytes; at most 262144",
        "'x', NULL": "payload is missing",
        "'x', timeout => '31 days'": "timeout",
        "'x', delay => '-1 s'": "delay",
        "'x', retries => -1": "retries",
        "'x', unique_key => ''": "unique key",
        "'x', at => '1969-12-31'": "before 1970",
    }.items():
        with pytest.raises(asyncpg.InvalidParameterValueError, match=problem):
            await site.connection.execute(f"SELECT mainspring.submit({arguments})")
    assert await site.runs() == []


async def test_a_unique_key_of_a_different_request_is_an_error_in_sql(site: Site) -> None:
    first = await site.connection.fetchval("SELECT mainspring.submit('note', unique_key => 'a', delay => '1 h')")
    assert first == await site.connection.fetchval(
        "SELECT mainspring.submit('note', unique_key => 'a', delay => '1 h')"
    )
    with pytest.raises(asyncpg.UniqueViolationError, match=first):
        await site.connection.execute("SELECT mainspring.submit('note', unique_key => 'a')")


async def test_ids_created_in_sql_sort_by_creation(site: Site) -> None:
    rows = await site.connection.fetch(
        "SELECT mainspring.submit('note', delay => '1 h') AS id, pg_sleep(0.0001) FROM generate_series(1, 200)"
    )
    ids = [row["id"] for row in rows]
    assert ids == sorted(set(ids))
    assert all(map(is_id, ids))


async def drop(connection: asyncpg.Connection, partitions: str) -> None:
    """Drop partitions, again after each deadlock with processes that use their parent tables."""
    for _ in range(20):
        with suppress(asyncpg.DeadlockDetectedError):
            await connection.execute(f"DROP TABLE {partitions}")
            return
    raise AssertionError(partitions)


async def test_a_submit_works_on_a_day_without_a_partition(site: Site) -> None:
    today = int(time.time()) // 86_400
    for day in range(today - 1, today + 8):
        await drop(site.connection, f"mainspring.body_d{day}, mainspring.label_d{day}")
    async with driver("asyncpg", site.dsn) as mine:
        handle = await mine.submit(site.task("note").options(tags=("a",)), 1)
        await mine.commit()
    assert await handle.result("2m") == 1


# Completion


async def test_the_commit_of_a_task_completes_its_run(site: Site) -> None:
    handles = await site.app.submit_many([site.task("order").prepare(number) for number in range(50)])
    assert [await handle.result("2m") for handle in handles] == list(range(50))
    assert await site.rows() == list(range(50))
    view = await handles[0].view()
    assert (view.state, view.attempt, view.lost) == (RunState.SUCCEEDED, 1, 0)
    assert view.started_at is not None
    assert view.finished_at is not None
    assert view.finished_at > view.started_at
    assert await site.connection.fetchval("SELECT count(*) FROM mainspring.history") == 50
    users = await site.connection.fetch(
        "SELECT FROM pg_stat_activity WHERE application_name = 'mainspring handler' AND datname = current_database()"
    )
    assert 1 <= len(users) <= 5


async def test_the_transaction_of_a_failed_attempt_is_rolled_back(site: Site) -> None:
    faulty = site.task("faulty")
    for how, problem in {"raise": "out of stock", "swallow": "transaction is aborted", "large": "TooLarge"}.items():
        with pytest.raises(RunFailed, match=problem):
            await (await faulty.submit(1, how)).result("2m")
    assert await site.rows() == []
    with pytest.raises(RunFailed, match="has ended the transaction"):
        await (await faulty.submit(1, "commit")).result("2m")


async def test_the_transaction_of_a_stale_attempt_is_rolled_back(site: Site) -> None:
    handle = await site.task("faulty").submit(1, "wait")
    await site.started.wait()
    # As if another worker had claimed the run since.
    await site.connection.execute(
        "UPDATE mainspring.run SET fence = fence + 1, session = session + 1000 WHERE id = $1", handle.id
    )
    site.may_finish.set()

    async def has_ended() -> bool:
        busy = await site.connection.fetchval(
            """
            SELECT count(*) FROM pg_stat_activity
            WHERE application_name = 'mainspring handler' AND datname = current_database() AND state <> 'idle'
            """
        )
        return bool(busy == 0)

    await eventually(has_ended)
    assert await site.rows() == []
    assert (await handle.view()).state is RunState.RUNNING


@pytest.mark.parametrize("how", ["cancel", "timeout"])
async def test_the_transaction_of_a_stopped_attempt_is_rolled_back(site: Site, how: str) -> None:
    timeout = "1s" if how == "timeout" else "1h"
    handle = await site.task("faulty").options(timeout=timeout).submit(1, "wait")
    if how == "cancel":
        await site.started.wait()
        await handle.cancel()
    view = await handle.wait("2m")
    assert view.state is (RunState.CANCELLED if how == "cancel" else RunState.FAILED)
    assert await site.rows() == []


@pytest.mark.parametrize("fate", ["committed", "rolled back"])
async def test_a_connection_lost_during_the_commit_does_not_repeat_the_work(site: Site, fate: str) -> None:
    """The commit waits on the server. Then either only its answer is lost, or the transaction with it."""
    await site.connection.execute(
        """
        CREATE FUNCTION wait_for_the_test() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM pg_advisory_xact_lock(1);
            RETURN NULL;
        END $$;
        CREATE CONSTRAINT TRIGGER wait_for_the_test AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION wait_for_the_test();
        SELECT pg_advisory_lock(1);
        """
    )
    first: list[tuple[int, Any]] = []

    @site.app.task(retries=2)
    async def fragile(db: asyncpg.Connection = transaction()) -> None:
        await db.execute("INSERT INTO orders VALUES (13)")
        if not first:
            first.append((await db.fetchval("SELECT pg_backend_pid()"), db._transport))  # type: ignore[attr-defined]

    async def is_committing() -> bool:
        found = await site.connection.fetchval(
            "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND pid = $1)", first[0][0]
        )
        return bool(found)

    node = Node(site.app.settings({"worker.queues": "fragile:1"}), {Role.WORKER}, site.app, None)
    await node.start()
    try:
        handle = await fragile.options(queue="fragile").submit()
        await eventually(lambda: first)
        await eventually(is_committing)
        [(backend, transport)] = first
        if fate == "committed":
            transport.abort()
        else:
            await site.connection.execute("SELECT pg_terminate_backend($1)", backend)
        await site.connection.execute("SELECT pg_advisory_unlock(1)")
        await handle.result("2m")
        view = await handle.view()
    finally:
        await node.stop()
        await node.runtime.close()
    assert view.attempt == (1 if fate == "committed" else 2)
    assert await site.rows() == [13]


async def test_the_key_lock_is_released_by_the_commit(site: Site) -> None:
    keyed = site.task("order").options(ordering_key="shelf")
    handles = await site.app.submit_many([keyed.prepare(number) for number in range(10)])
    assert [await handle.result("2m") for handle in handles] == list(range(10))
    numbers = await site.connection.fetch("SELECT number FROM orders ORDER BY ctid")
    assert [row["number"] for row in numbers] == list(range(10))


async def test_a_fixed_delay_counts_from_the_commit(postgres_database: str) -> None:
    app = Mainspring(postgres_database)

    @app.every("1s", mode="fixed_delay")
    @app.task
    async def slow(db: asyncpg.Connection = transaction()) -> None:
        await db.execute("SELECT pg_sleep(0.5)")

    async with app.running():
        store = (await app.runtime()).store

        async def find_completed() -> list[RunView]:
            runs = (await store.list_runs(RunFilter(tenant="default"), None, 100)).items
            done = sorted((run for run in runs if run.state is RunState.SUCCEEDED), key=lambda run: run.due)
            return done if len(done) >= 3 else []

        runs = await eventually(find_completed)
    await app.close()
    for run, following in pairwise(runs):
        assert run.finished_at is not None
        assert following.due >= run.finished_at + SECOND


async def test_a_transaction_parameter_is_rejected_without_async_or_postgresql(site: Site, tmp_path: Path) -> None:
    app = Mainspring(str(tmp_path / "a.db"))
    with pytest.raises(Invalid, match="an async function"):

        @app.task
        def blocks(db: Any = transaction()) -> None: ...

    with pytest.raises(Invalid, match="a transaction each"):

        @app.task
        async def two(db: Any = transaction(), other: Any = transaction()) -> None: ...

    @app.task(retries=0)
    async def order(number: int, db: asyncpg.Connection = transaction()) -> None:
        await db.execute("INSERT INTO orders VALUES ($1)", number)

    with pytest.raises(Invalid, match="in a worker only"):
        await order(1)
    await order(1, db=site.connection)
    assert await site.rows() == [1]
    with pytest.raises(Invalid, match="arguments"):
        await order.submit(1, db=site.connection)
    async with app.running():
        with pytest.raises(RunFailed, match="db: asks for a transaction, and the store is not on PostgreSQL"):
            await (await order.submit(2)).result("2m")
    await app.close()


async def test_the_connection_of_a_task_has_the_settings_of_the_application(site: Site) -> None:
    found: list[str] = []

    @site.app.task(queue="paths")
    async def path(db: asyncpg.Connection = transaction()) -> None:
        found.append(await db.fetchval("SHOW search_path"))
        found.append(await db.fetchval("SHOW enable_seqscan"))

    node = Node(site.app.settings({"worker.queues": "paths:1"}), {Role.WORKER}, site.app, None)
    await node.start()
    try:
        for _ in range(2):
            await (await path.submit()).result("2m")
    finally:
        await node.stop()
        await node.runtime.close()
    # The role has the name of our schema, so "$user" must not be in the path.
    assert found == ["public", "on"] * 2
