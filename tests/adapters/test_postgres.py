"""The parts of the store that only PostgreSQL has: plans, partitions, migrations, lost connections, concurrency."""

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress

import asyncpg
import pytest

from mainspring.core.model.access.access import Tenant
from mainspring.core.model.base.errors import Conflict, Invalid, StoreUnavailable
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import DAY, HOUR, SECOND
from mainspring.core.model.limits.queues import QueuePolicy
from mainspring.core.model.runs.completion import CompletionAnswer, complete_failure, complete_success
from mainspring.core.model.runs.run import RunState
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.answers import SubmitResult
from mainspring.core.ports.storage.catalog import Pause
from mainspring.core.ports.storage.upkeep import Retention
from mainspring.core.store import Demand, NewSession
from mainspring.stores import statements
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.database import SESSION, Connection
from mainspring.stores.postgres.rows import compute_bucket
from mainspring.stores.postgres.work import upkeep
from tests.support.builders import a_policy, a_run
from tests.support.databases import create_database, drop_database, with_database
from tests.support.waiting import eventually
from tools.services.local_postgres import throwaway_postgres

pytestmark = pytest.mark.postgres

on_an_empty_database = pytest.mark.parametrize("postgres_template", [None], ids=["empty"])


@pytest.fixture
async def store(postgres_database: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_database, shards=4)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def connection(postgres_database: str, store: PostgresStore) -> AsyncIterator["asyncpg.Connection"]:
    connection = await asyncpg.connect(postgres_database, server_settings={"search_path": "mainspring"})
    yield connection
    await connection.close()


async def a_worker(store: PostgresStore) -> SessionId:
    return await store.open_session(NewSession(name="w", kind="worker", ttl=HOUR))


async def test_a_run_with_names_of_another_process_is_claimed_and_found_lost(
    postgres_database: str, store: PostgresStore
) -> None:
    session = await a_worker(store)
    assert await store.claim(session, 1, [Demand("default", 1)]) == []
    other = PostgresStore(postgres_database, shards=4)
    await other.open()
    reaper = PostgresStore(postgres_database, shards=4)
    await reaper.open()
    try:
        await other.submit([a_run(task="new here", tenant="new as well")])
        (held,) = await store.claim(session, 2, [Demand("default", 1)])
        assert (held.task, held.tenant) == ("new here", "new as well")
        await store.close_session(session)
        assert [lost.id for lost in await reaper.lost_runs(10)] == [held.id]
    finally:
        await other.close()
        await reaper.close()


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("tenant", lambda store: store.put_tenant(Tenant(name="acme"), Author("ada"))),
        ("pause", lambda store: store.pause(Pause(tenant=None, queue="mail"), Author("ada"))),
        ("queue_policy", lambda store: store.put_queue_policy("mail", QueuePolicy(concurrency=3), Author("ada"))),
        ("outbox_cursor", lambda store: store.attach_reader("sink")),
    ],
    ids=["tenant", "pause", "queue", "reader"],
)
async def test_a_change_that_waits_for_claims_tries_again_when_a_claim_takes_long(
    store: PostgresStore,
    connection: asyncpg.Connection,
    table: str,
    change: Callable[[PostgresStore], Coroutine[object, object, object]],
) -> None:
    waits: set[object] = set()

    async def waits_again() -> bool:
        if changing.done():
            changing.result()
        waits.add(
            await connection.fetchval(
                "SELECT waitstart FROM pg_locks WHERE relation = $1::regclass AND NOT granted", f"mainspring.{table}"
            )
        )
        return len(waits - {None}) > 1

    async with connection.transaction():
        # As a claim does, for as long as its transaction takes.
        await connection.execute(f"LOCK TABLE {table} IN ACCESS SHARE MODE")
        changing = asyncio.create_task(change(store))
        await eventually(waits_again)
    await changing


# Migrations


async def test_a_schema_newer_than_the_program_is_refused(
    postgres_database: str, store: PostgresStore, connection: asyncpg.Connection
) -> None:
    await connection.execute("INSERT INTO migration (version, name, needs) VALUES (9999, 'from the future', 9999)")
    with pytest.raises(Conflict, match=r"schema version 9999.*upgrade the program"):
        await PostgresStore(postgres_database).open()


@on_an_empty_database
async def test_two_processes_that_start_together_migrate_once(postgres_database: str) -> None:
    stores = [PostgresStore(postgres_database, shards=4) for _ in range(4)]
    await asyncio.gather(*(store.open() for store in stores))
    try:
        assert {store.shards for store in stores} == {4}
    finally:
        await asyncio.gather(*(store.close() for store in stores))


@on_an_empty_database
@pytest.mark.parametrize("work", ["migrate", "partitions"])
async def test_a_start_waits_for_the_start_of_another_process_longer_than_for_other_locks(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    monkeypatch.setitem(SESSION, "lock_timeout", "50ms")
    store = PostgresStore(postgres_database, shards=4)
    other = await asyncpg.connect(postgres_database)

    async def has_waited_past_the_lock_timeout() -> bool:
        assert not starting.done()
        return bool(
            await other.fetchval(
                "SELECT clock_timestamp() - waitstart > '100ms' FROM pg_locks JOIN pg_database d ON database = d.oid"
                " WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted"
            )
        )

    try:
        async with other.transaction():
            await other.execute("SELECT pg_advisory_xact_lock(hashtext($1))", f"mainspring.{work}")
            starting = asyncio.create_task(store.open())
            await eventually(has_waited_past_the_lock_timeout)
        await starting
    finally:
        await store.close()
        await other.close()


@pytest.mark.slow
@on_an_empty_database
async def test_a_database_migrated_step_by_step_equals_a_fresh_one(
    postgres_dsn: str, store: PostgresStore, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = statements.migrations("mainspring.stores.postgres")
    name = f"stepwise_{uuid.uuid4().hex}"
    await create_database(postgres_dsn, name)
    try:
        for upto in range(1, len(steps) + 1):
            monkeypatch.setattr(statements, "migrations", lambda _, upto=upto: steps[:upto])
            stepwise = PostgresStore(with_database(postgres_dsn, name), shards=4)
            await stepwise.migrate(contract=True)
        await stepwise.open()
        await stepwise.close()
        other = await asyncpg.connect(with_database(postgres_dsn, name))
        try:
            assert await _describe_schema(other) == await _describe_schema(connection)
        finally:
            await other.close()
    finally:
        await drop_database(postgres_dsn, name)


async def _describe_schema(connection: asyncpg.Connection) -> list[tuple[object, ...]]:
    """Every column, index, constraint, function and policy of the schema, as text."""
    rows = await connection.fetch("""
        SELECT 'column', c.table_name, c.column_name, c.data_type, c.column_default, c.is_nullable
        FROM information_schema.columns c WHERE c.table_schema = 'mainspring'
        UNION ALL SELECT 'index', tablename, indexname, indexdef, NULL, NULL FROM pg_indexes
        WHERE schemaname = 'mainspring'
        UNION ALL SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid), NULL, NULL
        FROM pg_constraint WHERE connamespace = 'mainspring'::regnamespace
        UNION ALL SELECT 'function', proname, prosrc, NULL, NULL, NULL FROM pg_proc
        WHERE pronamespace = 'mainspring'::regnamespace
        UNION ALL SELECT 'options', relname, reloptions::text, NULL, NULL, NULL FROM pg_class
        WHERE relnamespace = 'mainspring'::regnamespace AND reloptions IS NOT NULL
        UNION ALL SELECT 'policy', tablename, policyname, cmd, qual, with_check FROM pg_policies
        WHERE schemaname = 'mainspring'
        UNION ALL SELECT 'guarded', relname, relforcerowsecurity::text, NULL, NULL, NULL FROM pg_class
        WHERE relnamespace = 'mainspring'::regnamespace AND relrowsecurity
    """)
    return sorted(tuple(str(value) for value in row) for row in rows)


async def test_the_number_of_shards_is_fixed_when_the_store_is_created(
    postgres_database: str, store: PostgresStore
) -> None:
    other = PostgresStore(postgres_database, shards=64)
    await other.open()
    try:
        assert other.shards == 4
    finally:
        await other.close()


# Partitions and retention


@pytest.mark.slow
async def test_ended_runs_are_dropped_by_the_day_and_live_bodies_are_kept(
    store: PostgresStore, connection: asyncpg.Connection
) -> None:
    worker = await a_worker(store)
    done, failed, live = a_run(), a_run(policy=a_policy(retries=0)), a_run(policy=a_policy(retries=5))
    await store.submit([done, failed, live])
    held = {run.id: run for run in await store.claim(worker, 1, [Demand("default", 10)])}
    rng = random.Random(1)
    now = await store.now()
    answers = await store.complete(
        [
            complete_success(held[done.id], b'"ok"'),
            complete_failure(held[failed.id], "boom", rng, now=now),
            complete_failure(held[live.id], "boom", rng, now=now),
        ]
    )
    assert answers == [CompletionAnswer.ACCEPTED] * 3
    await _travel(connection, 8 * DAY)
    while await store.prune(Retention(), 1_000):
        pass
    views = await store.runs([done.id, failed.id, live.id])
    assert views[0] is None
    assert views[1] is not None
    assert (views[1].state, views[1].task) == (RunState.FAILED, "greet")
    assert views[2] is not None
    assert (views[2].state, views[2].task) == (RunState.SCHEDULED, "greet")
    await _travel(connection, 23 * DAY)
    while await store.prune(Retention(), 1_000):
        pass
    views = await store.runs([failed.id, live.id])
    assert views[0] is None
    assert views[1] is not None
    kept = await connection.fetch("SELECT id::text FROM body WHERE bucket = -1")
    assert [row[0].replace("-", "") for row in kept] == [live.id]


@pytest.mark.slow
async def test_a_store_that_was_unused_for_weeks_creates_its_partitions_and_works(
    store: PostgresStore, connection: asyncpg.Connection
) -> None:
    worker = await a_worker(store)
    await store.submit([a_run()])
    await connection.execute("UPDATE session SET lease_until = lease_until + $1", 100 * DAY)
    await _travel(connection, 40 * DAY)
    held = await store.claim(worker, 1, [Demand("default", 10)])
    assert await store.complete([complete_success(held[0], None)]) == [CompletionAnswer.ACCEPTED]


async def test_a_detached_partition_that_was_not_dropped_is_replaced(
    store: PostgresStore, connection: asyncpg.Connection
) -> None:
    day = (await store.now()) // DAY
    await connection.execute(f"ALTER TABLE attempt DETACH PARTITION attempt_d{day + 3}")
    await store.prune(Retention(), 1_000)
    await store.prune(Retention(), 1_000)
    found = await connection.fetchval(
        "SELECT relispartition FROM pg_class WHERE oid = to_regclass($1)", f"attempt_d{day + 3}"
    )
    assert found is True


async def _travel(connection: asyncpg.Connection, duration: int) -> None:
    """Move the clock of the store."""
    await connection.execute(f"""
        CREATE TABLE IF NOT EXISTS test_clock (offset_us bigint);
        INSERT INTO test_clock SELECT 0 WHERE NOT EXISTS (SELECT FROM test_clock);
        UPDATE test_clock SET offset_us = offset_us + {duration};
        CREATE OR REPLACE FUNCTION now_us() RETURNS bigint LANGUAGE sql STABLE AS $$
            SELECT (extract(epoch FROM now()) * 1000000)::bigint + (SELECT offset_us FROM mainspring.test_clock) $$;
    """)


# Upkeep


async def test_dead_rows_of_the_live_table_are_vacuumed_without_waiting_for_autovacuum(
    store: PostgresStore, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_DEAD_ROWS", 5_000)
    await connection.execute("ALTER TABLE run SET (autovacuum_enabled = off)")
    await connection.execute("""
        INSERT INTO run (id, shard, state, priority, attempt, lost, tenant, queue, body_bucket, rank, due, created_at,
                         timeout)
        SELECT gen_random_uuid(), 0, 3, 5, 0, 0, 1, 1, 0, 1, 1, 1, 1 FROM generate_series(1, 6000)
    """)
    await connection.execute("DELETE FROM run")

    async def are_counted() -> bool:
        await connection.execute("SELECT pg_stat_force_next_flush(), pg_stat_clear_snapshot()")
        return bool(await connection.fetchval("SELECT pg_stat_get_dead_tuples('run'::regclass) > 5000"))

    async def are_vacuumed() -> bool:
        # Another transaction, such as an autovacuum, may still see the rows: then the store has to try again.
        store._in_vain.clear()
        await store.tidy()
        await connection.execute("SELECT pg_stat_clear_snapshot()")
        return bool(await connection.fetchval("SELECT pg_stat_get_dead_tuples('run'::regclass) = 0"))

    await eventually(are_counted)
    await asyncio.gather(*(store.tidy() for _ in range(3)))
    await eventually(are_vacuumed)


# Concurrency


async def test_concurrent_claims_never_share_a_run(store: PostgresStore) -> None:
    runs = [a_run() for _ in range(2_000)]
    for start in range(0, 2_000, 500):
        await store.submit(runs[start : start + 500])
    workers = [await a_worker(store) for _ in range(6)]

    async def drain(worker: SessionId) -> list[tuple[str, int]]:
        taken: list[tuple[str, int]] = []
        number = 0
        while True:
            number += 1
            held = await store.claim(worker, number, [Demand("default", 37)])
            if not held:
                return taken
            taken += [(run.id, run.fence) for run in held]
            await store.complete([complete_success(run, None) for run in held])

    taken = [pair for pairs in await asyncio.gather(*map(drain, workers)) for pair in pairs]
    assert sorted(run for run, _ in taken) == sorted(run.id for run in runs)


async def test_a_claim_finds_names_that_another_process_added_since(
    postgres_database: str, store: PostgresStore
) -> None:
    session = await a_worker(store)
    assert await store.claim(session, 1, [Demand("default", 10)]) == []
    other = PostgresStore(postgres_database)
    await other.open()
    try:
        await other.submit([a_run(task="brought.later", tenant="newcomer")])
    finally:
        await other.close()
    (held,) = await store.claim(session, 2, [Demand("default", 10)])
    assert (held.task, held.tenant) == ("brought.later", "newcomer")


@pytest.mark.slow
async def test_concurrent_submits_and_completions_of_one_key_leave_no_run_blocked(store: PostgresStore) -> None:
    worker = await a_worker(store)
    claims = iter(range(1, 100_000))
    for round_ in range(40):
        key = f"key-{round_}"
        first, rest = a_run(key=key), [a_run(key=key) for _ in range(6)]
        await store.submit([first])
        (held,) = await store.claim(worker, next(claims), [Demand("default", 10)])
        await asyncio.gather(
            store.complete([complete_success(held, None)]),
            *(store.submit([run]) for run in rest),
            return_exceptions=False,
        )
        done = 0
        while done < len(rest):
            held_now = await store.claim(worker, next(claims), [Demand("default", 10)])
            assert len(held_now) == 1, f"round {round_}: {len(held_now)} of one key at once, {done} done"
            await store.complete([complete_success(held_now[0], None)])
            done += 1
    assert await store.sweep(100) == 0


async def test_concurrent_batches_with_the_same_keys_in_different_orders_succeed(store: PostgresStore) -> None:
    async def submit(seed: int) -> None:
        keys = [f"k{number}" for number in range(20)]
        random.Random(seed).shuffle(keys)
        for _ in range(5):
            await store.submit([a_run(key=key) for key in keys])

    await asyncio.gather(*(submit(seed) for seed in range(6)))


async def test_a_cancel_finds_a_run_that_is_being_claimed(store: PostgresStore) -> None:
    worker = await a_worker(store)
    for number in range(1, 60):
        run = a_run()
        await store.submit([run])
        cancelled, held = await asyncio.gather(
            store.cancel([run.id]), store.claim(worker, number, [Demand("default", 1)])
        )
        if held:
            assert cancelled[run.id] is RunState.CANCELLING
            await store.complete([complete_success(held[0], None)])
        else:
            assert cancelled[run.id] is RunState.CANCELLED


# Connections


@pytest.mark.slow
async def test_the_store_recovers_from_a_restart_of_the_server() -> None:
    context = throwaway_postgres()
    server = await asyncio.to_thread(context.__enter__)
    try:
        store = PostgresStore(server.dsn, shards=4)
        await store.open()
        await store.submit([a_run()])
        await asyncio.to_thread(server.restart)

        async def submit() -> list[SubmitResult]:
            # Each connection from before the restart fails once; the store is not opened again.
            with suppress(StoreUnavailable):
                return await store.submit([a_run()])
            return []

        assert (await eventually(submit))[0].new
        worker = await a_worker(store)
        assert len(await store.claim(worker, 1, [Demand("default", 10)])) == 2
        await store.close()
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


async def test_a_connection_that_turned_read_only_is_dropped(
    postgres_database: str, store: PostgresStore, connection: asyncpg.Connection
) -> None:
    async def demote(link: Connection) -> None:
        await link.execute("SET default_transaction_read_only = on")

    await store._db.run(demote)
    with pytest.raises(StoreUnavailable):
        await store.submit([a_run()])
    accepted = await store.submit([a_run()])
    assert accepted[0].new


async def test_a_missing_grant_is_a_wrong_setting_at_the_start_and_an_outage_later(
    postgres_database: str, store: PostgresStore, connection: asyncpg.Connection
) -> None:
    await connection.execute("REVOKE ALL ON ALL TABLES IN SCHEMA mainspring FROM CURRENT_USER")
    with pytest.raises(StoreUnavailable, match="permission denied"):
        await store.submit([a_run()])
    with pytest.raises(Invalid, match="store: PostgreSQL refused: permission denied"):
        await PostgresStore(postgres_database, shards=4).open()
    await connection.execute("GRANT ALL ON ALL TABLES IN SCHEMA mainspring TO CURRENT_USER")
    await store.submit([a_run()])


async def test_an_idle_connection_that_was_terminated_is_replaced(
    store: PostgresStore, connection: asyncpg.Connection
) -> None:
    ended = asyncio.Event()

    async def watch(link: Connection) -> None:
        link.add_termination_listener(lambda _: ended.set())

    await store._db.run(watch)
    await connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name = 'mainspring'"
    )
    await ended.wait()
    assert await store.now() > 0


async def test_many_callers_share_one_connection(postgres_database: str, store: PostgresStore) -> None:
    single = PostgresStore(postgres_database, connections=1)
    await single.open()
    for _ in range(3):
        await asyncio.gather(*(single.now() for _ in range(20)))
    await single.close()


async def test_a_second_submit_of_the_same_ids_is_recognized_after_the_runs_ended(store: PostgresStore) -> None:
    worker = await a_worker(store)
    runs = [a_run() for _ in range(3)]
    await store.submit(runs)
    held = await store.claim(worker, 1, [Demand("default", 2)])
    await store.complete([complete_success(run, None) for run in held])
    again = await store.submit([*runs, a_run(delay=SECOND)])
    assert [(item.new, item.state) for item in again] == [
        (False, RunState.SUCCEEDED),
        (False, RunState.SUCCEEDED),
        (False, RunState.QUEUED),
        (True, RunState.SCHEDULED),
    ]


async def test_known_bodies_are_those_that_were_asked_for(store: PostgresStore) -> None:
    one, other = a_run(), a_run()
    await store.submit([one, other])
    rows = await store._database.fetch("known_bodies", runs=[one.id], buckets=[compute_bucket(one)])
    assert [row["id"] for row in rows] == [one.id]


async def test_a_claim_that_takes_long_does_not_start_runs_before_it_has_found_them(store: PostgresStore) -> None:
    run, worker = a_run(), await a_worker(store)
    await store.submit([run])

    async def work(connection: Connection) -> tuple[int, int]:
        await connection.execute("SELECT pg_sleep(0.05)")
        looked = await connection.fetchval("SELECT mainspring.clock_us()")
        [row] = await connection.fetch(*store._db.sql["claim_chosen"].bind(session=worker, claim=1, runs=[run.id]))
        return looked, row["started_at"]

    looked, started = await store._db.transaction(work)
    assert started >= looked
