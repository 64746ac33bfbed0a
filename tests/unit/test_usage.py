"""What work costs, and what it may cost: the rules."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.budget import Budget, BudgetStatus, amount_words, judge, news, period_of
from mainspring.domain.errors import Invalid
from mainspring.domain.instant import DAY, LATEST, SECOND, parse_instant
from mainspring.domain.usage import Spent, Usage, by_line, check_amount, check_unit, check_units, cost_of, day_of

NOW = parse_instant("2026-02-15T12:00:00Z")
units = st.sampled_from(["attempts", "wall", "cpu", "tokens", "pages"])
amounts = st.integers(0, 10**9).map(float)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab"), units, amounts)))
def test_lines_hold_all_that_was_summed(rows: list[tuple[int, str, str, float]]) -> None:
    usage = [Usage(day=day * DAY, tenant="t", key=key, unit=unit, amount=amount) for day, key, unit, amount in rows]
    lines = by_line(usage)
    assert len({(line.day, line.key) for line in lines}) == len(lines)
    assert [line.day for line in lines] == sorted(line.day for line in lines)
    for unit, of in (("attempts", "attempts"), ("wall", "wall"), ("cpu", "cpu")):
        assert sum(getattr(line, of) for line in lines) == sum(row[3] for row in rows if row[2] == unit)
    assert sum(line.units.get("tokens", 0) for line in lines) == sum(row[3] for row in rows if row[2] == "tokens")


def test_an_attempt_that_was_given_back_costs_time_and_counts_for_nothing_else() -> None:
    assert cost_of(5, None, charged=False) == {"wall": 5}
    assert cost_of(5, Spent(cpu=3, units={"tokens": 2.0}), charged=True) == {
        "attempts": 1,
        "wall": 5,
        "cpu": 3,
        "tokens": 2,
    }
    # The clock of a store may be set back.
    assert cost_of(-5, None, charged=True) == {"attempts": 1}


@pytest.mark.parametrize("unit", ["wall", "cpu", "attempts", "", "Tokens", "a b", "1a", "x" * 41, 5])
def test_what_is_no_unit(unit: str) -> None:
    with pytest.raises(Invalid):
        check_unit(unit)


@pytest.mark.parametrize("amount", [-1, float("nan"), float("inf"), 1e16, True, "1"])
def test_what_is_no_amount(amount: float) -> None:
    with pytest.raises(Invalid):
        check_amount(amount)


def test_an_attempt_spends_so_many_kinds_of_units_at_most() -> None:
    check_units({f"u{number}": 1 for number in range(20)})
    with pytest.raises(Invalid, match="at most 20"):
        check_units({f"u{number}": 1 for number in range(21)})


def a_budget(**more: object) -> Budget:
    return msgspec.convert({"tenant": "t", "name": "b", "unit": "tokens", "limit": 100.0, **more}, Budget)


@given(st.integers(0, LATEST // DAY - 400).map(lambda day: day * DAY + 12_345), st.sampled_from(["day", "month"]))
def test_a_moment_lies_in_one_period(now: int, period: str) -> None:
    budget = a_budget(period=period)
    begin, end = period_of(budget, now)
    assert begin <= now < end
    assert begin == day_of(begin)
    assert period_of(budget, end - 1) == (begin, end)
    assert period_of(budget, end)[0] == end
    assert end - begin == DAY if period == "day" else 28 * DAY <= end - begin <= 31 * DAY


@given(st.lists(st.integers(0, 60), max_size=8), st.floats(0.1, 1.0))
def test_every_step_is_told_once_in_a_period_however_it_is_reached(steps: list[int], warn_at: float) -> None:
    status = BudgetStatus(budget=a_budget(warn_at=warn_at), id="x")
    told: list[str] = []
    spent = 0.0
    for step in steps:
        spent += step
        after = judge(status, spent, NOW)
        told += news(status, after)
        status = after
    assert told == ["budget.warned", "budget.exceeded"][: len(told)]
    assert ("budget.exceeded" in told) == (spent >= 100)
    assert ("budget.warned" in told) == (spent >= 100 * warn_at)
    following = judge(status, 0.0, NOW + 31 * DAY)
    assert (following.state, news(status, following)) == ("ok", [])


def test_a_budget_that_is_raised_is_all_right_again() -> None:
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
def test_what_is_no_budget(fields: dict[str, object], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        a_budget(**fields).check()
    assert refused.value.field == field


def test_amounts_in_words() -> None:
    assert amount_words("wall", 90.0 * SECOND) == "90s of wall"
    assert amount_words("tokens", 5.0) == "5 tokens"
