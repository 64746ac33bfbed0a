"""A correct history for tests to break in one place, and functions to find that place."""

from collections.abc import Callable
from copy import deepcopy
from functools import cache

from mainspring.core.model.base.ids import JobId
from mainspring.core.model.base.instant import MILLISECOND, SECOND
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.catch_up import CatchUp
from mainspring.core.model.schedules.job import JobSpec, Overlap
from mainspring.core.model.schedules.schedule import CronSchedule, Interval
from tests.support.simulation.acts import Act
from tests.support.simulation.directed import Director, play
from tests.support.simulation.history import History, RunChange, Step
from tests.support.simulation.invariants import violations
from tests.support.simulation.workload import LOOP

KEYED = RunPolicy(ordering_key="key")
FLAKY = Act("flaky", 50 * MILLISECOND, times=1)


@cache
def a_good_history() -> History:
    """A history with retries, a key, a cancel, an at-most-once run, a cron, a fixed delay and a calm stretch."""

    async def script(director: Director) -> None:
        now, end = director.world.now(), director.start + 8 * SECOND
        director.submit(director.run(FLAKY), director.run(Act(), delay=2 * SECOND))
        director.submit(director.run(Act(), policy=RunPolicy(guarantee="at-most-once")))
        work = Act("work", 500 * MILLISECOND)
        director.submit(*(director.run(work, policy=KEYED) for _ in range(3)))
        [doomed] = director.submit(director.run(Act("work", 30 * SECOND)))
        cron = CronSchedule(expression="* * * * * *", end=end)
        director.put(JobSpec(name="cron", task=LOOP, schedule=cron, overlap=Overlap.SKIP), Act("work", 1_500_000))
        delay = Interval(every=SECOND, mode="fixed_delay", end=end)
        director.put(JobSpec(name="delay", task=LOOP, schedule=delay, catch_up=CatchUp(mode="none")), work)
        director.world.history.truth.calm.append((now, end))
        await director.sleep(2)
        director.cancel(doomed)

    return play(script, workers=({"default": 8},))


def moves(history: History, fitting: Callable[[Step, RunChange], bool]) -> list[tuple[Step, RunChange]]:
    return [(step, change) for step in history.steps for change in step.runs if fitting(step, change)]


def starts(history: History) -> list[tuple[Step, RunChange]]:
    return moves(history, lambda step, _: step.operation == "claim")


def ends(history: History, state: RunState) -> list[tuple[Step, RunChange]]:
    return moves(history, lambda _, change: change.after.state is state)


def keyed(history: History, state: RunState) -> list[tuple[Step, RunChange]]:
    return [(step, change) for step, change in ends(history, state) if change.after.policy.ordering_key]


def a_job(history: History, name: str) -> JobId:
    return next(job for job, row in history.truth.jobs.items() if row.spec.name == name)


def fires(history: History, name: str) -> list[Step]:
    job = a_job(history, name)
    return [step for step in history.steps if any(tick.job_id == job for tick in step.ticks)]


class Breaks:
    """Ways to break a correct history, each with the violation that the checker must report."""

    def __init__(self) -> None:
        self.ways: dict[str, tuple[str, Callable[[History], None]]] = {}

    def __call__(self, complaint: str) -> Callable[[Callable[[History], None]], Callable[[History], None]]:
        def register(change: Callable[[History], None]) -> Callable[[History], None]:
            self.ways[change.__name__] = (complaint, change)
            return change

        return register

    def check(self, name: str) -> None:
        complaint, change = self.ways[name]
        history = deepcopy(a_good_history())
        change(history)
        found = violations(history)
        assert any(complaint in sentence for sentence in found), found
