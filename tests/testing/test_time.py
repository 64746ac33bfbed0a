"""Time in a test: it passes only when the test advances it, and everything due by then has happened."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random
from typing import Any

import pytest
import uvloop

from mainspring import CatchUp, Conflict, Context, Invalid, Mainspring, RetryPolicy
from mainspring.core.model.base.instant import from_datetime
from mainspring.testing import TestScheduler


@pytest.fixture
def app() -> Mainspring:
    return Mainspring("a/path/that/is/not/there.db")


async def test_an_hourly_job_fires_24_times_a_day(app: Mainspring) -> None:
    @app.cron("0 * * * *")
    async def hourly() -> None: ...

    async with TestScheduler(app) as s:
        await s.advance("1 day")
        assert s.runs(hourly).succeeded == 24
        assert s.now == datetime(2026, 1, 2, tzinfo=UTC)
        ticks = [entry.scheduled_at for entry in s.ledger("hourly")]
    first = from_datetime(datetime(2026, 1, 1, 1, tzinfo=UTC))
    assert ticks == [first + hour * 3_600_000_000 for hour in range(24)]


def test_a_test_without_an_event_loop_can_advance_time(app: Mainspring) -> None:
    @app.cron("0 * * * *")
    async def hourly() -> None: ...

    @app.task
    async def add(a: int, b: int) -> int:
        await asyncio.sleep(60)
        return a + b

    with TestScheduler(app) as s:
        s.advance("1 day")
        handle = add.sync.submit(1, 2)
        assert handle.result() == 3
        s.run_until_idle()
        assert s.runs(hourly).succeeded == 24


@pytest.mark.parametrize("start", ["2026-03-28T12:00:00+02:00", datetime(2026, 3, 28, 10, tzinfo=UTC)])
async def test_time_begins_at_the_given_start(app: Mainspring, start: datetime | str) -> None:
    async with TestScheduler(app, start=start) as s:
        assert s.now == datetime(2026, 3, 28, 10, tzinfo=UTC)
        await s.advance_to("2026-03-29T00:00:00Z")
        await s.advance_to(datetime(2026, 3, 29, 1, tzinfo=UTC))
        assert s.now == datetime(2026, 3, 29, 1, tzinfo=UTC)
        with pytest.raises(Invalid, match="is past"):
            await s.advance_to("2026-03-28T23:00:00Z")


async def test_time_stands_still_until_the_test_advances_it(app: Mainspring) -> None:
    @app.every("1s")
    async def every_second() -> None: ...

    @app.task
    async def quick() -> None: ...

    async with TestScheduler(app) as s:
        before = s.now
        for _ in range(10):
            await quick.submit()
        assert s.runs(quick).succeeded == 10
        assert (s.now, len(s.runs(every_second))) == (before, 0)


async def test_a_handler_sleeps_in_virtual_time(app: Mainspring) -> None:
    naps: list[datetime] = []

    @app.task
    async def nap() -> None:
        await asyncio.sleep(1_800)
        naps.append(s.now)
        async with asyncio.timeout(1_000):
            await asyncio.sleep(900)
        naps.append(s.now)

    async with TestScheduler(app) as s:
        start = s.now
        await nap.submit()
        await s.advance("29m")
        assert s.runs(nap).running == 1
        await s.advance("16m")
        assert s.runs(nap).succeeded == 1
    assert naps == [start + timedelta(minutes=30), start + timedelta(minutes=45)]


async def test_a_delayed_run_starts_exactly_at_its_time(app: Mainspring) -> None:
    started: list[datetime] = []

    @app.task
    async def note() -> None:
        started.append(s.now)

    async with TestScheduler(app) as s:
        start = s.now
        delays = [timedelta(microseconds=1), timedelta(seconds=7.000003), timedelta(hours=3), timedelta(days=40)]
        for delay in delays:
            await note.options(delay=delay).submit()
        await s.advance("41 days")
    assert started == [start + delay for delay in delays]


async def test_advance_stops_between_two_ticks_to_the_microsecond(app: Mainspring) -> None:
    @app.every("10m")
    async def often() -> None: ...

    async with TestScheduler(app) as s:
        counts = []
        for _ in range(6):
            await s.advance("299.999999s")
            counts.append(len(s.runs(often)))
            await s.advance("1us")
            counts.append(len(s.runs(often)))
    assert counts == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3]


async def test_a_run_that_takes_no_time_has_succeeded_when_submit_returns(app: Mainspring) -> None:
    @app.task
    async def quick() -> None: ...

    async with TestScheduler(app) as s:
        before = s.now
        await quick.submit()
        assert s.runs(quick).succeeded == 1
        assert s.now == before


async def test_run_until_idle_waits_for_due_runs_only(app: Mainspring) -> None:
    @app.task
    async def slow() -> None:
        await asyncio.sleep(600)

    async with TestScheduler(app) as s:
        start = s.now
        await slow.submit()
        await slow.options(delay="1 day").submit()
        await s.run_until_idle()
        assert s.now == start + timedelta(minutes=10)
        assert (s.runs(slow).succeeded, s.runs(slow).scheduled) == (1, 1)


async def test_waiting_for_a_run_lets_time_pass(app: Mainspring) -> None:
    @app.task
    async def slow(answer: int) -> int:
        await asyncio.sleep(60)
        return answer

    async with TestScheduler(app) as s:
        handle = await slow.options(delay="1m").submit(42)
        assert (await handle.view()).state == "scheduled"
        view = await handle.wait()
        assert (view.state, view.result) == ("succeeded", b"42")
        assert timedelta(seconds=120) <= s.now - datetime(2026, 1, 1, tzinfo=UTC) < timedelta(seconds=121)
        late = await slow.options(delay="10m").submit(1)
        with pytest.raises(TimeoutError):
            await late.wait("5m")


async def test_the_application_keeps_its_settings_after_a_test(app: Mainspring) -> None:
    @app.task
    async def quick() -> None: ...

    for _ in range(2):
        async with TestScheduler(app) as s:
            await quick.submit()
            assert len(s.runs()) == 1
    assert app.settings().store == "a/path/that/is/not/there.db"


async def test_an_application_behind_an_api_is_tested_without_it() -> None:
    app = Mainspring.connect("http://127.0.0.1:1", key="unused")

    @app.task
    async def double(number: int) -> int:
        return 2 * number

    async with TestScheduler(app):
        assert await (await double.submit(21)).result() == 42


async def test_a_second_test_scheduler_for_the_same_application_is_a_conflict(app: Mainspring) -> None:
    async with TestScheduler(app):
        with pytest.raises(Conflict, match="already"):
            async with TestScheduler(app):
                ...


async def test_the_same_test_produces_the_same_times_and_ids(app: Mainspring) -> None:
    @app.task(retries=5)
    async def fails(number: int) -> None:
        raise ValueError(number)

    async def once() -> list[tuple[int | None, str]]:
        async with TestScheduler(app) as s:
            for number in range(5):
                await fails.submit(number)
            await s.advance("1h")
            return [(view.finished_at, view.id) for view in s.runs()]

    assert await once() == await once()


async def test_the_context_contains_the_time_of_the_tick(app: Mainspring) -> None:
    seen: list[int | None] = []

    @app.cron("0 12 * * *")
    async def noon(context: Context) -> None:
        seen.append(context.scheduled_at)

    async with TestScheduler(app) as s:
        await s.advance("2 days")
    noons = [datetime(2026, 1, day, 12, tzinfo=UTC) for day in (1, 2)]
    assert seen == [from_datetime(noon) for noon in noons]


async def test_a_fixed_delay_counts_from_the_end_of_the_last_run(app: Mainspring) -> None:
    started: list[timedelta] = []

    @app.every("10m", mode="fixed_delay")
    async def poll() -> None:
        started.append(s.now - begin)
        await asyncio.sleep(300)

    async with TestScheduler(app) as s:
        begin = s.now
        await s.advance("1h")
    gaps = [later - earlier for earlier, later in pairwise(started)]
    assert gaps == [timedelta(minutes=15)] * (len(started) - 1)
    assert len(started) >= 3


async def test_runs_beyond_the_slots_wait_for_a_free_one(app: Mainspring) -> None:
    @app.task
    async def slow() -> None:
        await asyncio.sleep(60)

    async with TestScheduler(app) as s:
        start = s.now
        for _ in range(250):
            await slow.submit()
        await s.run_until_idle()
        assert s.runs(slow).succeeded == 250
        assert s.now == start + timedelta(minutes=3)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_test_may_use_any_event_loop(app: Mainspring, run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    @app.cron("0 * * * *")
    async def hourly() -> None: ...

    async def test() -> None:
        async with TestScheduler(app) as s:
            handle = await hourly.submit()
            async with asyncio.timeout(120):
                await s.advance("1 day")
                await handle.wait()
            assert s.runs(hourly).succeeded == 25

    run(test())


@pytest.mark.parametrize("seed", range(10))
def test_every_attempt_starts_and_ends_to_the_microsecond(app: Mainspring, seed: int) -> None:
    """With enough slots, each attempt starts when it is due and ends when its handler returns."""
    random = Random(seed)
    scales = [1, 1_000, 1_000_000, 60_000_000, 3_600_000_000]
    ends: list[int] = []
    late: set[int] = set()

    first_delay = timedelta(microseconds=random.choice(scales))

    @app.task(timeout="30d", retry=RetryPolicy(max_retries=5, backoff="fixed", first_delay=first_delay))
    async def work(context: Context, duration: int, failures: int) -> None:
        late.add(from_datetime(s.now) - context.due)
        await asyncio.sleep(duration / 1_000_000)
        if context.attempt <= failures:
            raise ValueError

    with TestScheduler(app) as s:
        start = from_datetime(s.now)
        pause = work.default_options.policy.retry.first_delay
        for _ in range(40):
            delay, duration = (random.randrange(1, 10) * random.choice(scales) for _ in range(2))
            failures = random.randrange(3)
            ends.append(start + delay + duration + failures * (pause + duration))
            work.options(delay=timedelta(microseconds=delay)).sync.submit(duration, failures)
        s.advance("8 days")
        runs = s.runs(work)
        assert runs.succeeded == 40
        assert sorted(view.finished_at or 0 for view in runs) == sorted(ends)
    assert late == {0}


async def test_every_missed_night_is_caught_up_one_at_a_time_with_an_ordering_key() -> None:
    app = Mainspring()
    running = most = 0
    nights: list[int] = []

    @app.task
    async def backup(context: Context) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(3_600)
        assert context.scheduled_at is not None
        nights.append(context.scheduled_at)
        running -= 1

    nightly = CatchUp(mode="all", max_age="7d")
    app.cron("0 2 * * *", catch_up=nightly)(backup.options(ordering_key="backup").prepare())
    async with TestScheduler(app) as s:
        await s.advance("1d")
        await s.outage("5d")
        await s.advance("12h")
        assert (s.runs(backup).succeeded, most) == (7, 1)
    assert nights == sorted(nights)
