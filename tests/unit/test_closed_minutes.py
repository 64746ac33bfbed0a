"""The forecast with calendars, compared with ticks that are moved one by one."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, parse_instant
from mainspring.core.model.schedules.calendar import Calendar, CalendarSpec, Freeze, WhenClosed
from mainspring.core.model.schedules.closed_periods import ClosedPeriods, CompiledCalendar
from mainspring.core.model.schedules.forecast import Planned, forecast
from mainspring.core.model.schedules.schedule import CronSchedule, ticks_between
from tests.support.builders import every

FRIDAY = parse_instant("2026-06-05T00:00:00Z")


def closed_periods(rule: WhenClosed, *freezes: tuple[int, int], weekend: bool = True) -> ClosedPeriods:
    spec = CalendarSpec(
        closed_days=("sat", "sun") if weekend else (),
        freezes=tuple(Freeze(start=FRIDAY + start * MINUTE, end=FRIDAY + end * MINUTE) for start, end in freezes),
    )
    return ClosedPeriods([CompiledCalendar(Calendar(tenant="default", name="office", version=1, spec=spec))], rule)


@given(
    st.sampled_from(list(WhenClosed)),
    st.lists(st.tuples(st.integers(0, 2_000), st.integers(1, 600)), max_size=3),
    st.sampled_from([every(HOUR), every(20 * MINUTE), CronSchedule("30 9,17 * * *")]),
    st.booleans(),
)
def test_every_tick_is_counted_in_the_minute_in_which_its_run_starts(
    rule: WhenClosed, spans: list[tuple[int, int]], schedule: CronSchedule, weekend: bool
) -> None:
    found = closed_periods(rule, *((start, start + long) for start, long in spans), weekend=weekend)
    planned = Planned(name="job", schedule=schedule, key="job", closed_periods=found)
    counted = forecast([planned], FRIDAY, 1_440)
    expected: Counter[int] = Counter()
    for tick in ticks_between(schedule, FRIDAY - 1, FRIDAY + 4 * DAY, "job", 10_000):
        at = found.place(tick).at
        # Ticks that an earlier closed period delays are runs already.
        if at is not None and FRIDAY <= at < FRIDAY + DAY:
            expected[(at - FRIDAY) // MINUTE] += 1
    assert {minute: runs for minute, runs in enumerate(counted.counts) if runs} == expected


def test_the_forecast_counts_skipped_and_moved_ticks() -> None:
    planned = Planned(name="job", schedule=every(HOUR), key="job", closed_periods=closed_periods(WhenClosed.SKIP))
    assert forecast([planned], FRIDAY, 2 * 1_440).closed == 24
    planned = Planned(name="job", schedule=every(HOUR), key="job", closed_periods=closed_periods(WhenClosed.BEFORE))
    counted = forecast([planned], FRIDAY, 1_440)
    assert (counted.moved, counted.counts[1_439]) == (48, 48)
