"""When a stretch is calm, and which due times count in it."""

from copy import copy

import pytest

from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.model.runs.unique import Unique
from tests.support.simulation.acts import Act
from tests.support.simulation.directed import Director, play
from tests.support.simulation.history import History, RunChange, Step
from tests.support.simulation.invariants import violations

pytestmark = pytest.mark.simulation

DEBOUNCED = Unique(key="key", otherwise="debounce")


def play_a_debounce(delay: Micros) -> tuple[History, Step, RunChange]:
    """A debounce that moves the due time of a scheduled run, in a calm stretch. A negative delay is in the past."""

    async def script(director: Director) -> None:
        calm_begins = director.world.now()
        director.submit(director.run(Act(), delay=3 * SECOND, unique=DEBOUNCED))
        await director.sleep(2)
        director.do("submit", [director.run(Act(), at=director.world.now() + delay, unique=DEBOUNCED)])
        director.world.history.truth.calm.append((calm_begins, calm_begins + 8 * SECOND))

    history = play(script)
    [(step, change)] = [(step, change) for step in history.steps for change in step.runs if change.edited]
    return history, step, change


def test_a_debounce_into_the_past_stages_the_run_on_time() -> None:
    _, step, change = play_a_debounce(-700 * MILLISECOND)
    assert step.at - change.after.due >= 700 * MILLISECOND


@pytest.mark.parametrize("delay", [-700 * MILLISECOND, 2 * SECOND])
def test_a_debounce_of_an_overdue_run_is_a_violation(delay: Micros) -> None:
    history, step, change = play_a_debounce(delay)
    change.before = copy(change.before)
    assert change.before is not None
    change.before.due = step.at - 101 * MILLISECOND
    found = violations(history)
    assert any("101.0 ms late in a calm stretch" in sentence for sentence in found), found


def test_a_run_that_is_staged_late_after_a_debounce_is_a_violation() -> None:
    history, _, change = play_a_debounce(2 * SECOND)
    [staged] = [step for step in history.steps if step.operation == "stage"]
    staged.at = change.after.due + 101 * MILLISECOND
    found = violations(history)
    assert any("101.0 ms late in a calm stretch" in sentence for sentence in found), found


@pytest.mark.parametrize("back", [0, 500 * MILLISECOND, 10 * SECOND])
def test_recovery_takes_its_time_by_the_clock_of_the_store(back: Micros) -> None:
    async def script(director: Director) -> None:
        world = director.world
        world.store_clock.offset -= back
        world.history.truth.clock_steps += back
        last_reading = world.now()
        await world.recover()
        assert world.now() == last_reading + world.scenario.settling

    play(script)


def test_no_lease_from_before_the_recovery_delays_runs_in_the_calm_stretch() -> None:
    async def script(director: Director) -> None:
        world = director.world
        world.store_clock.offset -= 10 * SECOND
        world.history.truth.clock_steps += 10 * SECOND
        # These members never renew. The only scheduler releases the shards that are theirs.
        for number in range(8):
            director.do("join", f"lost-{number}", world.scenario.shard_lease)
        await director.until(lambda: world.store.tables.shard_rows[0].owner is None)
        await world.recover()
        calm_begins = world.now()
        director.submit(director.run(Act(), delay=SECOND // 2))
        await director.sleep(3)
        world.history.truth.calm.append((calm_begins, world.now()))

    play(script)
