"""The checker finds wrong ticks and wrong decisions in the ledger."""

import msgspec
import pytest

from mainspring.core.model.base.instant import HOUR, SECOND, Instant
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.calendar import CalendarSpec, Freeze, WhenClosed
from mainspring.core.model.schedules.catch_up import CatchUp
from mainspring.core.model.schedules.job import JobSpec, JobState, Overlap
from mainspring.core.model.schedules.schedule import Interval
from mainspring.core.ports.storage.access import Author
from tests.support.simulation.acts import Act
from tests.support.simulation.directed import Director, play
from tests.support.simulation.examples import Breaks, a_good_history, a_job, fires
from tests.support.simulation.history import History, JobChange, Step
from tests.support.simulation.invariants import violations
from tests.support.simulation.workload import LOOP

pytestmark = pytest.mark.simulation

breaks = Breaks()


@breaks("ticks are missing")
def a_tick_is_missing(history: History) -> None:
    fires(history, "cron")[1].ticks.clear()


@breaks("none of its schedule's")
def a_tick_is_invented(history: History) -> None:
    step = fires(history, "cron")[1]
    step.ticks[0] = msgspec.structs.replace(step.ticks[0], scheduled_at=step.ticks[0].scheduled_at - 1)


@breaks("recorded twice")
def a_tick_is_recorded_twice(history: History) -> None:
    first, second = fires(history, "cron")[:2]
    second.ticks.append(first.ticks[0])


@breaks("the ledger holds")
def a_row_of_the_ledger_is_gone(history: History) -> None:
    history.truth.ledgers[a_job(history, "cron")].pop()


@breaks("before their time")
def a_tick_is_recorded_early(history: History) -> None:
    step = fires(history, "cron")[1]
    step.at = step.ticks[0].scheduled_at - 1


@breaks("cancelled, but decided")
def a_tick_is_fired_by_whoever_ends_the_schedule(history: History) -> None:
    step = fires(history, "cron")[1]
    step.operation = "set_jobs_state"
    step.jobs[0].after.state = JobState.CANCELLED


@breaks("was in a pause, but decided")
def a_paused_job_runs(history: History) -> None:
    _paused(history, resume_at=None)


@breaks("was in no pause, but decided")
def a_tick_is_paused_after_the_pause(history: History) -> None:
    step = fires(history, "cron")[1]
    _paused(history, resume_at=step.ticks[0].scheduled_at)
    step.ticks[0] = msgspec.structs.replace(step.ticks[0], decision="skipped", reason="paused", run_id=None)


def _paused(history: History, resume_at: Instant | None) -> None:
    """The job was paused after its first tick."""
    first, second = fires(history, "cron")[:2]
    [row] = [change.after for change in first.jobs if change.after.id == first.ticks[0].job_id]
    paused = msgspec.structs.replace(row, state=JobState.PAUSED, resume_at=resume_at)
    pause = Step(order=0, at=first.at + 1, process="", operation="set_jobs_state", sent=first.at)
    pause.jobs.append(JobChange(row, paused))
    history.steps.insert(history.steps.index(second), pause)


@breaks("decided [")
def a_late_tick_runs_although_missed_ticks_should_not(history: History) -> None:
    step = fires(history, "delay")[1]
    step.sent += 10 * HOUR


@breaks("started beside")
def a_tick_starts_beside_a_run_that_it_should_not_overlap(history: History) -> None:
    step = next(step for step in fires(history, "cron") if step.ticks[0].reason == "overlap")
    step.ticks[0] = msgspec.structs.replace(step.ticks[0], decision="run", reason="")


@breaks("nothing was on its way")
def a_tick_is_skipped_for_nothing(history: History) -> None:
    step = fires(history, "cron")[0]
    step.ticks[0] = msgspec.structs.replace(step.ticks[0], decision="skipped", reason="overlap")


@breaks("expected from")
def a_fixed_delay_is_cut_short(history: History) -> None:
    first, second = fires(history, "delay")[:2]
    assert first is not second
    second.ticks[0] = msgspec.structs.replace(second.ticks[0], scheduled_at=second.ticks[0].scheduled_at - 1)


@breaks("no tick between")
def a_fixed_delay_stops_ticking(history: History) -> None:
    for step in fires(history, "delay")[2:]:
        step.ticks.clear()


@breaks("is stuck: scheduled")
def a_job_never_finishes(history: History) -> None:
    history.truth.jobs[a_job(history, "cron")].state = JobState.SCHEDULED


@pytest.mark.parametrize("name", breaks.ways)
def test_the_checker_reports(name: str) -> None:
    breaks.check(name)


def test_the_correct_history_contains_every_case_that_is_broken() -> None:
    assert {tick.reason for step in fires(a_good_history(), "cron") for tick in step.ticks} == {"", "overlap"}


def play_two_jobs_with_one_key() -> tuple[History, Step]:
    """Two jobs share an ordering key. In the step, the first one cancels its run, which held the key for the second."""

    async def script(director: Director) -> None:
        # The only slot is taken, so that the runs of both jobs wait.
        director.submit(director.run(Act("work", 5 * SECOND)))
        start = director.world.now() + SECOND
        for overlap in (Overlap.CANCEL, Overlap.QUEUE):
            schedule = Interval(every=2 * SECOND, start=start, end=start + 3 * SECOND)
            policy = RunPolicy(ordering_key="key")
            director.put(JobSpec(name=overlap, task=LOOP, schedule=schedule, overlap=overlap, policy=policy))
        await director.sleep(4)

    history = play(script, workers=({"default": 1},))
    [step] = [step for step in history.steps if any(change.after.state is RunState.CANCELLED for change in step.runs)]
    return history, step


def test_a_run_that_an_earlier_fire_of_the_batch_promotes_does_not_wait() -> None:
    _, step = play_two_jobs_with_one_key()
    assert [tick.decision for tick in step.ticks] == ["run", "run"]
    assert any(change.before and change.before.state is RunState.BLOCKED for change in step.runs)


def test_a_run_that_a_later_fire_of_the_batch_promotes_still_waits() -> None:
    history, step = play_two_jobs_with_one_key()
    step.ticks.reverse()
    assert any("a third one beside" in sentence for sentence in violations(history))


@pytest.mark.parametrize(
    ("overlap", "catch_up", "reason"),
    [
        (Overlap.CANCEL, CatchUp(), "overlap"),
        (Overlap.ALLOW, CatchUp(mode="latest", grace=SECOND // 2), "superseded by a later tick"),
    ],
    ids=["cancel", "latest"],
)
def test_a_later_tick_that_fired_early_stays_the_newest(overlap: Overlap, catch_up: CatchUp, reason: str) -> None:
    """The schedule gets an earlier tick after a calendar has moved the later one before its time."""

    async def script(director: Director) -> None:
        start = -(-director.world.now() // SECOND) * SECOND
        freeze = Freeze(start=start + 4 * SECOND, end=start + 30 * SECOND)
        director.do("put_calendar", "default", "office", CalendarSpec(freezes=(freeze,)), Author("ada"))
        spec = JobSpec(
            name="report",
            task=LOOP,
            schedule=Interval(every=2 * SECOND, start=start + 8 * SECOND, end=start + 8 * SECOND),
            overlap=overlap,
            catch_up=catch_up,
            calendars=("office",),
            when_closed=WhenClosed.BEFORE,
        )
        director.put(spec, Act("work", 5 * SECOND))
        await director.until(lambda: director.world.now() >= start + 5 * SECOND)
        earlier = Interval(every=2 * SECOND, start=start + 6 * SECOND, end=start + 8 * SECOND)
        director.put(msgspec.structs.replace(spec, schedule=earlier), Act("work", 5 * SECOND))
        await director.sleep(4)

    history = play(script)
    early, changed = fires(history, "report")
    assert [tick.decision for tick in early.ticks] == ["run"]
    assert [(tick.decision, tick.reason) for tick in changed.ticks] == [("skipped", reason)]
    assert changed.ticks[0].scheduled_at < early.ticks[0].scheduled_at
    # Without the early tick, this decision would be wrong.
    early.ticks.clear()
    where = f"{a_job(history, 'report')} at {changed.at}"
    assert any(where in sentence for sentence in violations(history))
