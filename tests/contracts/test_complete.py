"""Completion: an attempt completes once, under its own fence."""

from collections.abc import Callable

import msgspec
import pytest

from mainspring.core.model.base.instant import MINUTE, SECOND
from mainspring.core.model.runs.completion import (
    Completion,
    CompletionAnswer,
    complete_cancel,
    complete_loss,
    complete_release,
    complete_success,
)
from mainspring.core.model.runs.run import HeldRun, Outcome, RunState
from tests.support.builders import a_run, an_id, some_runs
from tests.support.store_harness import Harness, ids


def succeeded(held: HeldRun) -> Completion:
    return complete_success(held, b"1")


def failed(held: HeldRun) -> Completion:
    return Completion(
        run=held.id, fence=held.fence, outcome=Outcome.ERROR, state=RunState.FAILED, reason="error", error="boom"
    )


def retried(held: HeldRun, outcome: Outcome = Outcome.ERROR) -> Completion:
    return Completion(
        run=held.id,
        fence=held.fence,
        outcome=outcome,
        state=RunState.SCHEDULED,
        reason=outcome.value,
        delay=5 * MINUTE,
        error="boom",
    )


def released(held: HeldRun) -> Completion:
    return complete_release(held)


def released_for_a_while(held: HeldRun) -> Completion:
    return complete_release(held, "unknown task", 5 * MINUTE)


def lost(held: HeldRun) -> Completion:
    return complete_loss(held, blamed=False)


EVERY_END: list[Callable[[HeldRun], Completion]] = [
    succeeded,
    failed,
    retried,
    released,
    released_for_a_while,
    lost,
    complete_cancel,
]


async def test_a_success_ends_the_run(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    before = await harness.now()
    assert await harness.complete(complete_success(held, b'{"size":3}')) == [CompletionAnswer.ACCEPTED]
    view = await harness.view(held.id)
    assert view.state is RunState.SUCCEEDED
    assert view.result == b'{"size":3}'
    assert view.error is None
    assert view.attempt == 1
    assert view.finished_at is not None
    assert before <= view.finished_at <= await harness.now()
    assert await harness.claim(await harness.worker()) == []


@pytest.mark.parametrize(
    "result", [b'{"a":"\\u0000\xc3\xa9\xf0\x9f\x98\x80"}', b"", None, bytes(range(256)), b'"' + b"x" * 60_000 + b'"']
)
async def test_a_result_is_stored_byte_for_byte(harness: Harness, result: bytes | None) -> None:
    [held] = await harness.start(a_run())
    await harness.complete(complete_success(held, result))
    assert (await harness.view(held.id)).result == result


async def test_a_failure_keeps_its_reason_and_error(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    error = "ValueError: größer als 1 🕰\n  at 'line' 3;"
    completion = msgspec.structs.replace(failed(held), reason="timeout", outcome=Outcome.TIMEOUT, error=error)
    assert await harness.complete(completion) == [CompletionAnswer.ACCEPTED]
    view = await harness.view(held.id)
    assert (view.state, view.reason, view.error) == (RunState.FAILED, "timeout", error)


async def test_a_retry_waits_its_delay_from_now(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    await harness.advance(MINUTE)
    before = await harness.now()
    assert await harness.complete(retried(held)) == [CompletionAnswer.ACCEPTED]
    view = await harness.view(held.id)
    assert view.state is RunState.SCHEDULED
    assert before + 5 * MINUTE <= view.due <= await harness.now() + 5 * MINUTE
    await harness.advance(4 * MINUTE)
    assert (await harness.stage()).runs == 0
    await harness.advance(2 * MINUTE)
    assert (await harness.stage()).runs == 1
    [again] = await harness.claim(await harness.worker())
    assert (again.id, again.attempt, again.lost) == (held.id, 2, 0)


async def test_a_release_is_not_charged(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    assert await harness.complete(released(held)) == [CompletionAnswer.ACCEPTED]
    assert (await harness.view(held.id)).state is RunState.QUEUED
    assert (await harness.view(held.id)).attempt == 0
    [again] = await harness.claim(await harness.worker())
    assert (again.attempt, again.lost) == (1, 0)
    assert again.fence > held.fence


async def test_a_release_keeps_its_place_in_the_queue(harness: Harness) -> None:
    first, second = await harness.start(*some_runs(2))
    await harness.advance(MINUTE)
    later = a_run()
    await harness.submit(later)
    await harness.complete(released(second))
    await harness.complete(released(first))
    assert ids(await harness.claim(await harness.worker())) == [first.id, second.id, later.id]


async def test_a_release_with_a_delay_is_not_claimed_before_its_end(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    await harness.complete(released_for_a_while(held))
    assert await harness.state(held.id) is RunState.SCHEDULED
    await harness.advance(4 * MINUTE)
    assert (await harness.stage()).runs == 0
    await harness.advance(2 * MINUTE)
    await harness.stage()
    [again] = await harness.claim(await harness.worker())
    assert again.attempt == 1


async def test_a_loss_counts_as_lost_and_is_charged(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    for losses in (1, 2, 3):
        assert await harness.complete(lost(held)) == [CompletionAnswer.ACCEPTED]
        assert await harness.state(held.id) is RunState.QUEUED
        [held] = await harness.claim(await harness.worker())
        assert (held.attempt, held.lost) == (losses + 1, losses)


async def test_a_lost_run_queues_behind_eligible_runs(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    others = some_runs(2)
    await harness.submit(*others)
    await harness.complete(lost(held))
    assert ids(await harness.claim(await harness.worker())) == [*ids(others), held.id]


async def test_a_lost_run_is_ranked_a_minute_behind_live_work(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    await harness.complete(lost(held))
    await harness.advance(MINUTE // 2)
    sooner = a_run()
    await harness.submit(sooner)
    await harness.advance(MINUTE)
    later = a_run()
    await harness.submit(later)
    assert ids(await harness.claim(await harness.worker())) == [sooner.id, held.id, later.id]


async def test_a_delayed_release_of_a_first_attempt_is_ranked_as_live_work(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    await harness.complete(released_for_a_while(held))
    await harness.advance(6 * MINUTE)
    await harness.stage()
    await harness.advance(MINUTE // 2)
    later = a_run()
    await harness.submit(later)
    assert ids(await harness.claim(await harness.worker())) == [held.id, later.id]


async def test_a_cancelled_attempt_ends_the_run(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    assert await harness.complete(complete_cancel(held)) == [CompletionAnswer.ACCEPTED]
    view = await harness.view(held.id)
    assert (view.state, view.reason) == (RunState.CANCELLED, "cancelled")


@pytest.mark.parametrize("end", EVERY_END)
async def test_a_repeated_completion_is_a_duplicate(harness: Harness, end: Callable[[HeldRun], Completion]) -> None:
    [held] = await harness.start(a_run())
    assert await harness.complete(end(held)) == [CompletionAnswer.ACCEPTED]
    after = await harness.view(held.id)
    attempts = await harness.store.attempts(held.id)
    assert await harness.complete(end(held)) == [CompletionAnswer.DUPLICATE]
    assert await harness.view(held.id) == after
    assert await harness.store.attempts(held.id) == attempts


@pytest.mark.parametrize("end", [retried, released, released_for_a_while, lost])
async def test_a_repeated_completion_does_not_affect_the_next_attempt(
    harness: Harness, end: Callable[[HeldRun], Completion]
) -> None:
    [held] = await harness.start(a_run())
    await harness.complete(end(held))
    await harness.advance(6 * MINUTE)
    await harness.stage()
    [again] = await harness.claim(await harness.worker())
    assert await harness.complete(end(held)) == [CompletionAnswer.DUPLICATE]
    assert await harness.state(held.id) is RunState.RUNNING
    assert await harness.complete(succeeded(again)) == [CompletionAnswer.ACCEPTED]


@pytest.mark.parametrize("first", EVERY_END)
async def test_another_outcome_under_a_completed_fence_is_stale(
    harness: Harness, first: Callable[[HeldRun], Completion]
) -> None:
    """The outcome of a worker that was considered lost, or that released the run, must not count."""
    [held] = await harness.start(a_run())
    completed = first(held)
    await harness.complete(completed)
    after = await harness.view(held.id)
    for end in EVERY_END:
        same = end(held).outcome is completed.outcome
        assert await harness.complete(end(held)) == [CompletionAnswer.DUPLICATE if same else CompletionAnswer.STALE]
    assert await harness.view(held.id) == after


async def test_another_outcome_of_an_ended_attempt_is_stale_during_the_next_attempt(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    await harness.complete(lost(held))
    [again] = await harness.claim(await harness.worker())
    assert await harness.complete(succeeded(held), released(held)) == [CompletionAnswer.STALE, CompletionAnswer.STALE]
    assert await harness.complete(succeeded(again)) == [CompletionAnswer.ACCEPTED]
    # The run has succeeded under another fence.
    assert await harness.complete(succeeded(held)) == [CompletionAnswer.STALE]


async def test_of_two_outcomes_of_one_attempt_in_a_batch_the_first_counts(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    answers = await harness.complete(succeeded(held), succeeded(held), lost(held))
    assert answers == [CompletionAnswer.ACCEPTED, CompletionAnswer.DUPLICATE, CompletionAnswer.STALE]


@pytest.mark.parametrize("end", EVERY_END)
async def test_an_old_fence_is_stale(harness: Harness, end: Callable[[HeldRun], Completion]) -> None:
    """The lease of the first worker expired, and the run has started elsewhere."""
    session = await harness.worker()
    await harness.submit(a_run())
    [old] = await harness.claim(session)
    # A heartbeat returned the run because the answer to the claim came too late.
    await harness.store.heartbeat(session, MINUTE, [], [], harness.last_claim(session))
    [new] = await harness.claim(await harness.worker())
    assert await harness.complete(end(old)) == [CompletionAnswer.STALE]
    assert (await harness.view(new.id)).fence == new.fence
    assert await harness.state(new.id) is RunState.RUNNING
    assert await harness.complete(succeeded(new)) == [CompletionAnswer.ACCEPTED]
    assert await harness.complete(end(old)) == [CompletionAnswer.STALE]


async def test_a_fence_that_was_never_assigned_is_stale(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    assert await harness.complete(msgspec.structs.replace(succeeded(held), fence=held.fence + 1)) == [
        CompletionAnswer.STALE
    ]
    assert await harness.state(held.id) is RunState.RUNNING


async def test_a_completion_of_an_unknown_run_is_stale(harness: Harness) -> None:
    ghost = Completion(run=an_id(), fence=1, outcome=Outcome.SUCCESS, state=RunState.SUCCEEDED)
    assert await harness.complete(ghost) == [CompletionAnswer.STALE]


async def test_a_completion_of_a_run_that_never_started_is_stale(harness: Harness) -> None:
    queued, waiting = a_run(), a_run(delay=MINUTE)
    await harness.submit(queued, waiting)
    completions = [
        Completion(run=run.id, fence=1, outcome=Outcome.SUCCESS, state=RunState.SUCCEEDED) for run in (queued, waiting)
    ]
    assert await harness.complete(*completions) == [CompletionAnswer.STALE, CompletionAnswer.STALE]
    assert await harness.states([queued, waiting]) == [RunState.QUEUED, RunState.SCHEDULED]


async def test_completions_of_a_batch_are_answered_in_order(harness: Harness) -> None:
    one, two, three, four = await harness.start(*some_runs(4))
    await harness.complete(succeeded(two))
    answers = await harness.complete(
        failed(four),
        msgspec.structs.replace(succeeded(three), fence=three.fence - 1),
        succeeded(two),
        retried(one),
    )
    assert answers == [
        CompletionAnswer.ACCEPTED,
        CompletionAnswer.STALE,
        CompletionAnswer.DUPLICATE,
        CompletionAnswer.ACCEPTED,
    ]
    assert await harness.states([one, two, three, four]) == [
        RunState.SCHEDULED,
        RunState.SUCCEEDED,
        RunState.RUNNING,
        RunState.FAILED,
    ]


async def test_a_batch_may_have_every_outcome(harness: Harness) -> None:
    held = await harness.start(*some_runs(len(EVERY_END)))
    completions = [end(run) for end, run in zip(EVERY_END, held, strict=True)]
    assert await harness.complete(*completions) == [CompletionAnswer.ACCEPTED] * len(held)
    assert await harness.states(held) == [completion.state for completion in completions]


async def test_an_empty_batch_completes_nothing(harness: Harness) -> None:
    assert await harness.complete() == []


async def test_a_large_batch_completes_in_one_call(harness: Harness) -> None:
    held = await harness.start(*some_runs(500))
    assert set(await harness.complete(*map(succeeded, held))) == {CompletionAnswer.ACCEPTED}
    assert set(await harness.states(held)) == {RunState.SUCCEEDED}


@pytest.mark.parametrize("end", [retried, released, released_for_a_while, lost])
async def test_a_cancelling_run_is_not_retried(harness: Harness, end: Callable[[HeldRun], Completion]) -> None:
    [held] = await harness.start(a_run())
    await harness.store.cancel([held.id])
    assert await harness.complete(end(held)) == [CompletionAnswer.ACCEPTED]
    view = await harness.view(held.id)
    assert (view.state, view.reason) == (RunState.CANCELLED, "cancelled")
    assert view.finished_at is not None
    assert await harness.complete(end(held)) == [CompletionAnswer.DUPLICATE]
    await harness.advance(10 * MINUTE)
    assert (await harness.stage()).runs == 0
    assert await harness.claim(await harness.worker()) == []


@pytest.mark.parametrize("end", [succeeded, failed])
async def test_a_cancelling_run_that_succeeds_or_fails_keeps_that_outcome(
    harness: Harness, end: Callable[[HeldRun], Completion]
) -> None:
    [held] = await harness.start(a_run())
    await harness.store.cancel([held.id])
    assert await harness.complete(end(held)) == [CompletionAnswer.ACCEPTED]
    assert await harness.state(held.id) is end(held).state


async def test_unsuccessful_attempts_are_listed_in_order(harness: Harness) -> None:
    [first] = await harness.start(a_run())
    await harness.complete(retried(first))
    await harness.advance(6 * MINUTE)
    await harness.stage()
    [second] = await harness.claim(await harness.worker())
    await harness.complete(released(second))
    [third] = await harness.claim(await harness.worker())
    await harness.complete(lost(third))
    [fourth] = await harness.claim(await harness.worker())
    await harness.complete(retried(fourth, Outcome.TIMEOUT))
    await harness.advance(6 * MINUTE)
    await harness.stage()
    [fifth] = await harness.claim(await harness.worker())
    await harness.complete(succeeded(fifth))

    attempts = await harness.store.attempts(first.id)
    assert [attempt.outcome for attempt in attempts] == [
        Outcome.ERROR,
        Outcome.RELEASED,
        Outcome.LOST,
        Outcome.TIMEOUT,
    ]
    assert [attempt.number for attempt in attempts] == [1, 2, 2, 3]
    assert [attempt.fence for attempt in attempts] == [first.fence, second.fence, third.fence, fourth.fence]
    assert [attempt.reason for attempt in attempts] == ["error", "released", "lost", "timeout"]
    assert [attempt.error for attempt in attempts] == ["boom", None, "its worker died", "boom"]
    assert [attempt.started_at for attempt in attempts] == [held.started_at for held in (first, second, third, fourth)]
    assert all(attempt.run_id == first.id for attempt in attempts)
    assert all(attempt.ended_at >= attempt.started_at for attempt in attempts)


async def test_a_success_is_not_in_the_list_of_attempts(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    await harness.succeed(held)
    assert await harness.store.attempts(held.id) == []
    assert await harness.store.attempts(an_id()) == []


@pytest.mark.parametrize(("end", "outcome"), [(failed, Outcome.ERROR), (complete_cancel, Outcome.CANCELLED)])
async def test_the_last_failed_attempt_is_listed(
    harness: Harness, end: Callable[[HeldRun], Completion], outcome: Outcome
) -> None:
    [held] = await harness.start(a_run())
    await harness.complete(end(held))
    [attempt] = await harness.store.attempts(held.id)
    assert (attempt.outcome, attempt.number, attempt.fence) == (outcome, 1, held.fence)


async def test_a_completion_does_not_depend_on_the_session(harness: Harness) -> None:
    """The reaper reports the loss of runs of other sessions: only the fence counts."""
    session = await harness.worker(SECOND)
    await harness.submit(a_run())
    [held] = await harness.claim(session)
    await harness.advance(MINUTE)
    [found] = await harness.store.lost_runs(10)
    assert await harness.complete(lost(found)) == [CompletionAnswer.ACCEPTED]
    assert await harness.complete(succeeded(held)) == [CompletionAnswer.STALE]
    assert await harness.state(held.id) is RunState.QUEUED


async def test_a_run_twice_in_a_batch_completes_once_by_its_current_fence(harness: Harness) -> None:
    """The result under the current fence counts, in any order of the batch."""
    old, other_old = await harness.start(a_run(), a_run())
    await harness.complete(complete_release(old), complete_release(other_old))
    again = {held.id: held for held in await harness.claim(await harness.worker())}
    new, other_new = again[old.id], again[other_old.id]
    answers = await harness.complete(
        complete_success(old, b'"old"'),
        complete_success(new, b'"new"'),
        complete_success(other_new, b'"new"'),
        complete_success(other_old, b'"old"'),
        failed(other_new),
    )
    assert answers[1:3] == [CompletionAnswer.ACCEPTED, CompletionAnswer.ACCEPTED]
    assert {answers[0], *answers[3:]} == {CompletionAnswer.STALE}
    for held in (new, other_new):
        view = await harness.view(held.id)
        assert (view.state, view.result) == (RunState.SUCCEEDED, b'"new"')
