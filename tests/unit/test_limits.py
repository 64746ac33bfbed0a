"""Limits and circuit breakers: no sequence of events lets more runs start than allowed."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, MILLISECOND, MINUTE, SECOND, Instant
from mainspring.core.model.limits.limits import (
    AT_A_TIME,
    BREAKER,
    LONGEST_PERIOD,
    MAX_KEY,
    MAX_LIMITS,
    MOST_AT_ONCE,
    MOST_IN_PERIOD,
    PER_PERIOD,
    Breaker,
    Ending,
    Limit,
    Limiter,
    LimiterState,
    build_limiters,
    check_limits,
    describe_limiter,
    left,
    passed,
    room,
    room_comes_at,
    started,
)
from tests.support.boundaries import around_the_boundary

PER = 10
#: An event, the run that it happens to, and the time that passes before it.
EVENTS = st.lists(st.tuples(st.sampled_from(["pass", "start", "end", "cancel"]), st.integers(0, 9), st.integers(0, 6)))
ENDINGS: list[Ending] = ["succeeded", "failed", "other"]


class Model:
    """The runs of one limiter, and their complete history."""

    def __init__(self, limiter: Limiter) -> None:
        self.limiter = limiter
        self.state = LimiterState()
        self.now: Instant = 1_000
        self.queued: list[int] = []
        self.running: dict[int, Instant] = {}
        self.starts: list[Instant] = []
        self.number = 0

    def step(self, what: str, which: int) -> None:
        if what == "pass" and room(self.limiter, self.state, self.now):
            self.state = passed(self.limiter, self.state)
            self.number += 1
            self.queued.append(self.number)
        elif what == "start" and self.queued:
            run = self.queued.pop(which % len(self.queued))
            self.running[run] = self.now
            self.starts.append(self.now)
            self.state = started(self.limiter, self.state, self.now)
        elif what == "end" and self.running:
            run = list(self.running)[which % len(self.running)]
            self.leave(self.running.pop(run), ENDINGS[which % 3])
        elif what == "cancel" and self.queued:
            self.queued.pop(which % len(self.queued))
            self.leave(None, "other")

    def leave(self, started_at: Instant | None, ending: Ending) -> None:
        self.state = left(self.limiter, self.state, self.now, ending, started_at=started_at)


@given(most=st.integers(1, 4), events=EVENTS)
def test_a_concurrency_limit_is_never_exceeded_and_reports_its_remaining_room(
    most: int, events: list[tuple[str, int, int]]
) -> None:
    model = Model(Limiter(kind=AT_A_TIME, number=1, most=most))
    for what, which, pause in events:
        model.now += pause
        model.step(what, which)
        inside = len(model.queued) + len(model.running)
        assert inside <= most
        assert room(model.limiter, model.state, model.now) == most - inside
        assert room_comes_at(model.limiter, model.state, model.now) is None


@given(most=st.integers(1, 4), events=EVENTS)
def test_a_rate_limit_is_never_exceeded_in_any_period(most: int, events: list[tuple[str, int, int]]) -> None:
    model = Model(Limiter(kind=PER_PERIOD, number=1, most=most, per=PER))
    for what, which, pause in events:
        model.now += pause
        model.step(what, which)
        recent = [at for at in model.starts if at > model.now - PER]
        assert len(recent) <= most
        assert room(model.limiter, model.state, model.now) == most - len(recent) - len(model.queued)
        comes = room_comes_at(model.limiter, model.state, model.now)
        if comes is not None:
            assert comes > model.now
            assert room(model.limiter, model.state, comes - 1) == 0
            assert room(model.limiter, model.state, comes) > 0
        elif not room(model.limiter, model.state, model.now):
            assert len(model.queued) == most, "only runs that have not started never free room by themselves"
    for first, last in zip(model.starts, model.starts[most:], strict=False):
        assert last - first >= PER


@given(
    mosts=st.lists(st.integers(1, 5), min_size=1),
    pauses=st.lists(st.integers(0, 4), min_size=30, max_size=30),
)
def test_a_rate_limit_holds_for_runs_with_different_maximums_at_one_limiter(
    mosts: list[int], pauses: list[int]
) -> None:
    state, now, starts = LimiterState(), 1_000, list[Instant]()
    for number, pause in enumerate(pauses):
        now += pause
        limiter = Limiter(kind=PER_PERIOD, number=1, most=mosts[number % len(mosts)], per=PER)
        if room(limiter, state, now):
            state = started(limiter, passed(limiter, state), now)
            starts.append(now)
            assert sum(at > now - PER for at in starts) <= limiter.most


class Task:
    """The runs of a task with a breaker, and the rule of the breaker implemented a second time."""

    def __init__(self, limiter: Limiter) -> None:
        self.model = Model(limiter)
        self.failures: list[Instant] = []
        self.opens_at: Instant | None = None
        self.trial: int | None = None

    def step(self, what: str, which: int) -> None:
        model = self.model
        if what == "pass":
            may = self.opens_at is None or (self.trial is None and model.now >= self.opens_at)
            assert (room(model.limiter, model.state, model.now) > 0) is may
            if may:
                model.step(what, which)
                if self.opens_at is not None:
                    self.trial = model.number
        elif what == "start" and model.queued:
            model.step(what, which)
        elif what == "end" and model.running:
            run = list(model.running)[which % len(model.running)]
            model.step(what, which)
            self.ended(run, ENDINGS[which % 3])
        elif what == "cancel" and model.queued:
            run = model.queued[which % len(model.queued)]
            model.step(what, which)
            self.ended(run, "other")

    def ended(self, run: int, ending: Ending) -> None:
        now, limiter = self.model.now, self.model.limiter
        if self.opens_at is None:
            if ending == "failed":
                self.failures = [*(at for at in self.failures if at > now - limiter.per), now]
                if len(self.failures) >= limiter.most:
                    self.opens_at = now + limiter.pause
                    # The store blocks the queued runs again.
                    while self.model.queued:
                        self.model.queued.pop()
                        self.model.leave(None, "other")
        elif run == self.trial:
            self.trial = None
            if ending == "succeeded":
                self.opens_at, self.failures = None, []
            elif ending == "failed":
                self.opens_at = now + limiter.pause


@given(most=st.integers(1, 3), events=EVENTS)
def test_a_breaker_opens_admits_one_trial_run_and_closes_by_its_rule(
    most: int, events: list[tuple[str, int, int]]
) -> None:
    task = Task(Limiter(kind=BREAKER, number=1, most=most, per=PER, pause=7))
    for what, which, pause in events:
        # No run starts in the instant in which the breaker opens: a claim is a separate transaction.
        task.model.now += pause + 1
        task.step(what, which)
        assert task.model.state.open_until == task.opens_at
        assert task.model.state.used == (task.trial is not None)


@given(state=st.builds(LimiterState, used=st.integers(0, 5)), kind=st.sampled_from([AT_A_TIME, PER_PERIOD, BREAKER]))
def test_a_double_release_never_makes_the_count_negative(state: LimiterState, kind: int) -> None:
    limiter = Limiter(kind=kind, number=1, most=3, per=PER, pause=5)
    for _ in range(7):
        state = left(limiter, started(limiter, state, 1), 2, "other", started_at=None)
    assert state.used >= 0


def test_limiters_are_sorted_by_number_and_belong_to_a_tenant() -> None:
    limits = (Limit(key="a", most=3), Limit(key="a", most=5, per=MINUTE), Limit(key="b", most=1))
    limiters = build_limiters("default", "call", limits, Breaker())
    assert len({limiter.number for limiter in limiters}) == 4
    assert {(limiter.kind, limiter.most, limiter.per, limiter.pause) for limiter in limiters} == {
        (AT_A_TIME, 3, 0, 0),
        (PER_PERIOD, 5, MINUTE, 0),
        (AT_A_TIME, 1, 0, 0),
        (BREAKER, Breaker().failures, Breaker().within, Breaker().pause),
    }
    assert sorted(limiter.number for limiter in limiters) == [limiter.number for limiter in limiters]
    assert not {limiter.number for limiter in limiters} & {
        limiter.number for limiter in build_limiters("acme", "call", limits, Breaker())
    }
    words = {describe_limiter(limiter.number, "default", "call", limits, Breaker()) for limiter in limiters}
    assert words == {
        "limit 'a': 3 at a time",
        "limit 'a': 5 in 1m",
        "limit 'b': 1 at a time",
        "the breaker of task 'call' is open",
    }


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        ((Limit(key="", most=1),), "limits.key"),
        ((Limit(key="x" * 201, most=1),), "limits.key"),
        ((Limit(key="a\n", most=1),), "limits.key"),
        ((Limit(key="a", most=0),), "limits.most"),
        ((Limit(key="a", most=MOST_AT_ONCE + 1),), "limits.most"),
        ((Limit(key="a", most=0, per=SECOND),), "limits.most"),
        ((Limit(key="a", most=MOST_IN_PERIOD + 1, per=SECOND),), "limits.most"),
        ((Limit(key="a", most=1, per=MILLISECOND - 1),), "limits.per"),
        ((Limit(key="a", most=1, per=LONGEST_PERIOD + 1),), "limits.per"),
        (tuple(Limit(key=str(number), most=1) for number in range(5)), "limits"),
        ((Limit(key="a", most=1), Limit(key="a", most=2)), "limits"),
    ],
)
def test_invalid_limits_are_rejected_by_field(limits: tuple[Limit, ...], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_limits(limits)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("breaker", "field"),
    [
        (Breaker(failures=0), "breaker.failures"),
        (Breaker(failures=1_001), "breaker.failures"),
        (Breaker(within=SECOND - 1), "breaker.within"),
        (Breaker(within=DAY + 1), "breaker.within"),
        (Breaker(pause=SECOND - 1), "breaker.pause"),
        (Breaker(pause=DAY + 1), "breaker.pause"),
    ],
)
def test_invalid_breakers_are_rejected_by_field(breaker: Breaker, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        breaker.check()
    assert refused.value.field == field


def test_limits_and_breakers_at_their_bounds_are_accepted() -> None:
    check_limits(())
    check_limits(tuple(Limit(key=str(number), most=1) for number in range(MAX_LIMITS)))
    check_limits((Limit(key="x" * MAX_KEY, most=MOST_AT_ONCE), Limit(key="x" * MAX_KEY, most=1, per=MILLISECOND)))
    check_limits((Limit(key="a", most=MOST_IN_PERIOD, per=LONGEST_PERIOD), Limit(key="a", most=1, per=SECOND)))
    Breaker().check()
    Breaker(failures=1, within=SECOND, pause=SECOND).check()
    Breaker(failures=1_000, within=DAY, pause=DAY).check()


def test_a_run_without_a_limiter_has_no_description_of_one() -> None:
    assert describe_limiter(1, "default", "call", (Limit(key="a", most=3),), None) == ""


@around_the_boundary
def test_a_start_counts_for_exactly_one_period(offset: int) -> None:
    limiter = Limiter(kind=PER_PERIOD, number=1, most=1, per=PER)
    state = LimiterState(times=(1_000,))
    now = 1_000 + PER + offset
    assert room(limiter, state, now) == (1 if offset >= 0 else 0)
    assert room_comes_at(limiter, state, now) == (None if offset >= 0 else 1_000 + PER)
    assert started(limiter, msgspec.structs.replace(state, used=1), now) == LimiterState(
        times=(now,) if offset >= 0 else (1_000, now)
    )


def test_a_start_turns_one_reservation_into_a_time() -> None:
    limiter = Limiter(kind=PER_PERIOD, number=1, most=5, per=PER)
    assert started(limiter, LimiterState(used=3), 1_000) == LimiterState(used=2, times=(1_000,))
    assert started(limiter, LimiterState(used=0), 1_000) == LimiterState(used=0, times=(1_000,))


@around_the_boundary
def test_an_open_breaker_admits_one_trial_run_from_the_end_of_its_pause(offset: int) -> None:
    limiter = Limiter(kind=BREAKER, number=1, most=1, per=PER, pause=7)
    state = LimiterState(times=(1_000,), open_until=1_007)
    now = 1_007 + offset
    assert room(limiter, state, now) == (1 if offset >= 0 else 0)
    assert room_comes_at(limiter, state, now) == (None if offset >= 0 else 1_007)
    trial = passed(limiter, state)
    assert (room(limiter, trial, now), room_comes_at(limiter, trial, now)) == (0, None)


@around_the_boundary
def test_an_attempt_that_started_before_the_breaker_opened_does_not_close_it(offset: int) -> None:
    limiter = Limiter(kind=BREAKER, number=1, most=1, per=PER, pause=7)
    trial = LimiterState(used=1, times=(1_000,), open_until=1_007)
    closed = left(limiter, trial, 1_008, "succeeded", started_at=1_000 + offset)
    assert closed == (LimiterState() if offset > 0 else trial)
    no_trial = msgspec.structs.replace(trial, used=0)
    assert left(limiter, no_trial, 1_008, "succeeded", started_at=1_005) == no_trial


def test_a_trial_run_that_fails_opens_the_breaker_for_another_pause() -> None:
    limiter = Limiter(kind=BREAKER, number=1, most=1, per=PER, pause=7)
    trial = LimiterState(used=1, times=(1_000,), open_until=1_007)
    failed = left(limiter, trial, 1_010, "failed", started_at=1_008)
    assert failed == LimiterState(times=(1_000,), open_until=1_017)
    assert left(limiter, trial, 1_010, "other", started_at=None) == LimiterState(times=(1_000,), open_until=1_007)


def test_a_breaker_opens_at_its_last_allowed_failure() -> None:
    limiter = Limiter(kind=BREAKER, number=1, most=3, per=PER, pause=7)
    state = LimiterState()
    for now in (1_000, 1_001):
        state = left(limiter, state, now, "failed", started_at=1)
    assert state == LimiterState(times=(1_000, 1_001))
    assert left(limiter, state, 1_002, "failed", started_at=1) == LimiterState(
        times=(1_000, 1_001, 1_002), open_until=1_009
    )
    assert left(limiter, state, 1_010, "failed", started_at=1) == LimiterState(times=(1_001, 1_010))
