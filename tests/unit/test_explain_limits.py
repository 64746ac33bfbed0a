"""Why a run waits for a limit."""

import pytest

from mainspring.domain.explain_limits import reason_of_limit
from mainspring.domain.instant import MINUTE, SECOND
from mainspring.domain.limits import Breaker, GateState, Limit, gates_of
from mainspring.domain.reason import Holder
from mainspring.domain.run import RunPolicy, RunState, RunView
from tests.support.builders import an_id

NOW = 1_000 * SECOND


def waiting(policy: RunPolicy) -> RunView:
    [gate] = gates_of("default", "call", policy.limits, policy.breaker)
    return RunView(
        id=an_id(),
        state=RunState.BLOCKED,
        task="call",
        queue="default",
        tenant="default",
        priority=5,
        attempt=0,
        due=0,
        created_at=0,
        policy=policy,
        gate=gate.number,
    )


def test_of_a_limit_at_a_time_some_of_those_inside_are_named() -> None:
    run = waiting(RunPolicy(limits=(Limit(key="api", most=6),)))
    inside = [an_id() for _ in range(6)]
    reason = reason_of_limit(run, GateState(used=6), inside, NOW)
    named = ", ".join(inside[:5])
    assert (reason.code, reason.until) == ("limit", None)
    assert reason.words == f"it waits for limit 'api': 6 at a time, taken by {named} …"
    assert reason.holders == tuple(Holder("run", holder) for holder in inside[:5])


def test_of_a_period_it_is_told_when_there_is_room() -> None:
    run = waiting(RunPolicy(limits=(Limit(key="api", most=2, per=MINUTE),)))
    reason = reason_of_limit(run, GateState(times=(NOW - 50 * SECOND, NOW)), [], NOW)
    assert (reason.words, reason.until) == ("it waits for limit 'api': 2 in 1m", NOW + 10 * SECOND)
    reason = reason_of_limit(run, GateState(times=(NOW - 2 * MINUTE,)), [], NOW)
    assert reason.until == NOW, "a scheduler is about to let it pass"


@pytest.mark.parametrize(
    ("ahead", "words"), [(0, "when its pause ends, one run goes ahead to see"), (1, "one run has gone ahead to see")]
)
def test_of_a_breaker_it_is_told_when_one_goes_ahead(ahead: int, words: str) -> None:
    run = waiting(RunPolicy(breaker=Breaker()))
    reason = reason_of_limit(run, GateState(used=ahead, open_until=NOW + SECOND), [], NOW)
    assert reason.words.startswith(f"the breaker of task 'call' is open; {words}")
    assert reason.until == (None if ahead else NOW + SECOND)
