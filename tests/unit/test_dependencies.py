"""Dependencies: what becomes of a run is a function of how its parents ended, and nobody waits in a circle."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.dependencies import (
    MAX_PARENTS,
    Dependencies,
    Ended,
    Rule,
    check_no_circle,
    decide,
    find_circle,
    parents_first,
    reason_of_skip,
)
from mainspring.domain.errors import Invalid
from tests.support.builders import an_id

STATES = ["succeeded", "failed", "cancelled", "skipped"]
GRAPHS = st.dictionaries(st.integers(0, 12).map(str), st.lists(st.integers(0, 12).map(str), max_size=4), max_size=12)


def count(states: list[str], parents: int) -> Ended:
    return Ended(
        parents=parents,
        succeeded=states.count("succeeded"),
        otherwise=len(states) - states.count("succeeded"),
        failed=states.count("failed"),
    )


@given(rule=st.sampled_from(Rule), ends=st.lists(st.sampled_from(STATES), min_size=1, max_size=6))
def test_a_decision_stands_however_the_rest_end_and_comes_at_last(rule: Rule, ends: list[str]) -> None:
    decisions = [decide(rule, count(ends[:known], len(ends))) for known in range(len(ends) + 1)]
    assert decisions[0] == "wait"
    assert decisions[-1] != "wait"
    decided = [decision for decision in decisions if decision != "wait"]
    assert len(set(decided)) == 1


@given(rule=st.sampled_from(Rule), ends=st.lists(st.sampled_from(STATES), min_size=1, max_size=6))
def test_the_rules_in_plain_words(rule: Rule, ends: list[str]) -> None:
    goes = {
        Rule.ALL_SUCCEEDED: all(end == "succeeded" for end in ends),
        Rule.ALL_DONE: True,
        Rule.ANY_SUCCEEDED: "succeeded" in ends,
        Rule.ANY_FAILED: "failed" in ends,
    }[rule]
    assert decide(rule, count(ends, len(ends))) == ("go" if goes else "skip")


@given(ends=st.lists(st.sampled_from(STATES), max_size=5))
def test_a_decision_is_made_as_soon_as_it_is_certain(ends: list[str]) -> None:
    """It waits only while the last parent could make it either; or, by one rule, for its end."""
    for rule in (Rule.ALL_SUCCEEDED, Rule.ANY_SUCCEEDED, Rule.ANY_FAILED):
        possible = {decide(rule, count([*ends, last], len(ends) + 1)) for last in STATES}
        assert decide(rule, count(ends, len(ends) + 1)) == (possible.pop() if len(possible) == 1 else "wait")


def _reaches(edges: dict[str, list[str]], start: str) -> set[str]:
    seen: set[str] = set()
    left = list(edges.get(start, ()))
    while left:
        node = left.pop()
        if node not in seen:
            seen.add(node)
            left += edges.get(node, ())
    return seen


@given(GRAPHS)
def test_a_circle_is_found_if_and_only_if_there_is_one(edges: dict[str, list[str]]) -> None:
    circle = find_circle(edges)
    assert (circle is not None) == any(node in _reaches(edges, node) for node in edges)
    if circle is not None:
        assert circle[0] == circle[-1]
        assert len(circle) > 1
        assert all(parent in edges[child] for child, parent in pairwise(circle))


@given(GRAPHS)
def test_parents_come_before_their_children(edges: dict[str, list[str]]) -> None:
    if find_circle(edges) is not None:
        with pytest.raises(Invalid, match="circle"):
            parents_first(edges)
        return
    order = parents_first(edges)
    assert sorted(order) == sorted(edges)
    places = {node: place for place, node in enumerate(order)}
    for child, parents in edges.items():
        assert all(places[parent] < places[child] for parent in parents if parent in edges)


def test_a_long_row_is_no_trouble() -> None:
    edges = {str(number): [str(number + 1)] for number in range(50_000)}
    assert find_circle(edges) is None
    edges["50000"] = ["0"]
    assert find_circle(edges) is not None


def test_a_circle_is_told_by_name() -> None:
    with pytest.raises(Invalid, match="a → b → a"):
        check_no_circle({"a": ["b"], "b": ["a"]})


def test_the_reason_of_a_skip() -> None:
    parent = an_id()
    assert reason_of_skip(Rule.ALL_SUCCEEDED, parent, "failed") == f"parent {parent} failed"
    assert reason_of_skip(Rule.ANY_FAILED, parent, "succeeded") == "nothing to clean up"


def test_dependencies_that_make_no_sense_are_refused() -> None:
    one = an_id()
    bad = [
        Dependencies(parents=()),
        Dependencies(parents=(one, one)),
        Dependencies(parents=tuple(an_id() for _ in range(MAX_PARENTS + 1))),
        Dependencies(parents=("x",)),  # type: ignore[arg-type]
        Dependencies(parents=(one,), rule="sometimes"),  # type: ignore[arg-type]
    ]
    for dependencies in bad:
        with pytest.raises(Invalid, match="dependsOn"):
            dependencies.check()
    Dependencies(parents=(one,)).check()
