"""Fuzz targets of texts: cron expressions, durations and iCalendar files."""

from typing import Any
from unittest.mock import patch

from hypothesis import strategies as st

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import format_duration, parse_duration, parse_instant
from mainspring.core.model.schedules.calendar import CalendarSpec
from mainspring.core.model.schedules.schedule import CronSchedule, describe, latest_until, next_after, validate
from mainspring.features.calendars import ical
from tests.support.line_count import at_most_lines
from tools.fuzz.target import Target, mixed, mutated

NOW = parse_instant("2026-03-28T12:00:00Z")
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia")

_CRON_PIECES = (
    *"0123456789*/,-LW#?H ",
    " ",
    " ",
    "MON",
    "fri",
    "JAN",
    "dec",
    "SUN-",
    "59",
    "31",
    "12",
    "@daily",
    "@",
    "L-3",
)
_FIELD = st.one_of(
    st.sampled_from(
        ["*", "?", "0", "*/5", "H", "L", "LW", "15W", "5L", "5#2", "L-3", "1-5", "MON-FRI", "29", "30", "31", "2"]
    ),
    mixed(*_CRON_PIECES),
)
CRON = st.one_of(
    st.lists(_FIELD, min_size=4, max_size=8).map(" ".join),
    mixed(*_CRON_PIECES),
    mutated("0 9 * * MON-FRI", "*/15 0 0 29 2 *", "H H(0-7) L-3,15W */2 5#2", "@every 5m", "0 0 31 2,4,6 ?"),
    st.text(max_size=200),
)


def check_cron(case: tuple[str, str, int]) -> None:
    expression, zone, after = case
    schedule = CronSchedule(expression, timezone=zone)
    with at_most_lines(200_000):
        try:
            validate(schedule, "key")
        except Invalid:
            return
        assert describe(schedule, "key")
        for _ in range(3):
            tick = next_after(schedule, after, "key")
            if tick is None:
                return
            assert tick > after
            assert latest_until(schedule, tick, "key") == tick
            after = tick


DURATIONS = st.one_of(
    mixed(
        *"0123456789.,+-_ ", "s", "m", "h", "d", "w", "ms", "us", "µs", "days", "1e9", "inf", "nan", "PT5M", "٣", "²"
    ),
    mutated("1h30m", "250ms", "2 days", "1.5h", "P1DT2H"),
    st.text(max_size=200),
    st.integers(),
    st.floats(),
    st.timedeltas(),
    st.none() | st.booleans() | st.lists(st.integers(), max_size=2),
)


def check_duration(value: Any) -> None:
    try:
        with at_most_lines(2_000):
            micros = parse_duration(value, "field")
    except Invalid:
        return
    assert type(micros) is int
    assert micros >= 0
    # Longer texts are refused, and fields have limits of their own.
    if micros < 10**18:
        assert parse_duration(format_duration(micros)) == micros


_DATES = mutated(
    *("20260101", "20260329T020000", "20261025T010000Z", "99991231T235959Z", "00010101", "20260230", "20260101T000000")
)
_NUMBERS = st.lists(st.integers(-400, 400) | st.sampled_from([0, 1, 59, 10**9]), max_size=12).map(
    lambda numbers: ",".join(map(str, numbers))
)
_RULE_PARTS = st.one_of(
    st.sampled_from(["SECONDLY", "MINUTELY", "HOURLY", "DAILY", "WEEKLY", "MONTHLY", "YEARLY", "X"]).map(
        "FREQ={}".format
    ),
    st.builds(
        "{}={}".format,
        st.sampled_from(
            [
                "INTERVAL",
                "COUNT",
                "BYSECOND",
                "BYMINUTE",
                "BYHOUR",
                "BYMONTHDAY",
                "BYYEARDAY",
                "BYWEEKNO",
                "BYMONTH",
                "BYSETPOS",
            ]
        ),
        _NUMBERS,
    ),
    st.sampled_from(["BYDAY=MO,-1SU,53TU", "BYDAY=XX", "WKST=SU", "UNTIL=20991231", "UNTIL=20260101T000000Z", ""]),
)
_RULE = st.lists(_RULE_PARTS, max_size=6).map(";".join)
_LINE = st.one_of(
    st.builds(
        "{}{}:{}".format,
        st.sampled_from(["DTSTART", "DTEND", "RECURRENCE-ID", "EXDATE", "RDATE"]),
        st.sampled_from(["", ";VALUE=DATE", ";TZID=Europe/Berlin", ";TZID=/x/Nowhere", ";VALUE=PERIOD"]),
        _DATES,
    ),
    _RULE.map("RRULE:{}".format),
    st.builds(
        "{}:{}".format, st.sampled_from(["DURATION", "SUMMARY", "UID", "STATUS"]), mutated("P1D", "-PT5M", "P9999W")
    ),
    st.sampled_from(["BEGIN:VEVENT", "END:VEVENT", "BEGIN:VTIMEZONE", "END:VTIMEZONE", "BEGIN:VCALENDAR", " folded"]),
    st.text(max_size=30),
)
_EVENT = st.lists(_LINE, max_size=8).map(
    lambda lines: "\r\n".join(["BEGIN:VEVENT", "DTSTART;VALUE=DATE:20260301", *lines, "END:VEVENT"])
)
ICAL = st.one_of(
    st.lists(_EVENT, max_size=4).map(lambda events: "\r\n".join(["BEGIN:VCALENDAR", *events, "END:VCALENDAR", ""])),
    st.lists(_LINE, max_size=12).map("\r\n".join),
    st.text(max_size=300),
)
#: The limit of a file, made so small that a fuzzer reaches it often.
_STEPS = 2_000


def check_ical(text: str) -> None:
    with patch.object(ical, "_MAX_STEPS", _STEPS), at_most_lines(2_000_000):
        try:
            holidays, freezes = ical.read_ical(text, "Europe/Berlin", NOW)
            CalendarSpec(timezone="Europe/Berlin", holidays=holidays, freezes=freezes).check()
        except Invalid:
            return
    assert len(holidays) + len(freezes) <= _STEPS


TARGETS = {
    "cron": Target(st.tuples(CRON, st.sampled_from(ZONES), st.integers(0, NOW * 2)), check_cron, examples=32_000),
    "durations": Target(DURATIONS, check_duration, examples=50_000),
    "ical": Target(ICAL, check_ical, examples=10_000),
}
