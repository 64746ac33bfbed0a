"""Instants and durations as whole microseconds."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import (
    DAY,
    HOUR,
    LATEST,
    MILLISECOND,
    MINUTE,
    PAST_TOLERANCE,
    SECOND,
    Duration,
    Instant,
    explain_past,
    format_duration,
    from_datetime,
    isoformat,
    parse_duration,
    parse_instant,
    to_datetime,
)

instants = st.integers(0, LATEST)


@given(instants)
def test_an_instant_survives_conversion_to_a_datetime(instant: Instant) -> None:
    assert from_datetime(to_datetime(instant)) == instant


@given(instants)
def test_an_instant_survives_conversion_to_text(instant: Instant) -> None:
    assert parse_instant(isoformat(instant)) == instant


@given(st.integers(DAY, LATEST - DAY), st.integers(-23 * 60, 23 * 60))
def test_the_zone_a_time_is_written_in_does_not_matter(instant: Instant, offset: int) -> None:
    moment = to_datetime(instant).astimezone(timezone(timedelta(minutes=offset)))
    assert from_datetime(moment) == instant
    assert parse_instant(moment.isoformat()) == instant


def test_both_passes_of_a_repeated_hour_are_different_instants() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    first = datetime(2026, 10, 25, 2, 30, tzinfo=berlin)
    second = first.replace(fold=1)
    assert from_datetime(second) - from_datetime(first) == HOUR


def test_text_is_rfc_3339_in_utc() -> None:
    assert isoformat(0) == "1970-01-01T00:00:00Z"
    assert isoformat(1_500_000) == "1970-01-01T00:00:01.500000Z"
    assert isoformat(2**62) == "9999-12-31T23:59:59Z"
    assert parse_instant("1970-01-01T01:00:01+01:00") == SECOND


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "2026-13-01T00:00:00Z",
        "2026-01-01T00:00:00",
        "2026-01-01",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        "1969-12-31T23:59:59Z",
    ],
)
def test_an_invalid_instant_is_rejected_by_field(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_instant(text, "startBy")
    assert refused.value.field == "startBy"


def test_a_datetime_without_a_zone_is_rejected() -> None:
    with pytest.raises(Invalid):
        from_datetime(datetime(2026, 1, 1))  # noqa: DTZ001


def test_the_ends_of_the_calendar_do_not_overflow() -> None:
    assert from_datetime(datetime.max.replace(tzinfo=timezone(timedelta(hours=-14)))) > LATEST
    assert from_datetime(datetime.min.replace(tzinfo=UTC)) < 0


@given(st.integers(0, LATEST))
def test_a_duration_survives_conversion_to_text(micros: int) -> None:
    assert parse_duration(format_duration(micros)) == micros


@pytest.mark.parametrize(
    ("value", "micros"),
    [
        (30, 30 * SECOND),
        (0.25, 250 * MILLISECOND),
        ("250ms", 250 * MILLISECOND),
        ("1h30m", 90 * MINUTE),
        (" 1 h  30 min ", 90 * MINUTE),
        ("5", 5 * SECOND),
        (" 0.25 ", 250 * MILLISECOND),
        ("2 days", 2 * DAY),
        ("1.5h", 90 * MINUTE),
        ("1w", 7 * DAY),
        ("0s", 0),
        ("7us", 7),
        (timedelta(days=1, microseconds=1), DAY + 1),
    ],
)
def test_durations_may_be_written_in_many_ways(value: Duration, micros: int) -> None:
    assert parse_duration(value) == micros


@pytest.mark.parametrize(
    "value",
    [
        "",
        "  ",
        "5 5",
        "5 5s",
        "s",
        "1M",
        "1x",
        "1h-30m",
        "-1s",
        "1 fortnight",
        "1h" * 100,
        -1,
        timedelta(seconds=-1),
        True,
        float("nan"),
        float("inf"),
        1e13,
        "٣s",
        "３0m",
        "1٫5h",
    ],
)
def test_an_invalid_duration_is_rejected_by_field(value: Duration) -> None:
    with pytest.raises(Invalid) as refused:
        parse_duration(value, "timeout")
    assert refused.value.field == "timeout"


@pytest.mark.parametrize(("text", "meant"), [("1M", "1m"), ("1H30m", "1h30m"), ("2 Days", "2 days")])
def test_an_upper_case_unit_is_refused_with_a_suggestion(text: str, meant: str) -> None:
    with pytest.raises(Invalid, match=f'did you mean "{meant}"\\? Units are lower case'):
        parse_duration(text, "every")


def test_a_due_time_in_the_past_is_explained_beyond_the_tolerance() -> None:
    now = 10 * DAY
    assert explain_past(None, now, "at") is None
    assert explain_past(now + 1, now, "at") is None
    assert explain_past(now - PAST_TOLERANCE, now, "at") is None
    late = explain_past(now - PAST_TOLERANCE - 1, now, "at")
    assert late is not None
    assert str(late).startswith("at: 1970-01-10T23:59:54.999999Z is 5s in the past")


@given(st.text(max_size=200))
def test_any_text_is_parsed_or_rejected_as_invalid(text: str) -> None:
    for parse in (parse_duration, parse_instant):
        with suppress(Invalid):
            assert parse(text) >= 0
