"""Descriptions of cron expressions: a table of sentences, and different fires are described differently."""

from itertools import combinations
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import parse_instant
from mainspring.core.model.schedules.cron import Cron, DstFold, DstGap, parts
from tests.unit.test_cron import pieces

UTC = ZoneInfo("UTC")
START = parse_instant("2026-01-01T00:00:00Z")

SENTENCES = [
    ("0 0 * * *", "every day at 00:00"),
    ("@daily", "every day at 00:00"),
    ("@midnight", "every day at 00:00"),
    ("@weekly", "every Sunday at 00:00"),
    ("@annually", "on the 1st of January at 00:00"),
    ("0 30 9 * * MON", "every Monday at 09:30"),
    ("30 30 9 * * MON", "every Monday at 09:30:30"),
    ("0 9 * * 0", "every Sunday at 09:00"),
    ("0 9 * * 7", "every Sunday at 09:00"),
    ("0 9 * * 6,0", "every Saturday and Sunday at 09:00"),
    ("0 9 * * MON-SUN", "every day at 09:00"),
    ("0 9 * * MON,WED,FRI", "every Monday, Wednesday and Friday at 09:00"),
    ("0 9 * * 1-5", "every weekday at 09:00"),
    ("15,45 9 * * *", "every day at 09:15 and 09:45"),
    ("0 8-10 * * *", "every day at 08:00, 09:00 and 10:00"),
    ("0 8-18 * * *", "at minute 0 from 08:00 to 18:59"),
    ("0 */6 * * *", "every day at 00:00, 06:00, 12:00 and 18:00"),
    ("0 */3 * * *", "every 3 hours"),
    ("0 1-23/2 * * *", "at minute 0, in hours 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21 and 23"),
    ("30 * * * *", "at minute 30 of every hour"),
    ("0,30 * * * *", "every 30 minutes"),
    ("15,45 * * * *", "at minutes 15 and 45 of every hour"),
    ("*/2 0-30 9 * * *", "every 2 seconds, at minutes 0 to 30 from 09:00 to 09:59"),
    ("*/20 * * * *", "every 20 minutes"),
    ("0-59 * * * *", "every minute"),
    ("* 9 * * *", "every minute from 09:00 to 09:59"),
    ("*/10 9-17 * * *", "every 10 minutes from 09:00 to 17:59"),
    ("*/30 * * * MON", "every 30 minutes, every Monday"),
    ("* * * * SAT", "every minute, every Saturday"),
    ("*/15 * * * * *", "every 15 seconds"),
    ("*/25 * * * * *", "at seconds 0, 25 and 50 of every minute"),
    ("0,30 * * * * *", "every 30 seconds"),
    ("* 0 * * * *", "every second, at minute 0 of every hour"),
    ("*/5 */15 * * * *", "every 5 seconds, every 15 minutes"),
    ("10 0 * * * *", "at second 10, at minute 0 of every hour"),
    ("0 0 1 * *", "on the 1st of every month at 00:00"),
    ("0 0 2,3 * *", "on the 2nd and the 3rd of every month at 00:00"),
    ("0 0 11,12,13 * *", "on the 11th to 13th of every month at 00:00"),
    ("0 0 21,22 * *", "on the 21st and the 22nd of every month at 00:00"),
    ("0 0 1,15 * *", "on the 1st and the 15th of every month at 00:00"),
    ("0 0 1 1,7 *", "on the 1st of January and July at 00:00"),
    ("0 0 * 12 *", "every day in December at 00:00"),
    ("0 0 * 6-8 MON", "every Monday in June, July and August at 00:00"),
    ("0 0 1-31 * MON", "every day at 00:00"),
    ("0 0 13 * 0-6", "every day at 00:00"),
    ("0 0 */31 * MON", "every Monday that is the 1st of every month at 00:00"),
    ("0 0 L 2 *", "on the last day of February at 00:00"),
    ("0 0 L-1 * *", "on the day 1 day before the last of every month at 00:00"),
    ("0 0 LW * *", "on the last weekday of every month at 00:00"),
    ("0 0 1W * *", "on the weekday nearest the 1st of every month at 00:00"),
    ("0 0 1,L * *", "on the 1st and the last day of every month at 00:00"),
    ("0 0 * * 1#1", "the first Monday of the month at 00:00"),
    ("0 0 * * 5#5", "the fifth Friday of the month at 00:00"),
    ("0 0 * * FRIL", "the last Friday of the month at 00:00"),
    ("0 0 * * 1,5L", "every Monday and the last Friday of the month at 00:00"),
    ("0 0 * 3 1#1", "the first Monday of the month in March at 00:00"),
    ("0 0 1 * MON", "on the 1st of every month or every Monday at 00:00"),
    ("0 0 ? * MON", "every Monday at 00:00"),
    ("0 0 1 * ?", "on the 1st of every month at 00:00"),
    ("0 0 29 2 *", "on the 29th of February at 00:00"),
    ("59 23 31 12 *", "on the 31st of December at 23:59"),
]


@pytest.mark.parametrize(("expression", "words"), SENTENCES)
def test_an_expression_is_described_in_words(expression: str, words: str) -> None:
    assert Cron.parse(expression).describe() == words


def fires(cron: Cron, count: int = 400) -> list[int]:
    found: list[int] = []
    after = START
    while len(found) < count and (tick := cron.next_after(after, UTC, DstGap.RUN_AFTER, DstFold.ONCE)) is not None:
        found.append(tick)
        after = tick
    return found


def test_descriptions_are_equal_exactly_if_the_fires_are() -> None:
    samples = [(cron := Cron.parse(expression), fires(cron, 100)) for expression, _ in SENTENCES]
    for (one, its_fires), (other, other_fires) in combinations(samples, 2):
        assert (one.describe() == other.describe()) == (its_fires == other_fires), (one.expression, other.expression)


fields = st.lists(st.lists(pieces, min_size=1, max_size=2).map(",".join), min_size=5, max_size=6).map(" ".join)


@given(fields, fields)
def test_expressions_with_equal_descriptions_have_equal_fires(first: str, second: str) -> None:
    try:
        one, other = Cron.parse(first), Cron.parse(second)
    except Invalid:
        return
    assert one.describe()
    assert other.describe()
    if one.describe() == other.describe():
        assert fires(one, 50) == fires(other, 50), (first, second)


@given(fields)
def test_every_field_is_explained(expression: str) -> None:
    try:
        cron = Cron.parse(expression)
    except Invalid:
        return
    found = parts(cron)
    assert [part.written for part in found] == expression.upper().split()
    assert all(part.means for part in found)


def test_a_macro_is_explained_by_its_fields() -> None:
    assert [(part.field, part.written, part.means) for part in parts(Cron.parse("@weekly"))] == [
        ("minute", "0", "minute 0"),
        ("hour", "0", "hour 0"),
        ("day of month", "*", "every day"),
        ("month", "*", "every month"),
        ("day of week", "0", "every Sunday"),
    ]


def test_six_fields_begin_with_the_second() -> None:
    found = parts(Cron.parse("*/20 5-9,30 8-17 L JAN 5#2"))
    assert [(part.field, part.means) for part in found] == [
        ("second", "every 20 seconds"),
        ("minute", "minutes 5, 6, 7, 8, 9 and 30"),
        ("hour", "hours 8 to 17"),
        ("day of month", "the last day"),
        ("month", "January"),
        ("day of week", "the second Friday of the month"),
    ]
