"""The checker sees what is wrong: histories that were right until one thing in them was changed."""

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from itertools import pairwise

import msgspec
import pytest

from mainspring.domain.catch_up import CatchUp
from mainspring.domain.instant import HOUR, MILLISECOND, SECOND
from mainspring.domain.job import JobSpec, JobState, Overlap
from mainspring.domain.retry import RetryPolicy
from mainspring.domain.run import Outcome, RunPolicy, RunState
from mainspring.domain.schedule import CronSchedule, Interval
from tests.support.simulation.acts import Act
from tests.support.simulation.directed import Director, play
from tests.support.simulation.history import History, RunChange, Step
from tests.support.simulation.invariants import violations
from tests.support.simulation.workload import LOOP

pytestmark = pytest.mark.simulation

KEYED = RunPolicy(ordering_key="key")
FLAKY = Act("flaky", 50 * MILLISECOND, times=1)


@cache
def a_good_history() -> History:
    """A bit of everything: retries, a key, a cancel, an at-most-once run, a cron, a fixed delay, a calm stretch."""

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


def a_job(history: History, name: str) -> str:
    return next(job for job, row in history.truth.jobs.items() if row.spec.name == name)


def fires(history: History, name: str) -> list[Step]:
    job = a_job(history, name)
    return [step for step in history.steps if any(tick.job_id == job for tick in step.ticks)]


def test_a_good_history_is_good() -> None:
    assert violations(a_good_history()) == []


BREAKS: dict[str, tuple[str, Callable[[History], object]]] = {}


def breaks(complaint: str) -> Callable[[Callable[[History], object]], Callable[[History], object]]:
    """What is done to the history, and what the checker must say to it."""

    def register(change: Callable[[History], object]) -> Callable[[History], object]:
        BREAKS[change.__name__] = (complaint, change)
        return change

    return register


@breaks("accepted and is not there")
def an_accepted_run_is_gone(history: History) -> None:
    history.truth.accepted.append(msgspec.convert("f" * 32, str))  # type: ignore[arg-type]


@breaks("is stuck")
def a_run_never_ends(history: History) -> None:
    step, change = ends(history, RunState.SUCCEEDED)[0]
    step.runs.remove(change)


@breaks("without a reason")
def an_end_has_no_reason(history: History) -> None:
    ends(history, RunState.CANCELLED)[0][1].after.reason = ""


@breaks("no such handler returned")
def a_success_without_a_handler(history: History) -> None:
    run = ends(history, RunState.SUCCEEDED)[0][1].after.id
    next(call for call in history.calls if call.run == run and call.how == "returned").how = "raised"


@breaks("without anybody noticing")
def a_row_changes_unseen(history: History) -> None:
    next(iter(history.truth.runs.values())).priority += 1


@breaks("ended 2 times")
def a_run_completes_twice(history: History) -> None:
    step, change = ends(history, RunState.SUCCEEDED)[0]
    step.runs.append(deepcopy(change))


@breaks("went from scheduled to running")
def a_run_skips_the_queue(history: History) -> None:
    before = starts(history)[0][1].before
    assert before is not None
    before.state = RunState.SCHEDULED


@breaks("came after")
def a_fence_goes_back(history: History) -> None:
    retried = next(change for _, change in starts(history) if change.after.attempt == 2)
    retried.after.fence = 1


@breaks("was given to")
def a_fence_is_given_twice(history: History) -> None:
    (_, first), (_, second) = starts(history)[0], starts(history)[-1]
    second.after.fence = first.after.fence


@breaks("had effect on")
def an_old_fence_has_effect(history: History) -> None:
    step = next(step for step in history.steps if step.settlements)
    settlement, verdict = step.settlements[0]
    step.settlements[0] = (msgspec.structs.replace(settlement, fence=settlement.fence - 1), verdict)


@breaks("which nobody gave")
def a_handler_runs_under_a_fence_of_its_own(history: History) -> None:
    history.calls[0].fence += 1_000


@breaks("µs early")
def a_run_is_staged_early(history: History) -> None:
    step, _ = moves(history, lambda step, _: step.operation == "stage")[-1]
    step.at -= 3 * SECOND


@breaks("its handler started")
def a_handler_starts_early(history: History) -> None:
    history.calls[-1].started -= HOUR


@breaks("was to be due at")
def a_delay_is_cut_short(history: History) -> None:
    submitted = next(run for run in history.truth.submitted.values() if run.delay)
    history.truth.submitted[submitted.id] = msgspec.structs.replace(submitted, delay=5 * SECOND)


@breaks("are to be charged")
def an_attempt_is_not_counted(history: History) -> None:
    ends(history, RunState.SUCCEEDED)[0][1].after.attempt -= 1


@breaks("was lost 0 times, not 1")
def a_loss_is_counted_that_was_none(history: History) -> None:
    ends(history, RunState.SUCCEEDED)[0][1].after.lost += 1


@breaks("times and may 1 times")
def a_run_is_tried_too_often(history: History) -> None:
    for _, change in moves(history, lambda _, change: change.after.attempt > 1):
        change.after.policy = RunPolicy(retry=RetryPolicy(max_retries=0))
        history.steps[0].settlements += [
            (msgspec.structs.replace(settlement, outcome=Outcome.ERROR), verdict)
            for step in history.steps
            for settlement, verdict in step.settlements
            if settlement.run == change.after.id
        ]


@breaks("and is innocent")
def an_innocent_is_parked(history: History) -> None:
    ends(history, RunState.CANCELLED)[0][1].after.reason = "poison"


@breaks("is at most once, and was started 2 times")
def an_at_most_once_run_runs_again(history: History) -> None:
    run = next(run.id for run in history.truth.runs.values() if run.policy.guarantee == "at-most-once")
    history.calls.append(deepcopy(next(call for call in history.calls if call.run == run)))


@breaks("after it was cancelled")
def a_cancelled_run_is_claimed_again(history: History) -> None:
    step, change = ends(history, RunState.CANCELLED)[0]
    again = deepcopy(change)
    again.after.state = RunState.QUEUED
    step.runs.insert(0, again)


@breaks("still ran it")
def a_cancel_is_told_before_the_work_has_stopped(history: History) -> None:
    run = ends(history, RunState.CANCELLED)[0][1].after.id
    next(call for call in history.calls if call.run == run).ended_order = 1 << 40


@breaks("nobody asked for it")
def a_run_is_cancelled_unasked(history: History) -> None:
    run = ends(history, RunState.CANCELLED)[0][1].after.id
    for _, change in moves(history, lambda _, change: change.after.id == run):
        change.after.cancel_at = None


@breaks("while")
def a_key_is_held_by_two(history: History) -> None:
    [first, *_], [_, second, *_] = keyed(history, RunState.SUCCEEDED), keyed(history, RunState.QUEUED)
    first[0].runs.remove(first[1])
    history.steps[-1].runs.append(first[1])
    assert second[1].before is not None


@breaks("went ahead of")
def a_key_is_given_out_of_order(history: History) -> None:
    waiting = [change for _, change in keyed(history, RunState.BLOCKED)]
    waiting[-1].after.due -= SECOND


@breaks("which nobody holds")
def a_key_is_forgotten(history: History) -> None:
    step, change = next((step, change) for step, change in keyed(history, RunState.QUEUED) if change.before is not None)
    step.runs.remove(change)


@breaks("a sweep found 1")
def somebody_was_forgotten(history: History) -> None:
    history.steps[-1].found = 1


@breaks("ms late in a calm stretch")
def a_calm_stretch_is_not_punctual(history: History) -> None:
    step, _ = moves(history, lambda step, _: step.operation == "stage")[-1]
    step.at += 101 * MILLISECOND


@breaks("a tick was")
def a_tick_is_late(history: History) -> None:
    fires(history, "cron")[2].at += 101 * MILLISECOND


@breaks("is the limit")
def a_worker_runs_more_than_its_slots(history: History) -> None:
    history.truth.slots["worker-1 default"] = 1


@breaks("began while")
def a_run_runs_twice_at_once(history: History) -> None:
    retried = next(call.run for call in history.calls if call.attempt == 2)
    next(call for call in history.calls if call.run == retried).ended_order = 1 << 40


@breaks("was told 0 times")
def an_event_is_missing(history: History) -> None:
    history.truth.events.remove(next(batch for batch in history.truth.events if batch.kind == "run.retried"))


@breaks("step failed")
def a_service_logs_an_exception(history: History) -> None:
    history.errors.append("step failed: KeyError()")


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
    history.truth.ledgers[a_job(history, "cron")].pop()  # type: ignore[index]


@breaks("but decided")
def a_paused_job_runs(history: History) -> None:
    step = fires(history, "cron")[1]
    before = step.jobs[0].before
    assert before is not None
    before.state = JobState.PAUSED


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
    history.truth.jobs[a_job(history, "cron")].state = JobState.SCHEDULED  # type: ignore[index]


@pytest.mark.parametrize("name", BREAKS)
def test_the_checker_complains_when(name: str) -> None:
    complaint, change = BREAKS[name]
    history = deepcopy(a_good_history())
    change(history)
    found = violations(history)
    assert any(complaint in sentence for sentence in found), found


def test_the_good_history_has_what_the_breaks_need() -> None:
    history = a_good_history()
    assert {tick.reason for step in fires(history, "cron") for tick in step.ticks} == {"", "overlap"}
    assert all(first.at <= second.at for first, second in pairwise(history.steps))
