"""A replica is never reported as fresher than it is."""

from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.staleness import staleness

#: How much the primary's log grows between one moment and the next.
growth = st.lists(st.integers(0, 5), min_size=1, max_size=30)


@given(growth, st.sets(st.integers(0, 29)), st.integers(0, 200), st.integers(0, 10))
def test_a_replica_shows_every_commit_older_than_its_reported_staleness(
    grown: list[int], looked_at: set[int], replayed: int, later: int
) -> None:
    """A commit happens just before each moment, at the log position of that moment."""
    log = [sum(grown[: moment + 1]) for moment in range(len(grown))]
    samples = [(moment, log[moment]) for moment in sorted(looked_at) if moment < len(log)]
    now = len(log) - 1 + later
    behind = staleness(samples, replayed, now)
    if behind is None:
        assert all(position > replayed for _, position in samples)
        return
    moment = now - behind
    assert all(log[earlier] <= replayed for earlier in range(moment + 1))


def test_a_replica_at_the_latest_position_of_the_primary_is_fresh() -> None:
    assert staleness([(0, 10), (7, 20)], 20, 7) == 0
    assert staleness([(0, 10), (7, 20)], 19, 7) == 7
    assert staleness([(7, 20)], 19, 7) is None


def test_a_clock_that_went_back_makes_no_negative_staleness() -> None:
    assert staleness([(7, 20)], 20, 6) == 0
