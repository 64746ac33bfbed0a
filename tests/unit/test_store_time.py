"""The estimate of the store's time is never early, and only slightly late."""

from hypothesis import given
from hypothesis import strategies as st

from mainspring.control.scheduler.store_time import StoreTime
from mainspring.domain.instant import HOUR, MILLISECOND, SECOND, Micros
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
