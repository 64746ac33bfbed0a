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
from mainspring.ports.store import Retention
from mainspring.testing.virtual_time import VirtualClock, run_virtual

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
