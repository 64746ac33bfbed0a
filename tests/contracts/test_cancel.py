"""Cancel: durable, and not lost in a race with any other operation."""

import asyncio
from collections.abc import Callable

import pytest

from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND
from mainspring.core.model.runs.completion import (
    Completion,
    CompletionAnswer,
    complete_cancel,
    complete_loss,
    complete_release,
    complete_success,
)
from mainspring.core.model.runs.run import HeldRun, RunState
from tests.support.builders import a_run, an_id, some_runs
from tests.support.store_harness import SHORT_LEASE, Harness, ids


async def test_cancel_of_a_run_that_has_not_started_takes_effect_at_once(harness: Harness) -> None:
    queued, waiting, holder, blocked = a_run(), a_run(delay=HOUR), a_run(key="a"), a_run(key="a")
    await harness.submit(queued, waiting, holder)
    await harness.submit(blocked)
    answer = await harness.store.cancel([queued.id, waiting.id, blocked.id])
    assert answer == dict.fromkeys([queued.id, waiting.id, blocked.id], RunState.CANCELLED)
    for run in (queued, waiting, blocked):
        view = await harness.view(run.id)
        assert (view.state, view.reason, view.attempt) == (RunState.CANCELLED, "cancelled", 0)
        assert view.finished_at is not None
    assert ids(await harness.claim(await harness.worker())) == [holder.id]
    await harness.advance(2 * HOUR)
    assert (await harness.stage()).runs == 0


async def test_cancel_of_a_run_between_two_attempts_takes_effect_at_once(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    await harness.fail(held)
    assert await harness.store.cancel([held.id]) == {held.id: RunState.CANCELLED}
    assert (await harness.view(held.id)).attempt == 1


async def test_a_running_run_is_cancelling_until_its_attempt_completes(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    assert await harness.store.cancel([held.id]) == {held.id: RunState.CANCELLING}
    view = await harness.view(held.id)
    assert (view.state, view.cancel_requested, view.finished_at) == (RunState.CANCELLING, True, None)
    assert await harness.complete(complete_cancel(held)) == [CompletionAnswer.ACCEPTED]
    assert await harness.state(held.id) is RunState.CANCELLED


async def test_a_run_without_a_cancel_request_is_not_marked(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    assert not (await harness.view(held.id)).cancel_requested


async def test_cancel_does_not_change_an_ended_run(harness: Harness) -> None:
    succeeded, cancelled = await harness.start(*some_runs(2))
    await harness.succeed(succeeded)
    await harness.complete(complete_cancel(cancelled))
    before = await harness.store.runs(ids([succeeded, cancelled]))
    assert await harness.store.cancel(ids([succeeded, cancelled])) == {
        succeeded.id: RunState.SUCCEEDED,
        cancelled.id: RunState.CANCELLED,
    }
    assert await harness.store.runs(ids([succeeded, cancelled])) == before


async def test_unknown_runs_are_missing_in_the_answer_of_cancel(harness: Harness) -> None:
    run = a_run()
    await harness.submit(run)
    assert await harness.store.cancel([an_id(), run.id]) == {run.id: RunState.CANCELLED}
    assert await harness.store.cancel([]) == {}


async def test_a_second_cancel_changes_nothing(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    waiting = a_run(delay=HOUR)
    await harness.submit(waiting)
    for _ in range(2):
        assert await harness.store.cancel([held.id, waiting.id]) == {
            held.id: RunState.CANCELLING,
            waiting.id: RunState.CANCELLED,
        }


async def test_a_cancel_survives_the_loss_of_the_worker(harness: Harness) -> None:
    dying = await harness.worker(SHORT_LEASE)
    await harness.submit(a_run())
    [held] = await harness.claim(dying)
    await harness.store.cancel([held.id])
    await harness.advance(SHORT_LEASE + SECOND)
    [lost] = await harness.store.lost_runs(10)
    assert lost.cancel_requested
    await harness.complete(complete_loss(lost, blamed=False))
    assert await harness.state(held.id) is RunState.CANCELLED


@pytest.mark.parametrize(
    ("end", "counts"), [(complete_release, (0, 0)), (complete_loss, (1, 1)), (complete_cancel, (1, 0))]
)
async def test_a_cancelled_run_has_the_attempts_and_losses_that_count(
    harness: Harness, end: Callable[..., Completion], counts: tuple[int, int]
) -> None:
    [held] = await harness.start(a_run())
    await harness.store.cancel([held.id])
    await harness.complete(end(held, blamed=False) if end is complete_loss else end(held))
    view = await harness.view(held.id)
    assert (view.state, (view.attempt, view.lost)) == (RunState.CANCELLED, counts)


async def test_a_cancel_survives_a_reaper_that_read_the_run_before(harness: Harness) -> None:
    dying = await harness.worker(SHORT_LEASE)
    await harness.submit(a_run())
    await harness.claim(dying)
    await harness.advance(SHORT_LEASE + SECOND)
    [lost] = await harness.store.lost_runs(10)
    assert not lost.cancel_requested
    await harness.store.cancel([lost.id])
    await harness.complete(complete_loss(lost, blamed=False))
    assert await harness.state(lost.id) is RunState.CANCELLED


def _released(held: HeldRun) -> Completion:
    return complete_release(held)


def _put_off(held: HeldRun) -> Completion:
    return complete_release(held, delay=MINUTE)


def _lost(held: HeldRun) -> Completion:
    return complete_loss(held, blamed=False)


@pytest.mark.parametrize("end", [_released, _put_off, _lost])
async def test_a_cancel_concurrent_with_a_completion_is_not_lost(
    harness: Harness, end: Callable[[HeldRun], Completion]
) -> None:
    for _ in range(10):
        [held] = await harness.start(a_run())
        await asyncio.gather(harness.complete(end(held)), harness.store.cancel([held.id]))
        assert await harness.state(held.id) is RunState.CANCELLED


async def test_a_cancel_concurrent_with_a_claim_is_not_lost(harness: Harness) -> None:
    worker = await harness.worker()
    for _ in range(10):
        run = a_run()
        await harness.submit(run)
        held, _ = await asyncio.gather(harness.claim(worker), harness.store.cancel([run.id]))
        assert await harness.state(run.id) is (RunState.CANCELLING if held else RunState.CANCELLED)
        await harness.complete(*map(complete_cancel, held))


async def test_a_cancel_concurrent_with_staging_is_not_lost(harness: Harness) -> None:
    await harness.owner()
    for _ in range(10):
        run = a_run(delay=MINUTE)
        await harness.submit(run)
        await harness.advance(2 * MINUTE)
        await asyncio.gather(harness.stage(), harness.store.cancel([run.id]))
        assert await harness.state(run.id) is RunState.CANCELLED


async def test_a_cancel_concurrent_with_the_release_of_its_key_is_not_lost(harness: Harness) -> None:
    for number in range(10):
        [held] = await harness.start(a_run(key=f"video-{number}"))
        blocked = a_run(key=f"video-{number}")
        await harness.submit(blocked)
        await asyncio.gather(harness.complete(complete_success(held, None)), harness.store.cancel([blocked.id]))
        assert await harness.state(blocked.id) is RunState.CANCELLED
        assert await harness.claim(await harness.worker()) == []


async def test_a_large_batch_is_cancelled_in_one_call(harness: Harness) -> None:
    runs = some_runs(200) + some_runs(200, delay=HOUR) + some_runs(20, key="a")
    await harness.submit(*runs)
    assert await harness.store.cancel(ids(runs)) == dict.fromkeys(ids(runs), RunState.CANCELLED)
