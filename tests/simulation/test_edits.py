"""Every edit of a batch is a move of its own in the history."""

from copy import copy

import pytest

from mainspring.core.model.base.instant import SECOND
from mainspring.core.model.limits.limits import Limit
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.unique import Unique
from tests.support.simulation.acts import Act
from tests.support.simulation.directed import Director, play
from tests.support.simulation.history import History
from tests.support.simulation.invariants import violations

pytestmark = pytest.mark.simulation

S, B, Q = RunState.SCHEDULED, RunState.BLOCKED, RunState.QUEUED
DEBOUNCED = Unique(key="key", otherwise="debounce")


def play_a_batch_that_delays_a_queued_run_and_makes_it_due() -> History:
    async def script(director: Director) -> None:
        director.submit(director.run(Act(), unique=DEBOUNCED))
        # Shorter than any message of the world takes: no worker claims the run before the batch.
        await director.sleep(0.0001)
        director.do("submit", [director.run(Act(), delay=delay, unique=DEBOUNCED) for delay in (SECOND, 0)])

    return play(script)


def test_a_batch_of_two_debounces_is_recorded_as_two_moves() -> None:
    history = play_a_batch_that_delays_a_queued_run_and_makes_it_due()
    edits = [change for step in history.steps for change in step.runs if change.edited]
    assert [(change.before.state, change.after.state) for change in edits if change.before] == [(Q, S), (S, Q)]


def test_a_missing_event_of_the_second_debounce_is_a_violation() -> None:
    history = play_a_batch_that_delays_a_queued_run_and_makes_it_due()
    history.truth.events = [batch for batch in history.truth.events if batch.kind != "run.queued"]
    found = violations(history)
    assert any("run.queued happened 1 times and was published 0 times" in sentence for sentence in found), found


def test_a_second_event_of_the_second_debounce_is_a_violation() -> None:
    history = play_a_batch_that_delays_a_queued_run_and_makes_it_due()
    [queued] = [batch for batch in history.truth.events if batch.kind == "run.queued"]
    history.truth.events.append(queued)
    found = violations(history)
    assert any("run.queued happened 1 times and was published 2 times" in sentence for sentence in found), found


def play_debounces_of_one_ordering_key(
    submitted: dict[str, float], batch: list[tuple[str, float]], *, then: list[float]
) -> tuple[History, list[tuple[str, RunState, RunState]]]:
    """The history, and the moves by the batch.

    All runs have one ordering key. ``submitted``: delays in seconds, by unique key. ``batch``: debounces in their
    order, by unique key. ``then``: the delays of runs that are submitted after the batch.
    """

    async def script(director: Director) -> None:
        def build_run(delay: float, name: str = "") -> NewRun:
            unique = Unique(key=name, otherwise="debounce") if name else None
            return director.run(
                Act(), delay=round(delay * SECOND), unique=unique, policy=RunPolicy(ordering_key="video 7")
            )

        for name, delay in submitted.items():
            director.submit(build_run(delay, name))
        # Shorter than any message of the world takes: no worker claims a run before the batch.
        await director.sleep(0.0001)
        director.do("submit", [build_run(delay, name) for name, delay in batch])
        for delay in then:
            director.submit(build_run(delay))

    history = play(script)
    step = [step for step in history.steps if step.operation == "submit"][len(submitted)]
    moves = [
        (change.after.unique.key, change.before.state, change.after.state)
        for change in step.runs
        if change.after.unique is not None and change.before is not None
    ]
    return history, moves


def test_a_run_that_a_batch_makes_due_and_delays_again_holds_no_ordering_key() -> None:
    _, moves = play_debounces_of_one_ordering_key({"x": 5}, [("x", 0), ("x", 5)], then=[0])
    assert moves == [("x", S, Q), ("x", Q, S)]


def test_a_run_gets_the_ordering_key_after_the_edit_that_frees_it() -> None:
    _, moves = play_debounces_of_one_ordering_key({"x": 5, "y": 5}, [("x", 0), ("y", 0), ("x", 5)], then=[0])
    assert moves == [("x", S, Q), ("y", S, B), ("x", Q, S), ("y", B, Q)]


def test_a_run_that_gets_the_ordering_key_before_the_edit_that_frees_it_is_a_violation() -> None:
    history, moves = play_debounces_of_one_ordering_key({"x": 0, "y": 5}, [("y", 0), ("x", 5)], then=[])
    assert moves == [("y", S, B), ("x", Q, S), ("y", B, Q)]
    [blocked] = [change for step in history.steps for change in step.runs if change.after.state is B]
    blocked.after = copy(blocked.after)
    blocked.after.state = Q
    found = violations(history)
    assert any("keys_keep_order" in sentence and "held it" in sentence for sentence in found), found


def test_a_run_that_gets_the_ordering_key_and_waits_for_a_limit_precedes_later_edits_of_the_batch() -> None:
    limits = (Limit(key="encoder", most=1),)

    async def script(director: Director) -> None:
        def build_run(name: str, delay: float, limits: tuple[Limit, ...] = ()) -> NewRun:
            policy = RunPolicy(ordering_key="video 7", limits=limits)
            unique = Unique(key=name, otherwise="debounce")
            return director.run(Act(), at=director.world.now() + round(delay * SECOND), unique=unique, policy=policy)

        director.submit(director.run(Act("work", SECOND), policy=RunPolicy(limits=limits)))
        director.submit(build_run("x", 0), build_run("y", 0, limits), build_run("z", 5))
        await director.sleep(0.0001)
        director.do("submit", [build_run("x", 5), build_run("z", -1)])

    history = play(script)
    _, _, step = [step for step in history.steps if step.operation == "submit"]
    moves = [(change.after.unique.key, change.after.state) for change in step.runs if change.after.unique is not None]
    assert moves == [("x", S), ("y", B), ("z", B)]
