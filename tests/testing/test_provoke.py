"""Provoked problems: failures, lost workers, cancels, outages, overlaps, timeouts."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from mainspring import CatchUp, Invalid, Mainspring, NotFound, Overlap, RetryPolicy
from mainspring.core.model.base.instant import to_datetime
from mainspring.testing import TestScheduler


@pytest.fixture
def app() -> Mainspring:
    return Mainspring()


async def test_a_failed_attempt_is_retried_after_its_delay(app: Mainspring) -> None:
    called: list[timedelta] = []

    @app.task(retry=RetryPolicy(max_retries=3, backoff="list", delays=("1m", "10m", "1h")))
    async def pay() -> str:
        called.append(s.now - start)
        return "paid"

    async with TestScheduler(app) as s:
        start = s.now
        s.fail(pay, ConnectionError("the bank is closed"), times=2)
        handle = await pay.submit()
        assert (s.runs(pay).scheduled, called) == (1, [])
        await s.advance("11m")
        assert called == [timedelta(minutes=11)]
        view = await handle.view()
        assert (view.state, view.attempt, view.result) == ("succeeded", 3, b'"paid"')


async def test_a_failed_run_keeps_the_traceback_of_its_last_attempt(app: Mainspring) -> None:
    @app.task(retries=1)
    async def divide(a: int, b: int) -> float:
        return a / b

    async with TestScheduler(app) as s:
        await divide.submit(1, 0)
        await s.advance("1h")
        runs = s.runs(divide)
        assert (runs.failed, runs.last.attempt) == (1, 2)
        error = runs.last.error or ""
    assert error.startswith("Traceback (most recent call last)")
    assert "return a / b" in error
    assert error.endswith("ZeroDivisionError: division by zero")
    assert "mainspring/testing" not in error


async def test_a_provoked_failure_has_the_given_error(app: Mainspring) -> None:
    @app.task(retries=0)
    async def quick() -> None: ...

    async with TestScheduler(app) as s:
        s.fail(quick, "out of paper")
        s.fail("quick", KeyError("x"))
        s.fail(quick, TimeoutError)
        for _ in range(4):
            await quick.submit()
        errors = [(view.error or "").splitlines()[-1:] for view in s.runs(quick)]
    assert errors == [["RuntimeError: out of paper"], ["KeyError: 'x'"], ["TimeoutError"], []]


async def test_an_unknown_task_or_schedule_is_an_error(app: Mainspring) -> None:
    @app.task
    async def quick() -> None: ...

    async with TestScheduler(app) as s:
        with pytest.raises(NotFound, match="no task 'quikc'"):
            s.fail("quikc")
        with pytest.raises(NotFound, match="no task 'quikc'"):
            s.runs("quikc")
        with pytest.raises(NotFound, match="no schedule 'quick'"):
            s.ledger("quick")
        with pytest.raises(Invalid, match="times"):
            s.lose(quick, times=0)
        with pytest.raises(LookupError):
            _ = s.runs(quick).last


async def test_a_lost_run_starts_again_after_the_lease(app: Mainspring) -> None:
    called: list[timedelta] = []

    @app.task
    async def work() -> None:
        called.append(s.now - start)

    async with TestScheduler(app) as s:
        start = s.now
        s.lose(work, times=2)
        handle = await work.submit()
        assert s.runs(work).running == 1
        view = await handle.wait()
        assert (view.state, view.attempt, view.lost) == ("succeeded", 3, 2)
    # Two leases of ten seconds each, and the interval of the reaper.
    assert len(called) == 1
    assert timedelta(seconds=20) <= called[0] < timedelta(seconds=24)


async def test_a_lost_worker_loses_all_of_its_runs(app: Mainspring) -> None:
    ends: list[str] = []

    @app.task
    async def slow() -> None:
        try:
            await asyncio.sleep(3_600 - 1)
        except asyncio.CancelledError:
            ends.append("stopped")
            raise
        ends.append("done")

    @app.task(guarantee="at-most-once")
    async def killer() -> None: ...

    async with TestScheduler(app) as s:
        await slow.submit()
        s.lose(killer)
        await killer.submit()
        await s.advance("2h")
        assert (s.runs(slow).succeeded, s.runs(slow).last.lost) == (1, 1)
        assert (s.runs(killer).failed, s.runs(killer).last.reason) == (1, "lost")
    assert ends == ["stopped", "done"]


async def test_a_running_handler_is_cancelled(app: Mainspring) -> None:
    cleaned_up: list[datetime] = []

    @app.task
    async def slow() -> None:
        try:
            await asyncio.sleep(3_000)
        finally:
            cleaned_up.append(s.now)

    async with TestScheduler(app) as s:
        handle = await slow.submit()
        await s.advance("10m")
        assert await handle.cancel() == "cancelling"
        assert s.runs(slow).cancelling == 1
        assert (await handle.wait()).state == "cancelled"
        assert s.runs(slow).cancelled == 1
        assert cleaned_up[0] - datetime(2026, 1, 1, 0, 10, tzinfo=UTC) < timedelta(seconds=1)


async def test_a_handler_that_ignores_a_cancel_is_cancelled_again(app: Mainspring) -> None:
    asked: list[datetime] = []

    @app.task
    async def stubborn() -> None:
        while len(asked) < 3:
            try:
                await asyncio.sleep(3_600)
            except asyncio.CancelledError:
                asked.append(s.now)
        raise asyncio.CancelledError

    async with TestScheduler(app) as s:
        await stubborn.submit()
        assert await s.cancel(stubborn) == 1
        await s.run_until_idle()
        assert s.runs(stubborn).cancelled == 1
    assert asked[2] - asked[0] < timedelta(seconds=6)


async def test_cancel_takes_a_handle_a_run_or_a_task(app: Mainspring) -> None:
    @app.task
    async def later() -> None: ...

    async with TestScheduler(app) as s:
        handles = [await later.options(delay=f"{hours}h").submit() for hours in (1, 2, 3, 4)]
        assert await s.cancel(handles[0]) == 1
        assert await s.cancel(s.runs(later)[1]) == 1
        await s.advance("3h")
        assert await s.cancel("later") == 1
        await s.advance("1 day")
        assert (s.runs(later).cancelled, s.runs(later).succeeded) == (3, 1)


@pytest.mark.parametrize(
    ("catch_up", "ran", "skipped"),
    [
        ("latest", ["03:00"], ["01:00", "02:00"]),
        ("none", ["03:00"], ["01:00", "02:00"]),
        (CatchUp(mode="all"), ["01:00", "02:00", "03:00"], []),
    ],
)
async def test_ticks_missed_in_an_outage_are_caught_up(
    app: Mainspring, catch_up: CatchUp, ran: list[str], skipped: list[str]
) -> None:
    @app.cron("0 * * * *", catch_up=catch_up)
    async def hourly() -> None: ...

    async with TestScheduler(app, start="2026-01-01T00:30:00Z") as s:
        await s.outage("2h30m")
        await s.advance("1s")
        ticks: dict[str, list[str]] = {"run": [], "skipped": []}
        for entry in s.ledger("hourly"):
            ticks[entry.decision].append(f"{to_datetime(entry.scheduled_at):%H:%M}")
        assert ticks == {"run": ran, "skipped": skipped}
        assert s.runs(hourly).succeeded == len(ran)


async def test_a_run_is_released_when_an_outage_begins(app: Mainspring) -> None:
    @app.task
    async def slow() -> None:
        await asyncio.sleep(600)

    async with TestScheduler(app) as s:
        start = s.now
        await slow.submit()
        await s.advance("5m")
        await s.outage("1h")
        assert s.now == start + timedelta(minutes=65)
        await s.advance("11m")
        assert (s.runs(slow).succeeded, s.runs(slow).last.attempt) == (1, 1)


async def test_a_year_long_outage_is_caught_up_with_one_run(app: Mainspring) -> None:
    @app.every("1m")
    async def often() -> None: ...

    async with TestScheduler(app) as s:
        await s.outage("365 days")
        await s.run_until_idle()
        assert s.runs(often).succeeded == 1


async def test_a_run_submitted_during_an_outage_waits(app: Mainspring) -> None:
    @app.task
    async def quick() -> None: ...

    async with TestScheduler(app) as s:
        down = asyncio.create_task(s.outage("1h"))
        await quick.options(delay="1m").submit()
        await down
        await s.run_until_idle()
        view = s.runs(quick).last
        assert view.state == "succeeded"
        assert view.started_at is not None


@pytest.mark.parametrize(
    ("overlap", "succeeded", "running", "cancelled", "skipped"),
    [
        (Overlap.ALLOW, 5, 1, 0, 0),
        (Overlap.SKIP, 3, 0, 0, 3),
        (Overlap.QUEUE, 3, 1, 0, 1),
        (Overlap.CANCEL, 0, 1, 5, 0),
    ],
)
async def test_overlap_rules_allow_skip_queue_or_cancel_ticks(
    app: Mainspring, overlap: Overlap, succeeded: int, running: int, cancelled: int, skipped: int
) -> None:
    """Six ticks ten minutes apart, and runs of fifteen minutes."""

    @app.every("10m", overlap=overlap)
    async def slow() -> None:
        await asyncio.sleep(900)

    async with TestScheduler(app, start="2026-01-01T00:05:00Z") as s:
        await s.advance("1h4m")
        ticks = s.ledger("slow")
        assert len(ticks) == 6
        assert [entry.reason for entry in ticks if entry.decision == "skipped"] == ["overlap"] * skipped
        runs = s.runs(slow)
        assert (runs.succeeded, runs.running, runs.cancelled) == (succeeded, running, cancelled)


async def test_a_run_past_its_timeout_fails(app: Mainspring) -> None:
    @app.task(timeout="10m", retries=0)
    async def slow() -> None:
        await asyncio.sleep(3_600)

    async with TestScheduler(app) as s:
        await slow.submit()
        await s.advance("9m59s")
        assert s.runs(slow).running == 1
        await s.advance("2s")
        assert (s.runs(slow).failed, s.runs(slow).last.reason) == (1, "timeout")


async def test_a_run_that_does_not_start_in_time_is_skipped(app: Mainspring) -> None:
    @app.task
    async def quick() -> None: ...

    async with TestScheduler(app) as s:
        await quick.options(queue="without workers", start_within="10m").submit()
        await quick.options(queue="without workers", deadline="20m").submit()
        await s.advance("9m")
        assert s.runs(quick).queued == 2
        await s.advance("2m")
        assert (s.runs(quick).queued, s.runs(quick).skipped) == (1, 1)
        await s.advance("10m")
        assert (s.runs(quick).queued, s.runs(quick).failed) == (0, 1)
