"""What is kept for the next page."""

from hypothesis import given
from hypothesis import strategies as st

from mainspring.api import readings
from mainspring.api.readings import Readings
from mainspring.domain.instant import SECOND
from tests.support.clock import ManualClock


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 15_000)), max_size=20))
def test_no_more_is_kept_than_there_is_room_for_and_the_newest_stay(kept: list[tuple[str, int]]) -> None:
    found: Readings[int] = Readings(ManualClock())
    for name, size in kept:
        found.keep((None, name), size, size)
        assert found.find((None, name)) == size
        held = [found.find((None, each)) or 0 for each in "abcd"]
        assert sum(held) == found._size <= readings._MOST


def test_it_is_forgotten_after_a_while_and_belongs_to_one_tenant() -> None:
    clock = ManualClock()
    found: Readings[str] = Readings(clock)
    found.keep(("acme", "w"), "read", 1)
    assert (found.find(("acme", "w")), found.find((None, "w"))) == ("read", None)
    clock.advance(31 * SECOND)
    assert found.find(("acme", "w")) is None
    assert found._size == 0
