"""The guard of a store's health, in virtual time and on a real server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import asyncpg
import msgspec
import pytest
from structlog.testing import capture_logs

from mainspring.adapters.clock.system import SystemClock
from mainspring.adapters.store.postgres import PostgresStore
from mainspring.adapters.store.postgres import health as postgres_health
from mainspring.adapters.store.postgres.health import PostgresHealth
from mainspring.adapters.wakeups.local import LocalWakeups
from mainspring.control.health_guard import HealthGuard
from mainspring.domain.diagnosis import Finding, Level, found, warned
from mainspring.domain.instant import MINUTE
from mainspring.domain.pains import is_pressed
from mainspring.ports.store import Retention
from mainspring.testing.virtual_time import VirtualClock, run_virtual
from tests.conftest import as_administrator
from tests.support.builders import a_worker
from tests.support.pgbouncer import through_pgbouncer
from tests.support.standbys import primary_and_standbys

BAD = warned("transactions", "the oldest is 11m old: process 7 (reports)", "end it")


class Patient:
    def __init__(self) -> None:
        self.findings: list[Finding] = [found("transactions", "none under way")]

    async def pains(self) -> list[Finding]:
        return self.findings


@pytest.mark.parametrize("owned", [{0: 1}, {}])
def test_it_says_once_who_hurts_the_store_and_others_hold_back_meanwhile(owned: dict[int, int]) -> None:
    async def scenario() -> None:
        clock, patient = VirtualClock(), Patient()
        with capture_logs() as said:
            async with HealthGuard(patient, LocalWakeups(), clock, lambda: owned) as guard:
                await clock.sleep(MINUTE)
                assert not guard.pressed
                patient.findings = [BAD]
                await clock.sleep(5 * MINUTE)
                assert guard.pressed
                assert guard.health() == {"transactions": BAD.says}
                patient.findings = [found("transactions", "none under way")]
                await clock.sleep(MINUTE)
                assert not guard.pressed
                assert guard.health() == {}
        levels = [line["log_level"] for line in said if line.get("check") == "transactions"]
        assert levels == (["warning", "info"] if owned else [])

    run_virtual(scenario())


def test_it_says_who_when_another_one_is_as_bad() -> None:
    async def scenario() -> None:
        clock, patient = VirtualClock(), Patient()
        with capture_logs() as said:
            async with HealthGuard(patient, LocalWakeups(), clock, lambda: {0: 1}):
                for who in ("process 7 (reports)", "process 8 (shop)"):
                    patient.findings = [msgspec.structs.replace(BAD, says=f"{who} holds back", who=who)]
                    await clock.sleep(5 * MINUTE)
        assert [line["says"] for line in said if line.get("check") == "transactions"] == [
            "process 7 (reports) holds back",
            "process 8 (shop) holds back",
        ]

    run_virtual(scenario())


@pytest.fixture
async def store(postgres_database: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_database, shards=4)
    await store.open()
    yield store
    await store.close()


def the_health(dsn: str) -> PostgresHealth:
    return PostgresHealth(dsn, "mainspring", SystemClock(), connections=8, retention=Retention())


async def pains(watched: PostgresHealth, check: str) -> Finding:
    [told] = [one for one in await watched.pains() if one.check == check]
    return told


@contextlib.asynccontextmanager
async def left_open(dsn: str, name: str, begin: str) -> AsyncIterator[str]:
    """Who has begun something and does not end it, as it is named."""
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
async def test_who_holds_back_a_real_server_is_named(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch, begin: str
) -> None:
    monkeypatch.setattr(postgres_health, "MINUTE", 1_000)
    watched = the_health(postgres_database)
    # The one that is older holds back nothing: it has no snapshot, and wrote nothing.
    async with left_open(postgres_database, "harmless", "BEGIN; SELECT 1"):
        await asyncio.sleep(0.1)
        assert "harmless" not in (await pains(watched, "transactions")).says
        async with left_open(postgres_database, "reports", begin) as culprit:
            await asyncio.sleep(0.1)
            told = await pains(watched, "transactions")
    assert told.level is Level.WARNING
    assert told.who == culprit
    assert told.says.startswith(f"{culprit}, idle in transaction, has kept the dead rows of ")
    assert "pg_terminate_backend" in told.advice


@pytest.mark.postgres
@pytest.mark.usefixtures("store")
async def test_the_one_that_holds_back_furthest_is_named_and_not_the_one_that_began_first(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_health, "MINUTE", 1_000)
    first = await asyncpg.connect(postgres_database)
    await first.execute("BEGIN")
    async with left_open(postgres_database, "second", "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1") as second:
        other = await asyncpg.connect(postgres_database)
        for _ in range(3):
            await other.execute("SELECT pg_current_xact_id()")
        await first.execute("SELECT pg_current_xact_id()")
        await asyncio.sleep(0.1)
        told = await pains(the_health(postgres_database), "transactions")
        await other.close()
    await first.close()
    assert told.who == second


@pytest.mark.postgres
@pytest.mark.usefixtures("store")
async def test_one_that_was_left_open_and_keeps_no_dead_rows_is_told_apart_and_presses_nobody(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_health, "HOUR", 1_000)
    async with left_open(postgres_database, "harmless", "BEGIN; SELECT 1") as who:
        await asyncio.sleep(0.1)
        told = await pains(the_health(postgres_database), "idle transactions")
    assert told.level is Level.WARNING
    assert told.who == who
    assert "no dead rows" in told.says
    assert not is_pressed([told])


@pytest.mark.postgres
@pytest.mark.usefixtures("store")
async def test_connections_of_other_roles_are_counted_and_transactions_that_are_hidden_are_not_called_none(
    postgres_database: str,
) -> None:
    others = [await asyncpg.connect(as_administrator(postgres_database)) for _ in range(5)]
    try:
        await others[0].execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        seen = await others[1].fetchval("SELECT count(*) FROM pg_stat_activity WHERE usename = 'postgres'")
        ours = await others[1].fetchval("SELECT count(*) FROM pg_stat_activity WHERE usename <> 'postgres'")
        assert seen >= 5
        [ordinary] = await the_health(postgres_database).vitals()
        [administrator] = await the_health(as_administrator(postgres_database)).vitals()
    finally:
        for other in others:
            await other.close()
    # Other tests come and go meanwhile.
    assert ordinary.connections is not None
    assert ordinary.connections >= (seen + ours) // 2 > 0
    assert ordinary.oldest_transaction is None
    assert administrator.oldest_transaction is not None
    assert administrator.oldest_transaction > 0


@pytest.mark.postgres
async def test_a_worker_that_says_good_bye_is_not_lost(store: PostgresStore, postgres_database: str) -> None:
    leaves, dies = await store.open_session(a_worker()), await store.open_session(a_worker())
    await store.close_session(leaves)
    [vitals] = await the_health(postgres_database).vitals()
    assert vitals.lost_workers == 0
    connection = await asyncpg.connect(postgres_database)
    await connection.execute("UPDATE mainspring.session SET lease_until = 1 WHERE id = $1", dies)
    await connection.close()
    await store.lost_runs(10)
    [vitals] = await the_health(postgres_database).vitals()
    assert vitals.lost_workers == 1


@pytest.mark.postgres
@pytest.mark.usefixtures("store")
async def test_a_pooler_in_transaction_mode_is_seen_and_holds_nothing_back(postgres_database: str) -> None:
    watched = the_health(through_pgbouncer(postgres_database))
    for _ in range(2):
        [told] = [one for one in await watched.pains() if one.check == "pooler"]
        assert "transaction mode" in told.says
        assert not is_pressed([told])
    straight = await the_health(postgres_database).pains()
    assert [one.says for one in straight if one.check == "pooler"] == ["none in between"]


@pytest.mark.postgres
@pytest.mark.system
@pytest.mark.timeout(120)
@pytest.mark.xdist_group("system")
@pytest.mark.usefixtures("postgres_dsn")
async def test_a_standby_that_does_not_follow_is_named_and_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_health, "MINUTE", 100_000)
    with primary_and_standbys("far") as (primary, [standby]):
        store = PostgresStore(primary.admin_dsn, shards=4)
        await store.open()
        await store.close()
        there = await asyncpg.connect(standby.admin_dsn)
        await there.execute("SELECT pg_wal_replay_pause()")
        await there.close()
        here = await asyncpg.connect(primary.admin_dsn)
        watched = the_health(primary.admin_dsn)
        behind: list[Finding] = []
        while not behind:
            await here.execute("SELECT txid_current()")
            [vitals] = await watched.vitals()
            behind = [one for one in await watched.pains() if one.check == "standbys" and one.advice]
            await asyncio.sleep(0.1)
        await here.close()
    assert behind[0].says.startswith("far is ")
    assert vitals.replication_lag
    assert vitals.replication_bytes


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.system
@pytest.mark.timeout(120)
@pytest.mark.xdist_group("system")
@pytest.mark.usefixtures("postgres_dsn")
async def test_a_query_on_a_standby_that_holds_back_the_primary_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_health, "MINUTE", 100_000)
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
        watched = the_health(primary.admin_dsn)
        told = found("transactions", "")
        while told.level is Level.OK:
            await here.execute("SELECT pg_current_xact_id()")
            await asyncio.sleep(0.1)
            told = await pains(watched, "transactions")
            [vitals] = await watched.vitals()
        await there.execute("ROLLBACK")
        while (await pains(watched, "transactions")).level is not Level.OK:
            await here.execute("SELECT pg_current_xact_id()")
            await asyncio.sleep(0.1)
        await here.close()
        await there.close()
    assert told.who == "a query on standby far"
    assert "hot_standby_feedback" in told.advice
    assert vitals.oldest_transaction
