"""The guard of a store's health, in virtual time and on a real server."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
from structlog.testing import capture_logs

from mainspring.adapters.clock.system import SystemClock
from mainspring.adapters.store.postgres import PostgresStore
from mainspring.adapters.store.postgres import health as postgres_health
from mainspring.adapters.store.postgres.health import PostgresHealth
from mainspring.adapters.wakeups.local import LocalWakeups
from mainspring.control.health_guard import HealthGuard
from mainspring.domain.diagnosis import Finding, found, warned
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


@pytest.fixture
async def store(postgres_database: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_database, shards=4)
    await store.open()
    yield store
    await store.close()


@pytest.mark.postgres
@pytest.mark.usefixtures("store")
async def test_who_holds_back_a_real_server_is_named(postgres_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_health, "MINUTE", 1_000)
    watched = PostgresHealth(postgres_database, "mainspring", SystemClock(), connections=8, retention=Retention())
    culprit = await asyncpg.connect(postgres_database, server_settings={"application_name": "reports"})
    try:
        assert not [one for one in await watched.pains() if one.check == "transactions" and "reports" in one.says]
        await culprit.execute("BEGIN; SELECT 1")
        await asyncio.sleep(0.1)
        [told] = [one for one in await watched.pains() if one.check == "transactions"]
    finally:
        await culprit.close()
    assert f"process {culprit.get_server_pid()} (reports)" in told.says
    assert "pg_terminate_backend" in told.advice


def the_health(dsn: str) -> PostgresHealth:
    return PostgresHealth(dsn, "mainspring", SystemClock(), connections=8, retention=Retention())


@pytest.mark.postgres
@pytest.mark.usefixtures("store")
async def test_connections_of_other_roles_are_counted_and_transactions_that_are_hidden_are_not_called_none(
    postgres_database: str,
) -> None:
    others = [await asyncpg.connect(as_administrator(postgres_database)) for _ in range(5)]
    try:
        await others[0].execute("BEGIN; SELECT 1")
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
