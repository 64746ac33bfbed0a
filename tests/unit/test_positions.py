"""Places in a stream of several servers."""

from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.positions import further, is_reached, join_position, split_position

places = st.dictionaries(st.integers(0, 63), st.integers(0, 10**12).map(lambda number: f"{number:020d}.0"), min_size=1)


@given(places)
def test_a_position_is_read_as_it_was_written(parts: dict[int, str]) -> None:
    assert split_position(join_position(parts)) == parts


@given(places, places)
def test_whoever_is_further_has_reached_both(one: dict[int, str], other: dict[int, str]) -> None:
    both = further(join_position(one), join_position(other))
    assert is_reached(join_position(one), both)
    assert is_reached(join_position(other), both)
    assert further(both, join_position(one)) == both


def test_one_server_sorts_as_text() -> None:
    assert split_position("00000000000000000012.00000000000000000001") is None
    assert is_reached("01.1", "01.2")
    assert not is_reached("01.2", "01.1")
    assert further("01.2", "01.1") == "01.2"


def test_events_of_another_server_do_not_count() -> None:
    assert not is_reached("0=5|1=2", "0=9")
    assert is_reached("1=2", "0=1|1=3")
