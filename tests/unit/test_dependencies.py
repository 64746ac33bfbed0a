"""Dependencies between runs: the outcomes of the parents decide, and cycles are rejected."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.workflows.dependencies import (
    MAX_PARENTS,
    Dependencies,
    DependencyRule,
    EndedParent,
    check_no_circle,
    decide,
    find_circle,
    parents_first,
    reason_of_skip,
)
from tests.support.builders import an_id

STATES = ["succeeded", "failed", "cancelled", "skipped"]
GRAPHS = st.dictionaries(st.integers(0, 12).map(str), st.lists(st.integers(0, 12).map(str), max_size=4), max_size=12)


def count(states: list[str], parents: int) -> EndedParent:
    return EndedParent(
        parents=parents,
        succeeded=states.count("succeeded"),
        otherwise=len(states) - states.count("succeeded"),
        failed=states.count("failed"),
    )


@given(rule=st.sampled_from(DependencyRule), ends=st.lists(st.sampled_from(STATES), min_size=1, max_size=6))
def test_a_decision_is_final_and_is_made_when_all_parents_have_ended(rule: DependencyRule, ends: list[str]) -> None:
    decisions = [decide(rule, count(ends[:known], len(ends))) for known in range(len(ends) + 1)]
    assert decisions[0] == "wait"
    assert decisions[-1] != "wait"
    decided = [decision for decision in decisions if decision != "wait"]
    assert len(set(decided)) == 1


@given(rule=st.sampled_from(DependencyRule), ends=st.lists(st.sampled_from(STATES), min_size=1, max_size=6))
def test_each_rule_decides_by_the_outcomes_of_all_parents(rule: DependencyRule, ends: list[str]) -> None:
    goes = {
        DependencyRule.ALL_SUCCEEDED: all(end == "succeeded" for end in ends),
        DependencyRule.ALL_DONE: True,
        DependencyRule.ANY_SUCCEEDED: "succeeded" in ends,
        DependencyRule.ANY_FAILED: "failed" in ends,
    }[rule]
    assert decide(rule, count(ends, len(ends))) == ("go" if goes else "skip")


@given(ends=st.lists(st.sampled_from(STATES), max_size=5))
def test_a_decision_is_made_as_soon_as_it_is_certain(ends: list[str]) -> None:
    """A child waits only while its last parent can still change the decision."""
    for rule in (DependencyRule.ALL_SUCCEEDED, DependencyRule.ANY_SUCCEEDED, DependencyRule.ANY_FAILED):
        possible = {decide(rule, count([*ends, last], len(ends) + 1)) for last in STATES}
        assert decide(rule, count(ends, len(ends) + 1)) == (possible.pop() if len(possible) == 1 else "wait")


def find_reachable(edges: dict[str, list[str]], start: str) -> set[str]:
    seen: set[str] = set()
    left = list(edges.get(start, ()))
    while left:
        node = left.pop()
        if node not in seen:
            seen.add(node)
            left += edges.get(node, ())
    return seen


@given(GRAPHS)
def test_a_cycle_is_found_if_and_only_if_there_is_one(edges: dict[str, list[str]]) -> None:
    circle = find_circle(edges)
    assert (circle is not None) == any(node in find_reachable(edges, node) for node in edges)
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
    positions = {node: position for position, node in enumerate(order)}
    for child, parents in edges.items():
        assert all(positions[parent] < positions[child] for parent in parents if parent in edges)


def test_a_long_chain_is_checked_without_recursion() -> None:
    edges = {str(number): [str(number + 1)] for number in range(50_000)}
    assert find_circle(edges) is None
    edges["50000"] = ["0"]
    assert find_circle(edges) is not None


def test_the_error_names_the_nodes_of_a_cycle() -> None:
    with pytest.raises(Invalid, match="a → b → a"):
        check_no_circle({"a": ["b"], "b": ["a"]})


def test_a_skipped_run_names_its_parent_or_says_that_nothing_failed() -> None:
    parent = an_id()
    assert reason_of_skip(DependencyRule.ALL_SUCCEEDED, parent, "failed") == f"parent {parent} failed"
    assert reason_of_skip(DependencyRule.ANY_FAILED, parent, "succeeded") == "nothing to clean up"


def test_invalid_dependencies_are_rejected() -> None:
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
    Dependencies(parents=tuple(an_id() for _ in range(MAX_PARENTS))).check()
