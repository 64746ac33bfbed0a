"""Rules without a store, at their limits: exactly as allowed, one less and one more."""

from collections.abc import Callable

import pytest

from mainspring.core.model.access.access import ApiKey, Role, hash_secret
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, HOUR, MILLISECOND, MINUTE, SECOND
from mainspring.core.model.base.staleness import staleness
from mainspring.core.model.cluster.clock_guard import ClockReading, ClockRules, ClockState
from mainspring.core.model.cluster.clock_guard import judge as judge_clock
from mainspring.core.model.limits.budget import Budget, BudgetStatus, find_period, judge
from mainspring.core.model.limits.limits import (
    LONGEST_PERIOD,
    MAX_KEY,
    MAX_LIMITS,
    MOST_AT_ONCE,
    Breaker,
    Limit,
    check_limits,
)
from mainspring.core.model.runs.names import MAX_NAME, MAX_PAYLOAD, check_name, check_payload
from mainspring.core.model.runs.rank import IDLE, MOST_URGENT, check_priority
from mainspring.core.model.runs.retry import MAX_RETRIES, RetryPolicy
from mainspring.core.model.runs.unique import Unique
from mainspring.core.model.schedules.catch_up import CatchUp, decide
from tests.support.boundaries import around_the_boundary
from tests.support.clock import START

#: A value that is checked, and the smallest and the largest that is allowed.
CHECKS: dict[str, tuple[Callable[[int], object], int, int]] = {
    "payload": (lambda size: check_payload(b"1" * size), 0, MAX_PAYLOAD),
    "name": (lambda size: check_name("name", "n" * size), 1, MAX_NAME),
    "priority": (check_priority, MOST_URGENT, IDLE),
    "retries": (lambda number: RetryPolicy(max_retries=number).check(), 0, MAX_RETRIES),
    "limit key": (lambda size: Limit(key="k" * size, most=1).check(), 1, MAX_KEY),
    "limit": (lambda most: Limit(key="k", most=most).check(), 1, MOST_AT_ONCE),
    "period": (lambda per: Limit(key="k", most=1, per=per).check(), MILLISECOND, LONGEST_PERIOD),
    "limits": (lambda n: check_limits(tuple(Limit(key=f"{k}", most=1) for k in range(n))), 0, MAX_LIMITS),
    "failures": (lambda failures: Breaker(failures=failures).check(), 1, 1_000),
    "window": (lambda within: Breaker(within=within).check(), SECOND, DAY),
    "unique period": (lambda period: Unique(key="k", period=period).check(), MILLISECOND, 366 * DAY),
}


@pytest.mark.parametrize(("check", "least", "most"), CHECKS.values(), ids=CHECKS.keys())
def test_a_value_is_allowed_up_to_its_limits(check: Callable[[int], object], least: int, most: int) -> None:
    check(least)
    check(most)
    for value in (least - 1, most + 1):
        if value >= 0:
            with pytest.raises(Invalid):
                check(value)


@around_the_boundary
def test_an_api_key_is_valid_until_it_expires(offset: int) -> None:
    key = ApiKey(
        id="key", tenant=None, name="ci", role=Role.VIEWER, secret_hash=hash_secret("secret"), expires_at=START
    )
    assert key.is_valid("secret", START + offset) is (offset < 0)


@pytest.mark.parametrize(
    ("spent", "state"), [(79, "ok"), (80, "warned"), (81, "warned"), (99, "warned"), (100, "over"), (101, "over")]
)
def test_a_budget_is_over_at_its_limit(spent: float, state: str) -> None:
    budget = Budget(tenant="default", name="cheap", unit="attempts", limit=100, warn_at=0.8)
    assert judge(BudgetStatus(budget=budget, id="1"), spent, START).state == state


@pytest.mark.parametrize("period", ["day", "month"])
@around_the_boundary
def test_a_period_of_a_budget_begins_at_midnight(period: str, offset: int) -> None:
    # The clock of the tests begins with a month.
    budget = Budget(tenant="default", name="cheap", unit="attempts", limit=1, period=period)  # type: ignore[arg-type]
    begin, end = find_period(budget, START + offset)
    assert (begin == START) is (offset >= 0)
    assert (end == START) is (offset < 0)


@around_the_boundary
def test_a_tick_is_on_time_up_to_its_grace(offset: int) -> None:
    [decided] = decide(CatchUp(mode="none", grace=MINUTE), [START], START + MINUTE + offset)
    assert (decided.not_before == START) is (offset <= 0)


@around_the_boundary
def test_only_the_newest_tick_runs_once_one_of_them_is_late(offset: int) -> None:
    ticks = [START, START + SECOND]
    decided = decide(CatchUp(mode="latest", grace=MINUTE), ticks, START + MINUTE + offset)
    assert [one.not_before is not None for one in decided] == [offset <= 0, True]


@pytest.mark.parametrize("cap", [2, 3, 4])
def test_the_newest_missed_ticks_up_to_the_cap_run(cap: int) -> None:
    ticks = [START + number * MINUTE for number in range(3)]
    decided = decide(CatchUp(mode="all", grace=0, cap=cap), ticks, START + HOUR)
    assert [one.not_before is not None for one in decided] == [cap >= 3, True, True]


@around_the_boundary
def test_a_clock_is_off_beyond_the_warning_and_fenced_beyond_the_fence(offset: int) -> None:
    rules = ClockRules(warn=SECOND, fence=5 * SECOND)
    warned = judge_clock(ClockReading(SECOND + offset, 0), rules)
    fenced = judge_clock(ClockReading(-5 * SECOND - offset, 0), rules)
    assert warned is (ClockState.OFF if offset > 0 else ClockState.RIGHT)
    assert fenced is (ClockState.FENCED if offset > 0 else ClockState.OFF)


@around_the_boundary
def test_a_replica_shows_what_it_has_replayed_exactly(offset: int) -> None:
    assert staleness([(0, 100)], 100 + offset, SECOND) == (None if offset < 0 else SECOND)
