"""The checker judges objectives as the scheduler does: from the tick, and not from the time of a catch-up."""

import pytest

from mainspring.core.model.base.instant import SECOND
from mainspring.core.model.schedules.catch_up import CatchUp
from mainspring.core.model.schedules.job import JobSpec
from mainspring.core.model.schedules.schedule import Interval
from mainspring.core.model.schedules.slo import MISSED, RECOVERED, Slo
from tests.support.simulation.acts import Act
from tests.support.simulation.directed import Director, play, without
from tests.support.simulation.invariants import violations
from tests.support.simulation.workload import LOOP

pytestmark = pytest.mark.simulation


def test_a_caught_up_tick_that_starts_too_late_after_its_time_is_a_miss() -> None:
    async def script(director: Director) -> None:
        [scheduler] = director.world.schedulers
        tick = director.world.now() + 5 * SECOND
        director.put(
            JobSpec(
                name="job",
                task=LOOP,
                schedule=Interval(every=10 * SECOND, start=tick, end=tick + 20 * SECOND),
                catch_up=CatchUp(grace=SECOND // 2),
                slo=Slo(start_within=4 * SECOND),
            )
        )
        await director.sleep(4)
        assert scheduler.process is not None
        scheduler.process.kill()
        # The only slot is busy until five seconds after the tick.
        director.submit(director.run(Act("work", 6 * SECOND)))
        await director.sleep(2.5)
        scheduler.boot()
        await director.sleep(5)
        [run] = [run for run in director.world.store.tables.runs.values() if run.scheduled_at == tick]
        assert run.started_at is not None
        # It is late by the tick, but not by the due time that catch-up has set.
        assert tick + 4 * SECOND < run.started_at < run.due + 4 * SECOND

    history = play(script, workers=({"default": 1},))
    events = [batch for batch in history.truth.events if batch.kind in (MISSED, RECOVERED)]
    assert [batch.kind for batch in events] == [MISSED, RECOVERED]
    found = violations(without(history, events=[batch for batch in history.truth.events if batch is not events[0]]))
    assert any(sentence.startswith("every_reported_miss_happened") for sentence in found)
