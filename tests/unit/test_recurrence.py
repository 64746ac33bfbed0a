"""Recurrence rules against dateutil, which is right about what they mean and unbounded in what they cost."""

from datetime import datetime
from itertools import islice, takewhile

import pytest
from dateutil.rrule import rrulestr
from hypothesis import given
from hypothesis import strategies as st
from icalendar import vRecur

from mainspring.core.model.base.errors import Invalid
from mainspring.features.calendars.recurrence import Budget, Rule

FIRST = datetime.fromisoformat("2024-01-31T09:30:00")
UNTIL = datetime.fromisoformat("2034-12-31T23:59:59")


def numbers(name: str, low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high).filter(bool) if low < 0 else st.integers(low, high)
    return st.lists(number, min_size=1, max_size=3).map(lambda found: f"{name}=" + ",".join(map(str, found)))


WEEKDAYS = ["MO", "TU", "WE", "TH", "FR", "SA", "SU"]
plain = st.lists(st.sampled_from(WEEKDAYS), min_size=1, max_size=3).map(lambda days: "BYDAY=" + ",".join(days))
numbered = st.lists(
    st.builds("{}{}".format, st.sampled_from(["1", "+2", "-1", "5", "-3"]), st.sampled_from(WEEKDAYS)),
    min_size=1,
    max_size=2,
).map(lambda days: "BYDAY=" + ",".join(days))


@st.composite
def rules(draw: st.DrawFn) -> str:
    frequency = draw(st.sampled_from(["YEARLY", "MONTHLY", "WEEKLY", "DAILY"]))
    days = [numbers("BYMONTH", 1, 12), numbers("BYMONTHDAY", -31, 31), plain, numbers("BYHOUR", 0, 23)]
    if frequency == "YEARLY":
        days += [numbers("BYYEARDAY", -366, 366), numbers("BYWEEKNO", -53, 53)]
    if frequency in ("YEARLY", "MONTHLY"):
        days += [numbered, numbers("BYSETPOS", -3, 3)]
    parts = draw(st.lists(st.one_of(days), max_size=3, unique_by=lambda part: part.split("=")[0]))
    parts.append(f"INTERVAL={draw(st.integers(1, 7))}")
    if draw(st.booleans()):
        parts.append(f"COUNT={draw(st.integers(1, 30))}")
    if draw(st.booleans()) and not any("BYWEEKNO" in part for part in parts):
        parts.append(f"WKST={draw(st.sampled_from(WEEKDAYS))}")
    return ";".join([f"FREQ={frequency}", *parts])


@given(rules(), st.integers(0, 3_000))
def test_a_rule_has_the_occurrences_that_dateutil_finds(rule: str, skipped: int) -> None:
    expected = list(islice(takewhile(lambda at: at <= UNTIL, rrulestr(rule, dtstart=FIRST)), 50_000))
    read = Rule(vRecur.from_ical(rule), FIRST, 100)
    assert list(islice(read.list_occurrences(FIRST, UNTIL, Budget(1_000_000)), 50_000)) == expected
    # Starting later leaves out only what is earlier.
    since = FIRST.replace(year=2024 + skipped % 11, month=1 + skipped % 12, day=1 + skipped % 28)
    found = [at for at in read.list_occurrences(since, UNTIL, Budget(1_000_000)) if at >= since]
    assert found == [at for at in expected if at >= since]


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("FREQ=HOURLY", "repeats HOURLY"),
        ("FREQ=DAILY;BYHOUR=24", "BYHOUR 24 is out of range"),
        ("FREQ=DAILY;BYMONTHDAY=0", "BYMONTHDAY 0 is out of range"),
        ("FREQ=DAILY;INTERVAL=0", "INTERVAL 0 is out of range"),
        ("FREQ=YEARLY;BYWEEKNO=1;WKST=SU", "BYWEEKNO is not supported with this WKST"),
        ("FREQ=YEARLY;RSCALE=HEBREW", "RSCALE is not supported"),
    ],
)
def test_a_rule_that_is_not_supported_is_rejected(rule: str, reason: str) -> None:
    with pytest.raises(Invalid) as refused:
        Rule(vRecur.from_ical(rule), FIRST, 100)
    assert refused.value.reason == reason


def test_a_rule_stops_when_its_budget_is_spent() -> None:
    rule = Rule(vRecur.from_ical("FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30"), FIRST, 100)
    with pytest.raises(Invalid):
        list(rule.list_occurrences(FIRST, UNTIL, Budget(1_000)))
