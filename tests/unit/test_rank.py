"""Ranks: priority with aging, and the documented bound of overtaking."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY
from mainspring.core.model.runs.rank import (
    HEAD_START,
    IDLE,
    LATE_PENALTY,
    MOST_URGENT,
    OVERTAKING_BOUND,
    check_priority,
    compute_rank,
)

times = st.integers(0, 100 * 366 * DAY)
priorities = st.integers(MOST_URGENT, IDLE)


@given(times, priorities, priorities)
def test_the_more_urgent_of_two_runs_eligible_together_ranks_first(at: int, one: int, other: int) -> None:
    assert (compute_rank(at, one) < compute_rank(at, other)) == (one < other)


@given(times, times, priorities)
def test_the_older_of_two_equally_urgent_runs_ranks_first(one: int, other: int, priority: int) -> None:
    assert (compute_rank(one, priority) < compute_rank(other, priority)) == (one < other)


@given(times, st.integers(1, 30 * DAY), priorities, priorities)
def test_no_run_eligible_later_than_the_bound_overtakes(at: int, beyond: int, mine: int, other: int) -> None:
    assert compute_rank(at, mine) < compute_rank(at + OVERTAKING_BOUND + beyond, other)


@given(times)
def test_the_most_urgent_run_overtakes_an_idle_one_up_to_the_bound(at: int) -> None:
    assert compute_rank(at + OVERTAKING_BOUND - 1, MOST_URGENT) < compute_rank(at, IDLE)
    assert compute_rank(at + OVERTAKING_BOUND, MOST_URGENT) == compute_rank(at, IDLE)


@given(times, st.integers(MOST_URGENT, IDLE - 1))
def test_a_step_of_priority_is_worth_exactly_one_head_start(at: int, priority: int) -> None:
    assert compute_rank(at + HEAD_START, priority) == compute_rank(at, priority + 1)


@given(times, priorities)
def test_late_runs_rank_behind_live_runs_of_their_priority_but_not_of_the_next(at: int, priority: int) -> None:
    assert compute_rank(at, priority, late=True) == compute_rank(at + LATE_PENALTY, priority)
    assert compute_rank(at, priority, late=True) < compute_rank(at, priority + 1)


@pytest.mark.parametrize("priority", [0, 11, -1])
def test_a_priority_outside_the_scale_is_rejected(priority: int) -> None:
    with pytest.raises(Invalid) as refused:
        check_priority(priority)
    assert refused.value.field == "priority"


@given(priorities)
def test_every_priority_of_the_scale_is_accepted(priority: int) -> None:
    assert check_priority(priority) == priority
