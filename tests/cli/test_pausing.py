"""How ``--until`` of a pause is parsed."""

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.cli.pausing import parse_moment
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, HOUR, SECOND, from_datetime, to_datetime
from tests.support.clock import START


def test_until_accepts_a_time_or_a_duration() -> None:
    assert parse_moment("2030-12-31T18:00:00Z", START) == from_datetime(datetime.fromisoformat("2030-12-31T18:00:00Z"))
    assert parse_moment("2h", START) == START + 2 * HOUR
    assert parse_moment("1.5 hours", START) == START + 90 * 60 * SECOND


@given(st.integers(START, START + 400 * DAY), st.times())
def test_a_time_of_day_is_its_next_local_occurrence(now: int, clock: datetime) -> None:
    moment = parse_moment(f"{clock:%H:%M:%S}", now)
    here = to_datetime(moment).astimezone()
    assert now < moment <= now + DAY + 2 * HOUR
    assert abs(here - here.replace(hour=clock.hour, minute=clock.minute, second=clock.second)) <= timedelta(hours=1)


@pytest.mark.parametrize("text", ["", "soon", "25:00", "12:60", "2030-12-31", "18", "2030-12-31T18:00:00"])
def test_any_other_text_is_refused_with_the_name_of_the_option(text: str) -> None:
    with pytest.raises(Invalid, match="--until"):
        parse_moment(text, START)
