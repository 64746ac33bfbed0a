"""The payouts example: started as its README shows, and a week of it in virtual time."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from examples.payouts import application, books
from examples.payouts.application import CITIES, app, pay_city, pay_out_by_key, recalculate_surge, send_promotion
from mainspring.core.model.base.instant import MINUTE, to_datetime
from mainspring.testing import TestScheduler
from tests.support.example import commands_of, run_example, run_on_broker

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("examples")]

SUNDAY = "2026-11-15T12:00:00Z"


async def test_every_driver_is_paid_exactly_once_though_a_worker_is_killed(tmp_path: Path) -> None:
    output = await run_example("payouts", tmp_path)
    assert "payouts-tokyo: Monday" in output
    assert "was killed while it paid" in output
    assert "100 drivers: 100 were paid, 0 of them twice" in output, output
    assert "; 0 runs were tried again" not in output, output
    assert "payouts-paris" in await commands_of("payouts", tmp_path)


@pytest.mark.postgres
async def test_every_driver_is_paid_exactly_once_on_postgresql_with_rabbitmq(
    tmp_path: Path, postgres_database: str, address_of: Callable[[str], str]
) -> None:
    output = await run_on_broker("payouts", tmp_path, postgres_database, address_of("rabbitmq"))
    assert "100 drivers: 100 were paid, 0 of them twice" in output, output
    assert "; 0 runs were tried again" not in output, output


async def test_a_city_is_paid_on_monday_at_nine_local_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for city in CITIES:
        await books.open_books(books.FILE, city, drivers=2)
    async with TestScheduler(app, start=SUNDAY) as s:
        for city in sorted(CITIES, key=lambda city: monday_at_nine(city).timestamp()):
            before = s.runs(pay_out_by_key).succeeded
            await s.advance_to(monday_at_nine(city))
            assert s.runs(pay_out_by_key).succeeded == before
            await s.advance("5s")
            assert s.runs(pay_out_by_key).succeeded == before + 2
            assert [to_datetime(row.scheduled_at) for row in s.ledger(f"payouts-{city}")] == [monday_at_nine(city)]
    assert len(await books.payments(books.FILE, "2026-W47")) == 6


async def test_a_payout_that_hangs_times_out_after_a_minute_and_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    await books.open_books(books.FILE, "paris", drivers=1)
    hanging = [60 * 60.0]

    async def transfer() -> None:
        await asyncio.sleep(hanging.pop() if hanging else 0)

    monkeypatch.setattr(application, "transfer", transfer)
    async with TestScheduler(app, start=SUNDAY) as s:
        payday = await pay_city.submit("paris", "this week")
        await payday.result()
        await s.advance("59s")
        assert s.runs(pay_out_by_key).running == 1
        await s.advance("10s")
        assert (s.runs(pay_out_by_key).succeeded, s.runs(pay_out_by_key).last.attempt) == (1, 2)
    assert len(await books.payments(books.FILE, "this week")) == 1


async def test_prices_run_every_30_seconds_and_promotions_once_a_week() -> None:
    async with TestScheduler(app, start="2026-11-20T08:59:00Z") as s:
        await s.advance("10m")
        assert s.runs(recalculate_surge).succeeded in (20, 21)
        assert s.runs(send_promotion).succeeded == 1_000


def test_timeouts_follow_priorities() -> None:
    timeouts = {
        task.default_options.priority: task.default_options.policy.timeout
        for task in (pay_out_by_key, send_promotion, application.analyse_rides)
    }
    assert timeouts == {1: MINUTE, 2: 5 * MINUTE, 3: 30 * MINUTE}


def monday_at_nine(city: str) -> datetime:
    return datetime(2026, 11, 16, 9, tzinfo=ZoneInfo(CITIES[city]))
