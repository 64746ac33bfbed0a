"""Service level objectives: each miss and each recovery is reported once, however rarely it is checked."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, SECOND, Instant
from mainspring.core.model.schedules.slo import (
    LONGEST,
    MISSED,
    RECOVERED,
    Slo,
    SloState,
    TickFact,
    begin,
    judge,
    rest,
    worse,
)
from tests.support.boundaries import around_the_boundary

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


@pytest.mark.parametrize("slo", [Slo(start_within=SECOND), Slo(succeed_every=SECOND), Slo(start_within=LONGEST)])
def test_one_objective_is_enough(slo: Slo) -> None:
    slo.check()


@pytest.mark.parametrize(
    ("slo", "field"),
    [
        (Slo(), "slo"),
        (Slo(start_within=SECOND - 1), "slo.startWithin"),
        (Slo(start_within=LONGEST + 1), "slo.startWithin"),
        (Slo(start_within=SECOND, succeed_every=SECOND - 1), "slo.succeedEvery"),
        (Slo(succeed_every=LONGEST + 1), "slo.succeedEvery"),
    ],
)
def test_an_objective_out_of_bounds_is_rejected(slo: Slo, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        slo.check()
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("late_since", "quiet_since", "missed"), [(None, None, False), (1, None, True), (None, 1, True), (1, 1, True)]
)
def test_an_objective_is_missed_if_a_start_or_a_success_is_late(
    late_since: Instant | None, quiet_since: Instant | None, missed: bool
) -> None:
    state = SloState(judged=0, watched_since=0, late_since=late_since, quiet_since=quiet_since)
    assert state.is_missed is missed


EARLY, LATE, SAME = TickFact(5, 0), TickFact(9, 0), TickFact(5, 1)
UNSTARTED, EXCUSED = TickFact(None, 0), TickFact(None, 0, excused=True)


@pytest.mark.parametrize(
    ("one", "other", "counts"),
    [
        (None, EARLY, EARLY),
        (EXCUSED, EARLY, EARLY),
        (EARLY, EXCUSED, EARLY),
        (EARLY, LATE, LATE),
        (LATE, EARLY, LATE),
        (EARLY, SAME, EARLY),
        (EARLY, UNSTARTED, UNSTARTED),
        (UNSTARTED, EARLY, UNSTARTED),
        (UNSTARTED, EXCUSED, UNSTARTED),
    ],
)
def test_the_latest_start_of_a_tick_counts_unless_it_is_excused(
    one: TickFact | None, other: TickFact, counts: TickFact
) -> None:
    assert worse(one, other) is counts


@around_the_boundary
def test_a_start_is_in_time_up_to_the_objective(offset: int) -> None:
    moved = {HOUR: TickFact(3 * HOUR + MINUTE + offset, 3 * HOUR)}
    on_time = {HOUR: TickFact(HOUR + MINUTE + offset, HOUR)}
    for facts in (moved, on_time):
        judged = judge(STARTS, begin(0), [HOUR], None, facts, None, 4 * HOUR)
        assert judged.events == ((MISSED,) if offset > 0 else ())


@around_the_boundary
def test_a_moved_tick_that_has_not_started_is_missed_after_the_objective(offset: int) -> None:
    now = 5 * HOUR + MINUTE + offset
    judged = judge(STARTS, begin(0), [HOUR], None, {HOUR: TickFact(None, 5 * HOUR)}, None, now)
    assert (judged.events, judged.state.judged) == (((MISSED,), HOUR) if offset > 0 else ((), 0))


@around_the_boundary
def test_a_success_after_the_expected_time_ends_a_miss(offset: int) -> None:
    missed = SloState(judged=0, watched_since=0, quiet_since=HOUR)
    judged = judge(SUCCEEDS, missed, [], None, {}, HOUR + offset, 90 * MINUTE)
    assert judged.events == ((RECOVERED,) if offset >= 0 else ())
    assert judged.state.last_success == HOUR + offset


def test_the_newest_known_success_counts() -> None:
    known = SloState(judged=0, watched_since=0, last_success=3 * HOUR)
    for read, newest in ((None, 3 * HOUR), (2 * HOUR, 3 * HOUR), (4 * HOUR, 4 * HOUR)):
        judged = judge(SUCCEEDS, known, [], None, {}, read, 3 * HOUR)
        assert (judged.state.last_success, judged.next_check) == (newest, newest + HOUR + 1)


def test_the_next_check_is_the_earliest_one_that_can_change_the_result() -> None:
    both = Slo(start_within=MINUTE, succeed_every=HOUR)
    assert judge(both, begin(0), [], 10 * MINUTE, {}, None, 0).next_check == 11 * MINUTE + 1
    assert judge(both, begin(0), [], 2 * HOUR, {}, None, 0).next_check == HOUR + 1
    assert judge(STARTS, begin(0), [], None, {}, None, HOUR).next_check == HOUR + DAY
    assert judge(SUCCEEDS, begin(0), [], None, {}, None, HOUR).next_check == HOUR + 2 * SECOND
    assert judge(SUCCEEDS, begin(0), [], None, {}, None, 2 * HOUR).next_check == 2 * HOUR + 15 * SECOND
    assert rest(begin(0), HOUR).next_check == HOUR + MINUTE


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
