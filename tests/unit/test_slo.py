"""Service level objectives: each miss and each recovery is reported once, however rarely it is checked."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.instant import HOUR, MINUTE, SECOND, Instant
from mainspring.domain.slo import MISSED, RECOVERED, Slo, TickFact, begin, judge, rest

STARTS = Slo(start_within=MINUTE)
SUCCEEDS = Slo(succeed_every=HOUR)


def started(tick: Instant, late: int = 0) -> TickFact:
    return TickFact(tick + late, tick)


def test_a_late_or_missing_tick_is_a_miss_that_is_reported_once() -> None:
    state = begin(0)
    ticks = [HOUR, 2 * HOUR, 3 * HOUR, 4 * HOUR]
    facts = {HOUR: started(HOUR), 2 * HOUR: started(2 * HOUR, 2 * MINUTE), 4 * HOUR: started(4 * HOUR, SECOND)}
    judged = judge(STARTS, state, ticks[:1], ticks[1], facts, None, 90 * MINUTE)
    assert (judged.events, judged.next_check) == ((), 2 * HOUR + MINUTE + 1)
    judged = judge(STARTS, judged.state, ticks[1:2], ticks[2], facts, None, 2 * HOUR + 5 * MINUTE)
    assert judged.events == (MISSED,)
    judged = judge(STARTS, judged.state, ticks[2:3], ticks[3], facts, None, 3 * HOUR + 5 * MINUTE)
    assert judged.events == ()
    assert judged.state.late_since == 2 * HOUR + MINUTE
    judged = judge(STARTS, judged.state, ticks[3:], None, facts, None, 5 * HOUR)
    assert judged.events == (RECOVERED,)
    assert judged.state.late_since is None


def test_events_between_two_checks_are_reported_in_order() -> None:
    ticks = [HOUR, 2 * HOUR, 3 * HOUR]
    judged = judge(STARTS, begin(0), ticks, None, {3 * HOUR: started(3 * HOUR)}, None, 10 * HOUR)
    assert judged.events == (MISSED, RECOVERED)


def test_a_moved_tick_is_judged_by_its_new_time() -> None:
    facts = {HOUR: TickFact(None, 5 * HOUR)}
    judged = judge(STARTS, begin(0), [HOUR], 2 * HOUR, facts, None, 2 * HOUR)
    assert (judged.events, judged.state.judged, judged.next_check) == ((), 0, 5 * HOUR + MINUTE + 1)
    assert judge(STARTS, begin(0), [HOUR], 2 * HOUR, facts, None, 6 * HOUR).events == (MISSED,)
    excused = {HOUR: TickFact(None, HOUR, excused=True)}
    assert judge(STARTS, begin(0), [HOUR], 2 * HOUR, excused, None, 6 * HOUR).events == ()


def test_a_missing_success_is_a_miss_even_if_nothing_runs() -> None:
    judged = judge(SUCCEEDS, begin(0), [], None, {}, None, 30 * MINUTE)
    assert (judged.events, judged.next_check) == ((), HOUR + 1)
    judged = judge(SUCCEEDS, judged.state, [], None, {}, None, 2 * HOUR)
    assert (judged.events, judged.state.quiet_since) == ((MISSED,), HOUR)
    judged = judge(SUCCEEDS, judged.state, [], None, {}, None, 3 * HOUR)
    assert judged.events == ()
    judged = judge(SUCCEEDS, judged.state, [], None, {}, 3 * HOUR, 3 * HOUR + MINUTE)
    assert (judged.events, judged.state.quiet_since, judged.next_check) == ((RECOVERED,), None, 4 * HOUR + 1)
    # The success still counts after its run was deleted.
    assert judge(SUCCEEDS, judged.state, [], None, {}, None, 4 * HOUR).events == ()
    assert judge(SUCCEEDS, judged.state, [], None, {}, None, 4 * HOUR + 1).events == (MISSED,)


def test_a_pause_ends_a_miss_and_restarts_the_objective() -> None:
    missed = judge(SUCCEEDS, begin(0), [], None, {}, None, 2 * HOUR).state
    paused = rest(missed, 3 * HOUR)
    assert paused.events == (RECOVERED,)
    assert judge(SUCCEEDS, paused.state, [], None, {}, None, 3 * HOUR + 30 * MINUTE).events == ()
    assert rest(paused.state, 4 * HOUR).events == ()


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.lists(st.integers(1, 5), min_size=1))
def test_reported_events_do_not_depend_on_the_frequency_of_checks(in_time: list[bool], batch_sizes: list[int]) -> None:
    ticks = [HOUR * number for number in range(1, len(in_time) + 1)]
    facts = {tick: started(tick) for tick, good in zip(ticks, in_time, strict=True) if good}
    events: list[str] = []
    state, left = begin(0), ticks
    for size in [*batch_sizes, *([5] * len(ticks))]:
        some, left = left[:size], left[size:]
        judged = judge(STARTS, state, some, None, facts, None, ticks[-1] + HOUR)
        state = judged.state
        events += judged.events
    changes = [good for before, good in zip([True, *in_time], in_time, strict=False) if before != good]
    assert events == [RECOVERED if good else MISSED for good in changes]
    assert msgspec.json.decode(msgspec.json.encode(state), type=type(state)) == state
