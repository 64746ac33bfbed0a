"""Explanations of runs that are blocked by a limit."""

import pytest

from mainspring.core.model.base.instant import MINUTE, SECOND
from mainspring.core.model.explain.limits import reason_of_limit
from mainspring.core.model.explain.reason import Holder
from mainspring.core.model.limits.limits import Breaker, Limit, LimiterState, build_limiters
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from tests.support.builders import an_id
from tests.support.views import a_run_view

NOW = 1_000 * SECOND


def a_blocked_view(policy: RunPolicy) -> RunView:
    [limiter] = build_limiters("default", "call", policy.limits, policy.breaker)
    return a_run_view(RunState.BLOCKED, task="call", policy=policy, limiter=limiter.number)


def test_a_concurrency_limit_names_some_of_the_runs_that_hold_it() -> None:
    run = a_blocked_view(RunPolicy(limits=(Limit(key="api", most=6),)))
    inside = [an_id() for _ in range(6)]
    reason = reason_of_limit(run, LimiterState(used=6), inside, NOW)
    named = ", ".join(inside[:5])
    assert (reason.code, reason.until) == ("limit", None)
    assert reason.words == f"blocked by limit 'api': 6 at a time, held by {named} …"
    assert reason.holders == tuple(Holder("run", holder) for holder in inside[:5])


def test_a_rate_limit_says_when_it_has_room_again() -> None:
    run = a_blocked_view(RunPolicy(limits=(Limit(key="api", most=2, per=MINUTE),)))
    reason = reason_of_limit(run, LimiterState(times=(NOW - 50 * SECOND, NOW)), [], NOW)
    assert (reason.words, reason.until) == ("blocked by limit 'api': 2 in 1m", NOW + 10 * SECOND)
    reason = reason_of_limit(run, LimiterState(times=(NOW - 2 * MINUTE,)), [], NOW)
    assert reason.until == NOW, "a scheduler is about to let it pass"


@pytest.mark.parametrize(
    ("ahead", "words"), [(0, "when its pause ends, one run starts to see"), (1, "one run is active to see")]
)
def test_an_open_breaker_says_when_a_trial_run_starts(ahead: int, words: str) -> None:
    run = a_blocked_view(RunPolicy(breaker=Breaker()))
    reason = reason_of_limit(run, LimiterState(used=ahead, open_until=NOW + SECOND), [], NOW)
    assert reason.words.startswith(f"the breaker of task 'call' is open; {words}")
    assert reason.until == (None if ahead else NOW + SECOND)
