"""Usage and budgets."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, LATEST, SECOND, parse_instant
from mainspring.core.model.limits.budget import Budget, BudgetStatus, amount_words, find_period, judge, news
from mainspring.core.model.runs.usage import (
    AttemptCost,
    Usage,
    by_line,
    check_amount,
    check_unit,
    check_units,
    compute_cost,
    find_day,
)

NOW = parse_instant("2026-02-15T12:00:00Z")
units = st.sampled_from(["attempts", "wall", "cpu", "tokens", "pages"])
amounts = st.integers(0, 10**9).map(float)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab"), units, amounts)))
def test_usage_lines_add_up_to_the_rows(rows: list[tuple[int, str, str, float]]) -> None:
    usage = [Usage(day=day * DAY, tenant="t", key=key, unit=unit, amount=amount) for day, key, unit, amount in rows]
    lines = by_line(usage)
    assert len({(line.day, line.key) for line in lines}) == len(lines)
    assert [line.day for line in lines] == sorted(line.day for line in lines)
    for unit, of in (("attempts", "attempts"), ("wall", "wall"), ("cpu", "cpu")):
        assert sum(getattr(line, of) for line in lines) == sum(row[3] for row in rows if row[2] == unit)
    assert sum(line.units.get("tokens", 0) for line in lines) == sum(row[3] for row in rows if row[2] == "tokens")


def test_a_released_attempt_costs_only_wall_time() -> None:
    assert compute_cost(5, None, charged=False) == {"wall": 5}
    assert compute_cost(5, AttemptCost(cpu=3, units={"tokens": 2.0}), charged=True) == {
        "attempts": 1,
        "wall": 5,
        "cpu": 3,
        "tokens": 2,
    }
    # The clock of a store may be set back.
    assert compute_cost(-5, None, charged=True) == {"attempts": 1}


@pytest.mark.parametrize("unit", ["wall", "cpu", "attempts", "", "Tokens", "a b", "1a", "x" * 41, 5])
def test_an_invalid_unit_is_rejected(unit: str) -> None:
    with pytest.raises(Invalid):
        check_unit(unit)


@pytest.mark.parametrize("amount", [-1, float("nan"), float("inf"), 1e16, True, "1"])
def test_an_invalid_amount_is_rejected(amount: float) -> None:
    with pytest.raises(Invalid):
        check_amount(amount)


def test_an_attempt_spends_at_most_20_units() -> None:
    check_units({f"u{number}": 1 for number in range(20)})
    with pytest.raises(Invalid, match="at most 20"):
        check_units({f"u{number}": 1 for number in range(21)})


def a_budget(**more: object) -> Budget:
    return msgspec.convert({"tenant": "t", "name": "b", "unit": "tokens", "limit": 100.0, **more}, Budget)


@given(st.integers(0, LATEST // DAY - 400).map(lambda day: day * DAY + 12_345), st.sampled_from(["day", "month"]))
def test_every_instant_lies_in_exactly_one_budget_period(now: int, period: str) -> None:
    budget = a_budget(period=period)
    begin, end = find_period(budget, now)
    assert begin <= now < end
    assert begin == find_day(begin)
    assert find_period(budget, end - 1) == (begin, end)
    assert find_period(budget, end)[0] == end
    assert end - begin == DAY if period == "day" else 28 * DAY <= end - begin <= 31 * DAY


@given(st.lists(st.integers(0, 60), max_size=8), st.floats(0.1, 1.0))
def test_each_budget_event_is_emitted_once_per_period(steps: list[int], warn_at: float) -> None:
    status = BudgetStatus(budget=a_budget(warn_at=warn_at), id="x")
    emitted: list[str] = []
    spent = 0.0
    for step in steps:
        spent += step
        after = judge(status, spent, NOW)
        emitted += news(status, after)
        status = after
    assert emitted == ["budget.warned", "budget.exceeded"][: len(emitted)]
    assert ("budget.exceeded" in emitted) == (spent >= 100)
    assert ("budget.warned" in emitted) == (spent >= 100 * warn_at)
    following = judge(status, 0.0, NOW + 31 * DAY)
    assert (following.state, news(status, following)) == ("ok", [])


def test_raising_a_budget_resets_its_state() -> None:
    over = judge(BudgetStatus(budget=a_budget(), id="x"), 150.0, NOW)
    raised = msgspec.structs.replace(over, budget=a_budget(limit=1000.0))
    after = judge(raised, 150.0, NOW)
    assert (over.state, after.state, news(raised, after)) == ("over", "ok", [])


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"limit": 0.0}, "limit"),
        ({"unit": "No"}, "unit"),
        ({"name": "a/b"}, "name"),
        ({"warn_at": 0.0}, "warnAt"),
        ({"target": "x"}, "target"),
        ({"of": "job"}, "target"),
        ({"of": "task", "target": "x", "then": "pause"}, "then"),
        ({"tenant": "*"}, "tenant"),
    ],
)
def test_an_invalid_budget_is_rejected_by_field(fields: dict[str, object], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        a_budget(**fields).check()
    assert refused.value.field == field


def test_amounts_are_formatted_with_their_unit() -> None:
    assert amount_words("wall", 90.0 * SECOND) == "90s of wall"
    assert amount_words("tokens", 5.0) == "5 tokens"
