"""Every edit of a batch is a move of its own in the history."""

import pytest

from mainspring.domain.instant import SECOND
from mainspring.domain.run import RunState
from mainspring.domain.unique import Unique
from tests.support.simulation.acts import Act
from tests.support.simulation.directed import Director, play
from tests.support.simulation.history import History
from tests.support.simulation.invariants import violations

pytestmark = pytest.mark.simulation

S, Q = RunState.SCHEDULED, RunState.QUEUED
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
    assert any("run.queued happened 1 times and was told 0 times" in sentence for sentence in found), found


def test_a_second_event_of_the_second_debounce_is_a_violation() -> None:
    history = play_a_batch_that_delays_a_queued_run_and_makes_it_due()
    [queued] = [batch for batch in history.truth.events if batch.kind == "run.queued"]
    history.truth.events.append(queued)
    found = violations(history)
    assert any("run.queued happened 1 times and was told 2 times" in sentence for sentence in found), found
