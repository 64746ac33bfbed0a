"""The health guard in virtual time, and the health checks of a real PostgreSQL server."""

import contextlib
from collections.abc import AsyncIterator
from typing import cast

import asyncpg
import msgspec
import pytest
from structlog.testing import capture_logs

from mainspring.core.maintenance.health_guard import HealthGuard
from mainspring.core.model.base.instant import MINUTE
from mainspring.core.model.cluster.diagnosis import Finding, Level, found, warned
from mainspring.core.model.cluster.store_health import is_pressed
from mainspring.core.ports.health import Vitals
from mainspring.core.ports.storage.upkeep import Retention
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.upkeep import findings as postgres_findings
from mainspring.stores.postgres.upkeep.health import PostgresHealth
from mainspring.testing.virtual_time import VirtualClock
from tests.support.builders import a_worker
from tests.support.databases import as_administrator, migrated_template
from tests.support.pgbouncer import through_pgbouncer
from tests.support.standbys import primary_and_standbys
from tests.support.virtual import in_virtual_time
from tests.support.waiting import eventually

BAD = warned("transactions", "the oldest is 11m old: process 7 (reports)", "end it")


class FakeHealth:
    def __init__(self) -> None:
        self.findings: list[Finding] = [found("transactions", "none under way")]

    async def read_pressure(self) -> list[Finding]:
        return self.findings


@pytest.mark.parametrize("owned", [{0: 1}, {}], ids=["owner of shard 0", "another scheduler"])
@in_virtual_time
async def test_only_the_owner_of_shard_0_logs_a_finding_and_every_guard_is_pressed_by_it(owned: dict[int, int]) -> None:
    clock, health = VirtualClock(), FakeHealth()
    with capture_logs() as logs:
        async with HealthGuard(health, LocalWakeups(), clock, lambda: owned) as guard:
            await clock.sleep(MINUTE)
            assert not guard.pressed
            health.findings = [BAD]
            await clock.sleep(5 * MINUTE)
            assert guard.pressed
            assert guard.health() == {"transactions": BAD.says}
            health.findings = [found("transactions", "none under way")]
            await clock.sleep(MINUTE)
            assert not guard.pressed
            assert guard.health() == {}
    levels = [line["log_level"] for line in logs if line.get("check") == "transactions"]
    assert levels == (["warning", "info"] if owned else [])


@in_virtual_time
async def test_the_guard_logs_a_new_culprit_at_the_same_level() -> None:
    clock, health = VirtualClock(), FakeHealth()
    with capture_logs() as logs:
        async with HealthGuard(health, LocalWakeups(), clock, lambda: {0: 1}):
            for who in ("process 7 (reports)", "process 8 (shop)"):
                health.findings = [msgspec.structs.replace(BAD, says=f"{who} holds back", who=who)]
                await clock.sleep(5 * MINUTE)
    assert [line["says"] for line in logs if line.get("check") == "transactions"] == [
        "process 7 (reports) holds back",
        "process 8 (shop) holds back",
    ]


@pytest.fixture
async def postgres_template(postgres_dsn: str) -> str:
    return await migrated_template(postgres_dsn, shards=4)


@pytest.fixture
async def store(postgres_database: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_database, shards=4)
    await store.open()
    yield store
    await store.close()


def make_health(dsn: str) -> PostgresHealth:
    return PostgresHealth(dsn, "mainspring", SystemClock(), connections=8, retention=Retention())


async def find(health: PostgresHealth, check: str) -> Finding:
    [finding] = [finding for finding in await health.read_pressure() if finding.check == check]
    return finding


@contextlib.asynccontextmanager
async def open_transaction(dsn: str, name: str, begin: str) -> AsyncIterator[str]:
    """Leave a transaction open, and yield the name that findings give it."""
    connection = await asyncpg.connect(dsn, server_settings={"application_name": name})
    try:
        await connection.execute(begin)
        yield f"process {connection.get_server_pid()} ({name})"
    finally:
        await connection.close()


@pytest.mark.postgres
@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    "begin", ["BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1", "BEGIN; SELECT pg_current_xact_id()"]
)
async def test_a_transaction_that_holds_back_vacuum_is_named(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch, begin: str
) -> None:
    monkeypatch.setattr(postgres_findings, "MINUTE", 0)
    health = make_health(postgres_database)
    # Without a snapshot and without writes, an older transaction holds back nothing.
    async with open_transaction(postgres_database, "harmless", "BEGIN; SELECT 1"):
        assert "harmless" not in (await find(health, "transactions")).says
        async with open_transaction(postgres_database, "reports", begin) as culprit:
            finding = await find(health, "transactions")
    assert finding.level is Level.WARNING
    assert finding.who == culprit
    assert finding.says.startswith(f"{culprit}, idle in transaction, has kept the dead rows of ")
    assert "pg_terminate_backend" in finding.advice


@pytest.mark.postgres
@pytest.mark.usefixtures("store")
async def test_the_transaction_with_the_oldest_snapshot_is_named_even_if_another_began_earlier(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_findings, "MINUTE", 0)
    first = await asyncpg.connect(postgres_database)
    await first.execute("BEGIN")
    async with open_transaction(
        postgres_database, "second", "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1"
    ) as second:
        other = await asyncpg.connect(postgres_database)
        for _ in range(3):
            await other.execute("SELECT pg_current_xact_id()")
        await first.execute("SELECT pg_current_xact_id()")
        finding = await find(make_health(postgres_database), "transactions")
        await other.close()
    await first.close()
    assert finding.who == second


@pytest.mark.postgres
@pytest.mark.usefixtures("store")
async def test_an_idle_transaction_that_keeps_no_dead_rows_is_reported_without_pressing_the_store(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_findings, "HOUR", 0)
    async with open_transaction(postgres_database, "harmless", "BEGIN; SELECT 1") as culprit:
        finding = await find(make_health(postgres_database), "idle transactions")
    assert finding.level is Level.WARNING
    assert finding.who == culprit
    assert "no dead rows" in finding.says
    assert not is_pressed([finding])


@pytest.mark.postgres
@pytest.mark.usefixtures("store")
async def test_an_ordinary_role_counts_all_connections(postgres_database: str) -> None:
    others = [await asyncpg.connect(as_administrator(postgres_database)) for _ in range(5)]
    health = make_health(postgres_database)

    async def counts_match() -> bool:
        [vitals] = await health.vitals()
        seen = await others[0].fetchval("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")
        # The connection that counted may be gone by now.
        return vitals.connections in (seen, seen + 1)

    try:
        # Other tests connect and disconnect at the same time.
        await eventually(counts_match)
    finally:
        for other in others:
            await other.close()


@pytest.mark.postgres
@pytest.mark.usefixtures("store")
async def test_the_oldest_transaction_is_unknown_to_a_role_that_cannot_see_the_others(postgres_database: str) -> None:
    async with open_transaction(
        as_administrator(postgres_database), "reports", "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1"
    ):
        [ordinary] = await make_health(postgres_database).vitals()
        [administrator] = await make_health(as_administrator(postgres_database)).vitals()
    assert ordinary.oldest_transaction is None
    assert administrator.oldest_transaction is not None
    assert administrator.oldest_transaction > 0


@pytest.mark.postgres
async def test_a_worker_that_closes_its_session_is_not_counted_as_lost(
    store: PostgresStore, postgres_database: str
) -> None:
    leaving, expiring = await store.open_session(a_worker()), await store.open_session(a_worker())
    await store.close_session(leaving)
    [vitals] = await make_health(postgres_database).vitals()
    assert vitals.lost_workers == 0
    connection = await asyncpg.connect(postgres_database)
    await connection.execute("UPDATE mainspring.session SET lease_until = 1 WHERE id = $1", expiring)
    await connection.close()
    await store.lost_runs(10)
    [vitals] = await make_health(postgres_database).vitals()
    assert vitals.lost_workers == 1


@pytest.mark.postgres
@pytest.mark.usefixtures("store")
async def test_a_pooler_in_transaction_mode_is_found_and_does_not_press_the_store(postgres_database: str) -> None:
    health = make_health(through_pgbouncer(postgres_database))
    for _ in range(2):
        finding = await find(health, "pooler")
        assert "transaction mode" in finding.says
        assert not is_pressed([finding])
    assert (await find(make_health(postgres_database), "pooler")).says == "none"


@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.system
@pytest.mark.xdist_group("system")
@pytest.mark.usefixtures("postgres_dsn")
async def test_a_standby_that_does_not_replay_is_named_with_its_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_findings, "MINUTE", 100_000)
    with primary_and_standbys("far") as (primary, [standby]):
        store = PostgresStore(primary.admin_dsn, shards=4)
        await store.open()
        await store.close()
        there = await asyncpg.connect(standby.admin_dsn)
        await there.execute("SELECT pg_wal_replay_pause()")
        await there.close()
        here = await asyncpg.connect(primary.admin_dsn)
        health = make_health(primary.admin_dsn)

        async def find_lag() -> tuple[Finding, Vitals] | None:
            await here.execute("SELECT txid_current()")
            [vitals] = await health.vitals()
            finding = await find(health, "standbys")
            return (finding, vitals) if finding.advice else None

        finding, vitals = cast("tuple[Finding, Vitals]", await eventually(find_lag))
        await here.close()
    assert finding.says.startswith("far is ")
    assert vitals.replication_lag
    assert vitals.replication_bytes


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.system
@pytest.mark.xdist_group("system")
@pytest.mark.usefixtures("postgres_dsn")
async def test_a_query_on_a_standby_that_holds_back_vacuum_on_the_primary_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(postgres_findings, "MINUTE", 100_000)
    with primary_and_standbys("far") as (primary, [standby]):
        store = PostgresStore(primary.admin_dsn, shards=4)
        await store.open()
        await store.close()
        there = await asyncpg.connect(standby.admin_dsn)
        await there.execute("ALTER SYSTEM SET hot_standby_feedback = on")
        await there.execute("ALTER SYSTEM SET wal_receiver_status_interval = '1s'")
        await there.execute("SELECT pg_reload_conf()")
        await there.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        here = await asyncpg.connect(primary.admin_dsn)
        health = make_health(primary.admin_dsn)

        async def find_transactions() -> Finding:
            await here.execute("SELECT pg_current_xact_id()")
            return await find(health, "transactions")

        async def find_culprit() -> Finding | None:
            finding = await find_transactions()
            return None if finding.level is Level.OK else finding

        async def has_recovered() -> bool:
            return (await find_transactions()).level is Level.OK

        finding = await eventually(find_culprit)
        [vitals] = await health.vitals()
        await there.execute("ROLLBACK")
        await eventually(has_recovered)
        await here.close()
        await there.close()
    assert finding is not None
    assert finding.who == "a query on standby far"
    assert "hot_standby_feedback" in finding.advice
    assert vitals.oldest_transaction
