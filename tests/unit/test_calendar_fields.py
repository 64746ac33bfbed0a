"""Conversion of schedules whose day of month and day of week must both match, into cron expressions."""

from datetime import UTC, date, datetime, timedelta

from hypothesis import example, given
from hypothesis import strategies as st

from mainspring.core.model.base.instant import EPOCH
from mainspring.core.model.schedules.cron import Cron
from mainspring.features.schedules.commands.converters.calendar import Calendar, build_cron
from mainspring.features.schedules.commands.converters.conversion import UntranslatableError

some_days = st.frozensets(st.integers(1, 31), min_size=1)
weeks = st.sampled_from([(1, 8), (15, 22), (29, 32), (1, 32)]).map(lambda week: frozenset(range(*week)))
some_weekdays = st.frozensets(st.integers(0, 6), min_size=1)
some_minutes = st.frozensets(st.integers(0, 59), min_size=1)


@given(some_days | weeks, some_weekdays, some_minutes)
@example(frozenset({13}), frozenset({5}), frozenset({0}))
@example(frozenset({1, 15}), frozenset({5}), frozenset({0}))
@example(frozenset({15}), frozenset({0, 3}), frozenset({0}))
def test_a_converted_expression_fires_on_the_same_days(
    days: frozenset[int], weekdays: frozenset[int], minutes: frozenset[int]
) -> None:
    try:
        text = build_cron(Calendar(minutes=minutes, hours=frozenset({3}), days=days, weekdays=weekdays))
    except UntranslatableError:
        assert 1 not in days
        assert 0 not in weekdays
        return
    cron = Cron.parse(text)
    assert cron.minutes == sum(1 << minute for minute in minutes)
    day = date(2026, 1, 1)
    while day.year == 2026:
        midnight = int((datetime(day.year, day.month, day.day, tzinfo=UTC) - EPOCH).total_seconds())
        fires = cron.wall_from(midnight) < midnight + 86_400
        assert fires == (day.day in days and day.isoweekday() % 7 in weekdays), (text, day)
        day += timedelta(days=1)
