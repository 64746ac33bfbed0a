"""The checker finds every violation: correct histories in which one thing was changed."""

from copy import deepcopy

import msgspec
import pytest

from mainspring.core.model.base.instant import HOUR, MILLISECOND, SECOND
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.retry import RetryPolicy
from mainspring.core.model.runs.run import Outcome, RunState
from tests.support.simulation.examples import Breaks, a_good_history, ends, fires, keyed, moves, starts
from tests.support.simulation.history import History
from tests.support.simulation.invariants import violations

pytestmark = pytest.mark.simulation

breaks = Breaks()


def test_a_correct_history_violates_nothing() -> None:
    assert violations(a_good_history()) == []


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
def a_row_changes_without_a_recorded_move(history: History) -> None:
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
    step = next(step for step in history.steps if step.completions)
    completion, answer = step.completions[0]
    step.completions[0] = (msgspec.structs.replace(completion, fence=completion.fence - 1), answer)


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


@breaks("was started after its limit")
def a_run_starts_too_late(history: History) -> None:
    step, change = starts(history)[0]
    change.after.start_by = step.at - 1


@breaks("may start by")
def a_run_expires_too_soon(history: History) -> None:
    ends(history, RunState.CANCELLED)[0][1].after.reason = "expired"


@breaks("failed for its deadline")
def a_deadline_comes_too_soon(history: History) -> None:
    ends(history, RunState.CANCELLED)[0][1].after.reason = "deadline"


@breaks("too soon")
def an_attempt_times_out_too_soon(history: History) -> None:
    step = next(step for step in history.steps if step.completions)
    completion, answer = step.completions[0]
    step.completions[0] = (msgspec.structs.replace(completion, outcome=Outcome.TIMEOUT), answer)


@breaks("has rank")
def a_run_jumps_the_queue(history: History) -> None:
    ends(history, RunState.QUEUED)[0][1].after.rank -= HOUR


@breaks("was passed over")
def a_worse_run_is_started_first(history: History) -> None:
    (_, first), (_, second) = starts(history)[0], starts(history)[-1]
    for _, change in moves(history, lambda _, change: change.after.id == second.after.id):
        change.after.rank = first.after.rank - 1
    begun = history.steps[0].runs
    begun.insert(
        0, next(change for step in history.steps for change in step.runs if change.after.id == second.after.id)
    )


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
        history.steps[0].completions += [
            (msgspec.structs.replace(completion, outcome=Outcome.ERROR), answer)
            for step in history.steps
            for completion, answer in step.completions
            if completion.run == change.after.id
        ]


@breaks("and is innocent")
def an_innocent_run_fails_as_poison(history: History) -> None:
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
def a_run_is_cancelled_before_its_handler_has_stopped(history: History) -> None:
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
def the_sweeper_finds_a_forgotten_run(history: History) -> None:
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


@breaks("was published 0 times")
def an_event_is_missing(history: History) -> None:
    history.truth.events.remove(next(batch for batch in history.truth.events if batch.kind == "run.retried"))


@breaks("step failed")
def a_service_logs_an_exception(history: History) -> None:
    history.errors.append("step failed: KeyError()")


@pytest.mark.parametrize("name", breaks.ways)
def test_the_checker_reports(name: str) -> None:
    breaks.check(name)
