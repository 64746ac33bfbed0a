"""Event offsets in a sharded store: one part for each server."""

from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.event_offsets import further, is_reached, join_position, split_position

offsets = st.dictionaries(st.integers(0, 63), st.integers(0, 10**12).map(lambda number: f"{number:020d}.0"), min_size=1)


@given(offsets)
def test_an_offset_is_parsed_as_it_was_joined(parts: dict[int, str]) -> None:
    assert split_position(join_position(parts)) == parts


@given(offsets, offsets)
def test_the_further_offset_has_reached_both(one: dict[int, str], other: dict[int, str]) -> None:
    both = further(join_position(one), join_position(other))
    assert is_reached(join_position(one), both)
    assert is_reached(join_position(other), both)
    assert further(both, join_position(one)) == both


def test_offsets_of_a_single_server_compare_as_text() -> None:
    assert split_position("00000000000000000012.00000000000000000001") is None
    assert is_reached("01.1", "01.2")
    assert not is_reached("01.2", "01.1")
    assert further("01.2", "01.1") == "01.2"


def test_an_offset_is_reached_only_with_the_part_of_every_server() -> None:
    assert not is_reached("0=5|1=2", "0=9")
    assert is_reached("1=2", "0=1|1=3")
