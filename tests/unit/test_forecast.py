"""The forecast of runs per minute, compared with counting tick by tick."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, SECOND, Instant, parse_instant
from mainspring.core.model.schedules.forecast import Forecast, Planned, Share, firing, forecast
from mainspring.core.model.schedules.schedule import CronSchedule, Interval, next_after, validate
from tests.support.line_count import at_most_lines

START = parse_instant("2026-10-24T12:00:00Z")
MINUTES = 36 * 60
# Days with a gap, with a fold and with neither in Paris.
starts = st.sampled_from([parse_instant(f"{day}T12:00:00Z") for day in ("2026-03-28", "2026-10-24", "2026-11-15")])
zones = st.sampled_from(["UTC", "Europe/Paris", "Asia/Kathmandu", "Australia/Lord_Howe", "America/New_York"])
expressions = st.sampled_from(
    [
        "* * * * *",
        "*/7 * * * *",
        "30 2 * * *",
        "0-59 0-23 * * *",
        "H H * * *",
        "H/7 H * * * *",
        "*/20 * * * * *",
        "15 */2 * * *",
        "0 0 * * SUN",
        "59 23 L * *",
        "0 0 25 10 MON",
        "* 1-3 * * *",
        "5,10 * 30 */3 * *",
    ]
)
bounds = st.none() | st.integers(-6 * 60, MINUTES + 60).map(lambda n: n * MINUTE + n % 60 * SECOND)


def count_by_walking(planned: list[Planned], start: Instant, minutes: int) -> list[int]:
    counts: Counter[int] = Counter()
    for one in planned:
        tick = next_after(one.schedule, start - 1, one.key)
        while tick is not None and tick < start + minutes * MINUTE:
            counts[(tick - start) // MINUTE] += 1
            tick = next_after(one.schedule, tick, one.key)
    return [counts[minute] for minute in range(minutes)]


@st.composite
def schedules(draw: st.DrawFn) -> tuple[Instant, Planned]:
    start = draw(starts)
    first, last = draw(bounds), draw(bounds)
    limits: dict[str, Any] = {
        "start": None if first is None else start + first,
        "end": None if last is None else start + last,
    }
    schedule: CronSchedule | Interval
    if draw(st.booleans()):
        schedule = CronSchedule(draw(expressions), draw(zones), **limits)
    else:
        schedule = Interval(draw(st.integers(1, 9_000)) * SECOND + draw(st.integers(0, 999)), **limits)
    return start, Planned(name="x", schedule=schedule, key=draw(st.text(max_size=3)))


@given(schedules())
def test_each_minute_has_the_ticks_that_lie_in_it(drawn: tuple[Instant, Planned]) -> None:
    start, planned = drawn
    try:
        validate(planned.schedule, planned.key)
    except Invalid:
        return
    found = forecast([planned], start, MINUTES)
    assert found.counts == count_by_walking([planned], start, MINUTES)
    assert sum(share.runs for share in found.totals) == sum(found.counts)


def make_planned(number: int, schedule: CronSchedule | Interval, name: str = "job") -> list[Planned]:
    return [Planned(name=f"{name}-{n}", schedule=schedule, key=f"{name}-{n}") for n in range(number)]


def test_counts_of_several_schedules_give_peaks_and_totals() -> None:
    planned = [
        *make_planned(3, CronSchedule("0 * * * *"), "hourly"),
        *make_planned(1, CronSchedule("0 0 * * *"), "daily"),
        *make_planned(1, Interval(20 * SECOND), "poll"),
        *make_planned(1, CronSchedule("0 0 1 1 *"), "yearly"),
    ]
    found = forecast(planned, START + 30 * SECOND, 24 * 60, [(START + HOUR, 5), (START + 2 * DAY, 9)])
    assert found.start == START, "it starts at a whole minute"
    assert found.counts == [
        runs + 5 * (minute == 60) for minute, runs in enumerate(count_by_walking(planned, START, 24 * 60))
    ]
    assert found.active == 5
    assert found.waiting == 5
    assert found.totals == [
        Share("poll-0", 4_320),
        Share("hourly-0", 24),
        Share("hourly-1", 24),
        Share("hourly-2", 24),
        Share("daily-0", 1),
    ]
    first, second = found.peaks[:2]
    assert (first.at, first.runs, first.others) == (START + HOUR, 11, 0)
    assert first.makers[0] == Share("(waiting runs)", 5)
    assert (second.at, second.runs) == (START + 12 * HOUR, 7)
    assert [share.name for share in second.makers] == ["poll-0", "daily-0", "hourly-0", "hourly-1", "hourly-2"]
    assert len(found.peaks) == 10


def test_the_forecast_reports_jitter_fixed_delays_and_invalid_schedules() -> None:
    planned = [
        *make_planned(2, CronSchedule("0 * * * *", jitter=30 * SECOND)),
        *make_planned(1, Interval(MINUTE, mode="fixed_delay"), "delay"),
        *make_planned(1, CronSchedule("0 * * * *", "Mars/Base"), "lost"),
    ]
    found = forecast(planned, START, 60)
    assert (found.jittered, found.longest_jitter, found.fixed_delays) == (2, 30 * SECOND, 1)
    assert found.unreadable == [
        "lost-0: timezone: 'Mars/Base' is not a known time zone (for example UTC or Europe/Paris)"
    ]


def test_a_fixed_delay_is_forecast_from_its_next_tick() -> None:
    one = Planned(
        name="x", schedule=Interval(10 * MINUTE, mode="fixed_delay"), key="x", next_fire=START + 5 * MINUTE + SECOND
    )
    found = forecast([one], START, 30)
    assert [minute for minute, runs in enumerate(found.counts) if runs] == [5, 15, 25]


def test_a_forecast_without_schedules_is_empty() -> None:
    found = forecast([], START, 60)
    assert found == Forecast(
        start=START,
        counts=[0] * 60,
        peaks=[],
        totals=[],
        active=0,
        waiting=0,
        jittered=0,
        longest_jitter=0,
        fixed_delays=0,
        unreadable=[],
    )


@pytest.mark.parametrize("expression", ["* * * * *", "H H * * *"])
def test_ten_thousand_schedules_are_counted_without_walking_their_ticks(expression: str) -> None:
    planned = make_planned(10_000, CronSchedule(expression, "Europe/Paris"))
    with at_most_lines(10_000_000):
        found = forecast(planned, parse_instant("2026-11-15T00:00:00Z"), 24 * 60)
    assert sum(found.counts) == (14_400_000 if expression.startswith("*") else 10_000)


def test_a_chunk_boundary_of_zone_data_does_not_cause_a_walk_of_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    # Zone data is read in chunks of 2**21 seconds, whose boundaries lie within a minute.
    boundary = (856 << 21) * SECOND
    assert boundary % MINUTE
    schedule = CronSchedule(expression="*/2 * * * * *", timezone="Europe/Paris")

    def never(*_: object) -> None:
        raise AssertionError("ticks are not walked")

    monkeypatch.setattr("mainspring.core.model.schedules.planned.next_after", never)
    for start in (boundary - 3 * DAY, boundary + DAY):
        found = forecast([Planned(name="n", schedule=schedule, key="k")], start, 7 * 1_440)
        assert found.counts == [30] * 7 * 1_440


def test_the_schedules_that_fire_in_a_period_are_listed_by_runs() -> None:
    start = parse_instant("2026-11-16T09:00:00Z")
    planned = [
        Planned(name="often", schedule=CronSchedule(expression="*/5 * * * *"), key="a", copies=2),
        Planned(name="half past", schedule=CronSchedule(expression="30 * * * *"), key="b"),
        Planned(name="at night", schedule=CronSchedule(expression="0 3 * * *"), key="c"),
        Planned(name="broken", schedule=CronSchedule(expression="nonsense"), key="d"),
    ]
    found = [(part.key, part.runs, part.first - start) for part in firing(planned, start, 60)]
    assert found == [("a", 24, 0), ("b", 1, 30 * MINUTE)]
    assert [part.name for part in firing(planned, start + 27 * MINUTE, 5)] == ["often", "half past"]
