"""Holidays and freezes from iCalendar files."""

import pytest

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import parse_instant as at
from mainspring.core.model.schedules.calendar import CalendarSpec, Freeze, Holiday
from mainspring.features.calendars.ical import read_ical
from tests.support.line_count import at_most_lines

NOW = at("2026-06-01T00:00:00Z")


def ical(*events: str) -> str:
    blocks = [
        f"BEGIN:VEVENT\r\nUID:{number}@test\r\n{event.strip()}\r\nEND:VEVENT" for number, event in enumerate(events)
    ]
    lines = "\r\n".join(blocks).replace("\r\n", "\n").replace("\n    ", "\n")
    return f"BEGIN:VCALENDAR\nVERSION:2.0\nPRODID:-//test//EN\n{lines}\nEND:VCALENDAR\n".replace("\n", "\r\n")


def holidays(*events: str) -> list[tuple[str, str, str]]:
    found, freezes = read_ical(ical(*events), "Europe/Paris", NOW)
    CalendarSpec(timezone="Europe/Paris", holidays=found, freezes=freezes).check()
    assert freezes == ()
    return [(one.date, one.until, one.label) for one in found]


def freezes(*events: str) -> list[tuple[int, int]]:
    days, found = read_ical(ical(*events), "Europe/Paris", NOW)
    assert days == ()
    return [(one.start, one.end) for one in found]


def test_an_all_day_event_is_a_holiday_of_one_or_more_days() -> None:
    assert holidays(
        "DTSTART;VALUE=DATE:20261225\nSUMMARY:Noël\\, férié",
        "DTSTART;VALUE=DATE:20260713\nDTEND;VALUE=DATE:20260715",
        "DTSTART;VALUE=DATE:20260801\nDURATION:P3D",
    ) == [
        ("2026-07-13", "2026-07-14", ""),
        ("2026-08-01", "2026-08-03", ""),
        ("2026-12-25", "", "Noël, férié"),
    ]


def test_a_yearly_event_is_expanded_for_ten_years_without_past_years() -> None:
    found = holidays("DTSTART;VALUE=DATE:19580714\nRRULE:FREQ=YEARLY\nSUMMARY:14 juillet")
    assert [day for day, _, _ in found] == [f"{year}-07-14" for year in range(2025, 2036)]


@pytest.mark.parametrize(
    ("rule", "days"),
    [
        ("FREQ=YEARLY;COUNT=3", ["2026-01-01", "2027-01-01", "2028-01-01"]),
        ("FREQ=YEARLY;UNTIL=20280101", ["2026-01-01", "2027-01-01", "2028-01-01"]),
        ("FREQ=YEARLY;UNTIL=20280101T000000Z", ["2026-01-01", "2027-01-01", "2028-01-01"]),
        ("FREQ=WEEKLY;BYDAY=SA,SU;UNTIL=20260112", ["2026-01-03", "2026-01-04", "2026-01-10", "2026-01-11"]),
        ("FREQ=MONTHLY;INTERVAL=2;COUNT=3", ["2026-01-01", "2026-03-01", "2026-05-01"]),
        ("FREQ=YEARLY;BYMONTH=11;BYDAY=4TH;COUNT=2", ["2026-11-26", "2027-11-25"]),
    ],
)
def test_recurrence_rules_are_expanded(rule: str, days: list[str]) -> None:
    assert [day for day, _, _ in holidays(f"DTSTART;VALUE=DATE:20260101\nRRULE:{rule}")] == days


def test_single_dates_are_excluded_added_moved_and_cancelled() -> None:
    text = ical(
        "DTSTART;VALUE=DATE:20260105\nRRULE:FREQ=WEEKLY;COUNT=4\nEXDATE;VALUE=DATE:20260112\nRDATE;VALUE=DATE:20260301",
        "DTSTART;VALUE=DATE:20260120\nRECURRENCE-ID;VALUE=DATE:20260119",
        "DTSTART;VALUE=DATE:20260501\nSTATUS:CANCELLED",
    ).replace("UID:1@test", "UID:0@test")
    found, _ = read_ical(text, "UTC", NOW)
    assert [one.date for one in found] == ["2026-01-05", "2026-01-20", "2026-01-26", "2026-03-01"]


def test_events_with_times_are_freezes_in_their_own_zone_or_that_of_the_calendar() -> None:
    assert freezes(
        "DTSTART:20260701T220000Z\nDTEND:20260702T010000Z",
        "DTSTART;TZID=America/New_York:20260703T090000\nDURATION:PT1H",
        "DTSTART:20260704T090000\nDTEND:20260704T100000",
        "DTSTART:20260705T090000Z",
    ) == [
        (at("2026-07-01T22:00:00Z"), at("2026-07-02T01:00:00Z")),
        (at("2026-07-03T13:00:00Z"), at("2026-07-03T14:00:00Z")),
        (at("2026-07-04T07:00:00Z"), at("2026-07-04T08:00:00Z")),
    ]


def test_a_recurring_event_keeps_its_local_time_across_a_clock_change() -> None:
    found = freezes("DTSTART;TZID=Europe/Paris:20261018T090000\nDURATION:PT1H\nRRULE:FREQ=WEEKLY;COUNT=2")
    assert [start for start, _ in found] == [at("2026-10-18T07:00:00Z"), at("2026-10-25T08:00:00Z")]


@pytest.mark.parametrize(
    ("event", "field"),
    [
        ("DTSTART:20260101T000000Z\nRRULE:FREQ=MINUTELY", "ical, event 1: RRULE"),
        ("DTSTART;VALUE=DATE:17760704\nRRULE:FREQ=DAILY", "ical, event 1: DTSTART"),
        ("DTSTART;VALUE=DATE:20260102\nDTEND;VALUE=DATE:20260101", "ical, event 1: DTEND"),
        ("SUMMARY:no time at all", "ical, event 1"),
    ],
)
def test_an_invalid_event_is_rejected_by_its_number(event: str, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        read_ical(ical(event), "UTC", NOW)
    assert refused.value.field == field


@pytest.mark.parametrize("text", ["", "hello", "BEGIN:VCALENDAR\r\nEND:VCALENDAR\r\n", '{"a": 1}'])
def test_text_that_is_not_a_calendar_is_rejected(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        read_ical(text, "UTC", NOW)
    assert refused.value.field == "ical"


def test_a_rule_that_never_matches_gives_no_holidays() -> None:
    assert holidays("DTSTART;VALUE=DATE:20260101\nRRULE:FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30;COUNT=5") == []


def test_a_daily_rule_without_an_end_is_bounded() -> None:
    found, _ = read_ical(ical("DTSTART;VALUE=DATE:20260101\nRRULE:FREQ=DAILY"), "UTC", NOW)
    assert len(found) < 4_000
    assert found[0] == Holiday(date="2026-01-01")
    assert Freeze(start=0, end=1).label == ""


SECONDS = ",".join(map(str, range(60)))
HOURS = ",".join(map(str, range(24)))


@pytest.mark.parametrize(
    "event",
    [
        f"DTSTART:20260101T000000Z\nDURATION:PT1S\nRRULE:FREQ=DAILY;BYMINUTE={SECONDS};BYSECOND={SECONDS}",
        f"DTSTART:20260101T000000Z\nDURATION:PT1S\nRRULE:FREQ=DAILY;BYHOUR={HOURS};BYMINUTE={SECONDS}",
        "DTSTART:20260101T000000Z\nDURATION:PT1S\nRRULE:FREQ=DAILY;BYHOUR=0,1,2,3",
    ],
)
def test_a_rule_with_too_many_occurrences_is_rejected_after_bounded_work(event: str) -> None:
    with at_most_lines(4_000_000), pytest.raises(Invalid) as refused:
        read_ical(ical(event), "UTC", NOW)
    assert refused.value.field == "ical, event 1: RRULE"


def test_a_rule_that_never_matches_costs_little_per_event() -> None:
    event = "DTSTART;VALUE=DATE:19000101\nRRULE:FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30"
    with at_most_lines(3_000_000):
        assert holidays(*[event] * 10) == []


def test_all_events_of_a_file_share_one_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.features.calendars.ical._MAX_STEPS", 20_000)
    event = "DTSTART;VALUE=DATE:20260101\nRRULE:FREQ=DAILY;BYMONTHDAY=31"
    assert len(holidays(event)) > 50
    with pytest.raises(Invalid) as refused:
        read_ical(ical(*[event] * 20), "UTC", NOW)
    assert refused.value.field == "ical, event 6: RRULE"
    assert refused.value.reason == "takes too much work to expand"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("BEGIN:VEVENT\nEND:VEVENT\n" * 30_000, "has 30000 components"),
        ("X:1\n" * 300_000, "has 300001 lines"),
        ("EXDATE:" + "20260101," * 20_000, "has 20001 dates in EXDATE and RDATE"),
        ("EX\n DATE:" + "20260101,\n " * 20_000, "has 20001 dates in EXDATE and RDATE"),
    ],
)
def test_a_file_that_is_too_large_is_rejected_before_it_is_parsed(text: str, reason: str) -> None:
    with at_most_lines(3_000_000), pytest.raises(Invalid) as refused:
        read_ical(text, "UTC", NOW)
    assert (refused.value.field, refused.value.reason) == ("ical", reason)


@pytest.mark.parametrize(
    "unused", ["CATEGORIES:" + "," * 500_000, "ATTENDEE" + ";X=y" * 100_000 + ":a", "X-A:b\n" * 50_000]
)
def test_properties_that_are_not_read_cost_nothing(unused: str) -> None:
    with at_most_lines(1_000_000):
        assert holidays(f"DTSTART;VALUE=DATE:20261225\n{unused}") == [("2026-12-25", "", "")]


ZONE = """BEGIN:VTIMEZONE
TZID:{name}
BEGIN:STANDARD
DTSTART:16010101T000000
RRULE:FREQ=SECONDLY
TZOFFSETFROM:+0100
TZOFFSETTO:+0100
END:STANDARD
END:VTIMEZONE
"""


def test_the_rules_of_a_zone_in_the_file_are_not_expanded() -> None:
    event = ical("DTSTART;TZID=/example.org/Europe/Paris:20261018T090000\nDURATION:PT1H")
    text = ZONE.format(name="/example.org/Europe/Paris").replace("\n", "\r\n")
    with at_most_lines(200_000):
        _, [found] = read_ical(event.replace("BEGIN:VEVENT", text + "BEGIN:VEVENT"), "UTC", NOW)
    assert found.start == at("2026-10-18T07:00:00Z")


def test_an_unknown_zone_of_an_event_is_rejected() -> None:
    event = ical("DTSTART;TZID=Headquarters:20261018T090000\nDURATION:PT1H")
    with pytest.raises(Invalid) as refused:
        read_ical(event.replace("BEGIN:VEVENT", ZONE.format(name="Headquarters") + "BEGIN:VEVENT"), "UTC", NOW)
    assert refused.value.field == "ical, event 1: TZID"


def test_a_byte_order_mark_is_ignored() -> None:
    found, _ = read_ical("\ufeff" + ical("DTSTART;VALUE=DATE:20261225"), "UTC", NOW)
    assert found == (Holiday(date="2026-12-25"),)
