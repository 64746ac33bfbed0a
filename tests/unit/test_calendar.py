"""Closed periods, compared with a scan of every minute in local time."""

from datetime import date, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, SECOND, Instant, parse_instant, to_datetime
from mainspring.core.model.schedules.calendar import (
    DAYS,
    Calendar,
    CalendarSpec,
    Covers,
    Freeze,
    Holiday,
    OpenHours,
    WhenClosed,
)
from mainspring.core.model.schedules.closed_periods import (
    ClosedPeriods,
    CompiledCalendar,
    TickPlacement,
    select_closed_periods,
)
from tests.support.line_count import at_most_lines

#: Zones that change their offset at odd hours, by half an hour or at midnight, and one that never does.
ZONES = ["UTC", "Europe/Paris", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Asia/Beirut"]
#: A week around each clock change of the northern spring and autumn of 2026.
FROM = [parse_instant(f"2026-{day}T00:00:00Z") for day in ("03-06", "03-27", "04-03", "09-04", "10-23", "10-30")]
LONG = 5 * DAY


def at(text: str) -> Instant:
    return parse_instant(text)


def closed(spec: CalendarSpec, name: str = "office", version: int = 1) -> CompiledCalendar:
    spec.check()
    return CompiledCalendar(Calendar(tenant="default", name=name, version=version, spec=spec))


def closed_periods(*specs: CalendarSpec, rule: WhenClosed = WhenClosed.SKIP) -> ClosedPeriods:
    return ClosedPeriods([closed(spec, f"calendar-{number}") for number, spec in enumerate(specs)], rule)


@cache
def local_parts(zone: str, instant: Instant) -> tuple[str, str, str]:
    local = to_datetime(instant).astimezone(ZoneInfo(zone))
    return DAYS[local.weekday()], f"{local:%Y-%m-%d}", f"{local:%H:%M}"


def is_closed_in_local_time(spec: CalendarSpec, instant: Instant) -> bool:
    """The rules implemented a second time, for one minute in local time."""
    day, today, time = local_parts(spec.timezone, instant)
    return (
        day in spec.closed_days
        or any(freeze.start <= instant < freeze.end for freeze in spec.freezes)
        or any(one.date <= today <= (one.until or one.date) for one in spec.holidays)
        or bool(spec.open_hours and not any(day in one.days and one.start <= time < one.end for one in spec.open_hours))
    )


minutes = st.integers(0, 24 * 4 - 1).map(lambda quarter: quarter * 15)


def _time(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


hours = st.builds(
    lambda days, start, long: OpenHours(days=tuple(days), start=_time(start), end=_time(min(start + long, 1440))),
    st.sets(st.sampled_from(DAYS), min_size=2),
    minutes,
    st.integers(15, 1440),
)


@st.composite
def calendars(draw: st.DrawFn, start: Instant) -> CalendarSpec:
    first = to_datetime(start).date()
    days = st.integers(0, 6).map(lambda number: first + timedelta(days=number))
    holidays = st.builds(
        lambda day, more: Holiday(date=str(day), until=str(day + timedelta(days=more)) if more else ""),
        days,
        st.integers(0, 2),
    )
    freezes = st.builds(
        lambda begin, long: Freeze(start=start + begin * MINUTE, end=start + (begin + long) * MINUTE),
        st.integers(0, 6 * 1440),
        st.integers(1, 2 * 1440),
    )
    spec = CalendarSpec(
        timezone=draw(st.sampled_from(ZONES)),
        closed_days=tuple(draw(st.sets(st.sampled_from(DAYS), max_size=3))),
        open_hours=tuple(draw(st.lists(hours, max_size=3))),
        holidays=tuple(draw(st.lists(holidays, max_size=2))),
        freezes=tuple(draw(st.lists(freezes, max_size=2))),
    )
    try:
        spec.check()
    except Invalid:
        assume(False)
    return spec


@st.composite
def calendar_sets(draw: st.DrawFn) -> tuple[Instant, list[CalendarSpec]]:
    start = draw(st.sampled_from(FROM))
    return start, draw(st.lists(calendars(start), min_size=1, max_size=3))


@given(calendar_sets(), st.lists(st.integers(0, LONG // MINUTE - 1), min_size=1, max_size=20))
@settings(max_examples=40, deadline=None)
def test_closed_periods_agree_with_a_scan_of_every_minute(
    case: tuple[Instant, list[CalendarSpec]], asked: list[int]
) -> None:
    start, specs = case
    found = closed_periods(*specs)
    scan = [any(is_closed_in_local_time(spec, start + n * MINUTE) for spec in specs) for n in range(LONG // MINUTE)]
    for number in asked:
        instant = start + number * MINUTE + 17 * SECOND + 3
        assert found.is_closed(instant) == scan[number]
        if not scan[number]:
            assert found.next_open(instant) == found.last_open_before(instant) == instant
            continue
        opens = next((n for n in range(number, len(scan)) if not scan[n]), None)
        if opens is not None:
            assert found.next_open(instant) == start + opens * MINUTE
        ended = next((n for n in range(number, -1, -1) if not scan[n]), None)
        if ended is not None:
            assert found.last_open_before(instant) == start + (ended + 1) * MINUTE - SECOND
    spans = found.spans(start, start + LONG, 10_000)
    listed = [any(span.start <= start + n * MINUTE < (span.end or 2**62) for span in spans) for n in range(len(scan))]
    assert listed == scan


def test_a_tick_on_a_weekend_moves_to_friday_night_or_monday_morning() -> None:
    weekends = CalendarSpec(timezone="Europe/Paris", closed_days=("sat", "sun"))
    sunday = at("2026-03-29T07:00:00Z")
    assert closed_periods(weekends).place(sunday) == TickPlacement(None, "calendar: calendar-0, version 1")
    before = closed_periods(weekends, rule=WhenClosed.BEFORE).place(sunday)
    assert before == TickPlacement(at("2026-03-27T22:59:59Z"), "moved before, calendar: calendar-0, version 1")
    # Clocks go forward that morning.
    after = closed_periods(weekends, rule=WhenClosed.AFTER).place(sunday)
    assert after == TickPlacement(at("2026-03-29T22:00:00Z"), "moved after, calendar: calendar-0, version 1")


def test_the_first_calendar_that_is_closed_gives_the_reason() -> None:
    noel = CalendarSpec(holidays=(Holiday(date="2026-12-25", label="Noël"),))
    friday = CalendarSpec(closed_days=("fri",))
    found = closed_periods(noel, friday)
    assert found.place(at("2026-12-25T12:00:00Z")).reason == "calendar: calendar-0, version 1"
    assert found.place(at("2026-12-18T12:00:00Z")).reason == "calendar: calendar-1, version 1"
    assert [span.label for span in found.spans(at("2026-12-24T12:00:00Z"), at("2026-12-27T00:00:00Z"), 9)] == ["Noël"]


def test_a_tick_is_skipped_under_every_rule_if_the_calendars_never_open() -> None:
    even, odd = CalendarSpec(closed_days=DAYS[::2]), CalendarSpec(closed_days=DAYS[1::2])
    for rule in WhenClosed:
        assert closed_periods(even, odd, rule=rule).place(at("2026-01-01T00:00:00Z")).at is None
    assert closed_periods(even, odd, rule=WhenClosed.BEFORE).reach(5 * DAY) == 5 * DAY


def test_a_calendar_covers_everything_or_its_tags_queues_and_named_jobs() -> None:
    freeze = (Freeze(start=HOUR, end=2 * HOUR),)
    everything = closed(CalendarSpec(freezes=freeze, covers=Covers(everything=True)), "everything")
    tagged = closed(CalendarSpec(freezes=freeze, covers=Covers(tags=("db",), queues=("mail",))), "tagged")
    named = closed(CalendarSpec(freezes=freeze), "named")

    def list_calendars(*names: str, tags: tuple[str, ...] = (), queue: str = "default") -> list[str]:
        found = select_closed_periods([everything, tagged, named], names, tags, queue, WhenClosed.SKIP)
        return [] if found is None else [calendar.name for calendar in found.calendars]

    assert list_calendars() == ["everything"]
    assert list_calendars("named") == ["everything", "named"]
    assert list_calendars(tags=("x", "db")) == list_calendars(queue="mail") == ["everything", "tagged"]
    assert select_closed_periods([named], [], [], "default", WhenClosed.SKIP) is None


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (CalendarSpec(timezone="Mars/Olympus"), "timezone"),
        (CalendarSpec(closed_days=("saturday",)), "closedDays"),
        (CalendarSpec(closed_days=DAYS), "closedDays"),
        (CalendarSpec(open_hours=(OpenHours(days=("mon",), start="9:00", end="17:00"),)), "openHours[0].start"),
        (CalendarSpec(open_hours=(OpenHours(days=("mon",), start="09:00", end="24:01"),)), "openHours[0].end"),
        (CalendarSpec(open_hours=(OpenHours(days=("mon",), start="22:00", end="06:00"),)), "openHours[0].end"),
        (CalendarSpec(open_hours=(OpenHours(days=(), start="09:00", end="17:00"),)), "openHours[0].days"),
        (
            CalendarSpec(closed_days=("mon",), open_hours=(OpenHours(days=("mon",), start="09:00", end="17:00"),)),
            "openHours",
        ),
        (CalendarSpec(holidays=(Holiday(date="2026-02-30"),)), "holidays[0].date"),
        (CalendarSpec(holidays=(Holiday(date="2026-W10-1"),)), "holidays[0].date"),
        (CalendarSpec(holidays=(Holiday(date="2026-02-02", until="2026-02-01"),)), "holidays[0].until"),
        (CalendarSpec(freezes=(Freeze(start=HOUR, end=HOUR),)), "freezes[0].end"),
        (CalendarSpec(freezes=(Freeze(start=HOUR + 1, end=2 * HOUR),)), "freezes[0].start"),
        (CalendarSpec(covers=Covers()), "covers"),
    ],
)
def test_an_invalid_calendar_is_rejected_by_field(spec: CalendarSpec, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        spec.check()
    assert refused.value.field == field


def test_a_long_list_of_holidays_is_searched_without_walking_it() -> None:
    days = [date(1990, 1, 1) + timedelta(days=2 * number) for number in range(10_000)]
    found = closed_periods(CalendarSpec(holidays=tuple(Holiday(date=str(day)) for day in days)))
    with at_most_lines(1_000):
        assert found.next_open(at("2026-01-01T05:00:00Z")) == at("2026-01-01T05:00:00Z")
        assert found.next_open(at("2026-01-02T05:00:00Z")) == at("2026-01-03T00:00:00Z")
