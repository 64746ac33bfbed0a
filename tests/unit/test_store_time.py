"""The estimate of the store's time is never early, and only slightly late."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.instant import HOUR, MILLISECOND, SECOND, Micros
from mainspring.core.scheduler.store_time import StoreTime
from tests.support.clock import ManualClock


def ask(time: StoreTime, clock: ManualClock, there: Micros, back: Micros, offset: Micros) -> None:
    """A request and its answer; the store's clock is ahead of ours by ``offset``."""
    sent = clock.monotonic()
    clock.advance(there)
    now = clock.monotonic() + offset
    clock.advance(back)
    time.learn(sent, now)


@given(
    st.lists(st.tuples(st.integers(0, 50 * MILLISECOND), st.integers(0, 50 * MILLISECOND)), min_size=1, max_size=20),
    st.integers(-HOUR, HOUR),
)
def test_the_estimate_is_never_early_and_late_by_at_most_the_fastest_answer(
    travels: list[tuple[Micros, Micros]], offset: Micros
) -> None:
    clock = ManualClock()
    time = StoreTime(clock)
    for there, back in travels:
        ask(time, clock, there, back, offset)
        clock.advance(50 * MILLISECOND)
    late = clock.monotonic() + offset - time.now()
    quickest = min(back for _, back in travels)
    # Old answers are trusted less as clocks drift apart: 1/5000 of the time passed.
    assert 0 <= late <= quickest + clock.monotonic() // 5_000 + len(travels)


@given(st.integers(0, 10 * SECOND))
def test_the_estimate_is_not_early_if_the_clock_of_the_node_runs_fast(since: Micros) -> None:
    clock = ManualClock()
    time = StoreTime(clock)
    ask(time, clock, 0, 0, SECOND)
    answered = clock.monotonic() + SECOND
    clock.advance(since)
    # The store's clock has advanced a little less.
    assert time.now() <= answered + since - since // 5_000


def test_a_slow_answer_does_not_worsen_the_estimate() -> None:
    clock = ManualClock()
    time = StoreTime(clock)
    ask(time, clock, 1_000, 1_000, SECOND)
    ask(time, clock, 300 * MILLISECOND, 300 * MILLISECOND, SECOND)
    assert 0 <= clock.monotonic() + SECOND - time.now() <= 1_200


def test_a_change_of_the_clock_of_the_store_is_adopted_at_once() -> None:
    clock = ManualClock()
    time = StoreTime(clock)
    assert not time.known
    for offset in (0, HOUR, -HOUR):
        ask(time, clock, 1_000, 1_000, offset)
        assert 0 <= clock.monotonic() + offset - time.now() <= 1_000


def test_the_bounds_of_an_answer_are_its_travel_times_and_widen_with_the_drift() -> None:
    clock = ManualClock()
    time = StoreTime(clock)
    ask(time, clock, 3_000, 5_000, SECOND)
    assert time.ahead() == (SECOND - 5_000, SECOND + 3_000)
    clock.advance(9_999)
    assert time.ahead() == (SECOND - 5_001, SECOND + 3_001)
    clock.advance(1)
    assert time.ahead() == (SECOND - 5_002, SECOND + 3_002)


@pytest.mark.parametrize(
    ("there", "back", "low", "high"),
    [
        # Two seconds after the first answer its bounds are wider by 401 µs.
        (SECOND, SECOND, SECOND - 5_401, SECOND + 3_401),
        (2 * SECOND - 1_000, 1_000, SECOND - 1_000, SECOND + 3_401),
        (1_000, 2 * SECOND - 1_000, SECOND - 5_401, SECOND + 1_000),
    ],
    ids=["slower", "faster back", "faster there"],
)
def test_each_bound_is_the_tighter_one_of_two_answers(there: Micros, back: Micros, low: Micros, high: Micros) -> None:
    clock = ManualClock()
    time = StoreTime(clock)
    ask(time, clock, 3_000, 5_000, SECOND)
    ask(time, clock, there, back, SECOND)
    assert time.ahead() == (low, high)


@pytest.mark.parametrize(
    ("step", "bounds"),
    [
        # 10 ms after the first answer the store's clock is between 5,003 µs less and 3,003 µs more than SECOND ahead.
        (-11_003, (-5_003, -5_003)),
        (-11_004, (-15_004, -5_004)),
        (7_003, (3_003, 3_003)),
        (7_004, (3_004, 13_004)),
    ],
)
def test_an_answer_replaces_the_bounds_only_if_it_contradicts_them(step: Micros, bounds: tuple[Micros, Micros]) -> None:
    clock = ManualClock()
    time = StoreTime(clock)
    ask(time, clock, 3_000, 5_000, SECOND)
    ask(time, clock, 6_000, 4_000, SECOND + step)
    assert time.ahead() == (SECOND + bounds[0], SECOND + bounds[1])
