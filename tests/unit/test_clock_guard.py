"""The clock guard judges a clock only by an offset that is certain despite the measuring error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import HOUR, MILLISECOND, SECOND, Micros
from mainspring.core.model.cluster.clock_guard import ClockReading, ClockRules, ClockState, judge, read_clock
from mainspring.core.model.cluster.diagnosis import Finding, Level, Signs, diagnose
from tests.support.boundaries import around_the_boundary

RULES = ClockRules()
ORDER = [ClockState.RIGHT, ClockState.OFF, ClockState.FENCED]
offsets = st.integers(-2 * HOUR, 2 * HOUR)
travels = st.integers(0, 2 * SECOND)
states = st.sampled_from(ClockState)


def measured(offset: Micros, there: Micros, back: Micros, later: Micros = 0) -> ClockReading:
    """The reading of a node whose clock is ahead by ``offset``, some time after its request to the store."""
    sent = 1_000 * SECOND
    store_ahead = 50 * HOUR
    answered = sent + there + store_ahead
    arrived = sent + there + back
    moment = arrived + later
    return read_clock(moment + store_ahead + offset, moment, (answered - arrived, answered - sent))


@given(offsets, travels, travels, st.integers(0, HOUR))
def test_the_true_offset_is_within_the_error_however_long_the_request_and_the_answer_took(
    offset: Micros, there: Micros, back: Micros, later: Micros
) -> None:
    reading = measured(offset, there, back, later)
    assert abs(reading.offset - offset) <= reading.error <= (there + back) // 2 + 1


@given(offsets, travels, travels, states)
def test_a_right_clock_is_never_fenced_and_one_that_is_far_off_always_is(
    offset: Micros, there: Micros, back: Micros, was: ClockState
) -> None:
    state = judge(measured(offset, there, back), RULES, was)
    if abs(offset) <= RULES.fence and was is not ClockState.FENCED:
        assert state is not ClockState.FENCED
    if abs(offset) <= RULES.warn and was is ClockState.RIGHT:
        assert state is ClockState.RIGHT
    if abs(offset) > RULES.fence + there + back + 2:
        assert state is ClockState.FENCED
    if abs(offset) + there + back + 2 < RULES.warn:
        assert state is ClockState.RIGHT


@given(offsets, travels, states)
def test_a_fenced_clock_is_accepted_again_only_if_it_is_certainly_right(
    offset: Micros, error: Micros, was: ClockState
) -> None:
    reading = ClockReading(offset, error)
    state = judge(reading, RULES, was)
    if was is ClockState.FENCED and state is not ClockState.FENCED:
        assert abs(offset) + error <= RULES.fence
    # The same reading again changes nothing.
    assert judge(reading, RULES, state) is state


@around_the_boundary
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("limit", "within", "beyond"),
    [(RULES.warn, ClockState.RIGHT, ClockState.OFF), (RULES.fence, ClockState.OFF, ClockState.FENCED)],
)
def test_a_limit_is_exceeded_only_beyond_it(
    limit: Micros, within: ClockState, beyond: ClockState, sign: int, offset: int
) -> None:
    expected = beyond if offset > 0 else within
    error = 10 * MILLISECOND
    for was in states_up_to(within):
        assert judge(ClockReading(sign * (limit + error + offset), error), RULES, was) is expected
    for was in states_from(beyond):
        assert judge(ClockReading(sign * (limit - error + offset), error), RULES, was) is expected


@pytest.mark.parametrize(
    ("ahead", "reading"),
    [((0, 0), (100, 0)), ((0, 4), (98, 2)), ((0, 5), (98, 3)), ((-5, 0), (103, 3)), ((10, 20), (85, 5))],
)
def test_a_reading_takes_the_middle_of_the_possible_offsets(
    ahead: tuple[Micros, Micros], reading: tuple[Micros, Micros]
) -> None:
    assert read_clock(150, 50, ahead) == ClockReading(*reading)


def test_a_reading_is_shown_with_its_sign() -> None:
    shown = {offset: str(ClockReading(offset, 0)) for offset in (-1_500 * MILLISECOND, -1, 0, 1, 2 * SECOND)}
    assert list(shown.values()) == ["-1s500ms", "-0s", "+0s", "+0s", "+2s"]


def test_a_fence_of_zero_disables_fencing() -> None:
    assert judge(ClockReading(HOUR, 0), ClockRules(warn=SECOND, fence=0)) is ClockState.OFF


def test_a_slow_network_alone_does_not_make_a_clock_wrong() -> None:
    assert judge(ClockReading(20 * SECOND, 30 * SECOND), RULES) is ClockState.RIGHT


def test_a_fence_below_the_warning_threshold_is_rejected() -> None:
    with pytest.raises(Invalid):
        ClockRules(warn=SECOND, fence=SECOND - 1).check()
    ClockRules(warn=SECOND, fence=SECOND).check()
    ClockRules(warn=SECOND, fence=0).check()


def test_doctor_names_the_processes_whose_clocks_are_off_and_by_how_much() -> None:
    clocks = (("right", ClockReading(0, 1)), ("slow", ClockReading(-2 * SECOND, 1)))
    assert clock_finding(*clocks).level is Level.WARNING
    assert "slow by -2s" in clock_finding(*clocks).says
    assert clock_finding(*clocks, ("lost", ClockReading(HOUR, SECOND))).level is Level.PROBLEM
    assert clock_finding(clocks[0]).level is Level.OK


def states_up_to(state: ClockState) -> list[ClockState]:
    return ORDER[: ORDER.index(state) + 1]


def states_from(state: ClockState) -> list[ClockState]:
    return ORDER[ORDER.index(state) :]


def clock_finding(*clocks: tuple[str, ClockReading]) -> Finding:
    signs = Signs(
        now=0,
        schedulers=1,
        workers=(),
        queued=(),
        expired=(),
        unstaged=0,
        oldest_unstaged=None,
        unfired=0,
        oldest_unfired=None,
        waiting=False,
        readers=(),
        dead_letters=0,
        pauses=(),
        clocks=clocks,
    )
    [found] = [finding for finding in diagnose(signs) if finding.check == "clocks"]
    return found
