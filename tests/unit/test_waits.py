"""The reason of a blocked run, derived from its own row."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.limits.limits import Breaker, build_limiters
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.runs.waits import describe_reason
from mainspring.core.model.workflows.dependencies import DependencyRule
from tests.unit.test_explain import a_view

BROKEN = RunPolicy(breaker=Breaker())


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (a_view(RunState.BLOCKED), "waits for an earlier run of its job (overlap)"),
        (a_view(RunState.BLOCKED, key="k"), "waits for ordering key 'k'"),
        (a_view(RunState.BLOCKED, parents=1, key="k"), "waits for another run (all-succeeded), then ordering key 'k'"),
        (a_view(RunState.BLOCKED, parents=2, rule=DependencyRule.ANY_FAILED), "waits for 2 other runs (any-failed)"),
        (
            msgspec.structs.replace(
                a_view(RunState.BLOCKED, limiter=build_limiters("default", "greet", (), BROKEN.breaker)[0].number),
                policy=BROKEN,
            ),
            "waits: the breaker of task 'greet' is open",
        ),
    ],
)
def test_a_blocked_run_says_what_it_waits_for(run: RunView, words: str) -> None:
    assert describe_reason(run) == words


@given(st.sampled_from(list(RunState)), st.sampled_from(["", "error"]), st.sampled_from(["", "k"]), st.integers(0, 2))
def test_a_run_that_is_not_blocked_keeps_its_own_reason(state: RunState, reason: str, key: str, parents: int) -> None:
    found = describe_reason(a_view(state, reason=reason, key=key, parents=parents))
    assert found.startswith("waits") if state is RunState.BLOCKED else found == reason
