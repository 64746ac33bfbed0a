"""The cache of results for the next page."""

from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.instant import SECOND
from mainspring.http import result_cache as readings
from mainspring.http.result_cache import ResultCache
from tests.support.clock import ManualClock


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 15_000)), max_size=20))
def test_the_cache_stays_within_its_size_and_keeps_the_newest(kept: list[tuple[str, int]]) -> None:
    found: ResultCache[int] = ResultCache(ManualClock())
    for name, size in kept:
        found.keep((None, name), size, size)
        assert found.find((None, name)) == size
        held = [found.find((None, each)) or 0 for each in "abcd"]
        assert sum(held) == found._size <= readings._MOST


def test_cached_results_expire_and_belong_to_one_tenant() -> None:
    clock = ManualClock()
    found: ResultCache[str] = ResultCache(clock)
    found.keep(("acme", "w"), "read", 1)
    assert (found.find(("acme", "w")), found.find((None, "w"))) == ("read", None)
    clock.advance(31 * SECOND)
    assert found.find(("acme", "w")) is None
    assert found._size == 0
