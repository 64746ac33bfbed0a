"""Fences, epochs, revisions and claim numbers: the right one counts; the one before and the one after do not."""

from collections.abc import Awaitable, Callable
from random import Random

import msgspec
import pytest

from mainspring.core.model.base.instant import HOUR, MINUTE
from mainspring.core.model.runs.completion import (
    Completion,
    CompletionAnswer,
    complete_cancel,
    complete_failure,
    complete_loss,
    complete_release,
    complete_success,
)
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.ports.storage.answers import PutOutcome
from mainspring.core.ports.storage.catalog import Checkpoint, LogReport, ProgressReport
from tests.support.boundaries import on_every_claim_path, prepare_claim_path
from tests.support.builders import a_fire, a_job, a_limit, a_policy, a_run, a_spec, a_tick, every
from tests.support.store_harness import Harness

#: The distance of a number from the right one.
next_to_the_right_one = pytest.mark.parametrize("distance", [-1, 0, 1], ids=["one less", "equal", "one more"])

ENDS: dict[str, Callable[[HeldRun], Completion]] = {
    "success": lambda held: complete_success(held, b"1"),
    "failure": lambda held: complete_failure(held, "boom", Random(0), now=held.started_at),
    "release": complete_release,
    "loss": lambda held: complete_loss(held, blamed=False),
    "cancel": complete_cancel,
}
KINDS = {"plain": a_run(), "ordering key": a_run(key="key"), "limit": a_run(limits=(a_limit(),))}
every_kind_of_run = pytest.mark.parametrize("run", KINDS.values(), ids=KINDS.keys())


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
@next_to_the_right_one
async def test_a_completion_counts_under_the_very_fence_of_the_attempt(
    harness: Harness, end: Callable[[HeldRun], Completion], distance: int
) -> None:
    [held] = await harness.start(a_run())
    completion = end(held)
    given = msgspec.structs.replace(completion, fence=held.fence + distance)
    assert await harness.complete(given) == [CompletionAnswer.ACCEPTED if distance == 0 else CompletionAnswer.STALE]
    if distance:
        assert await harness.state(held.id) is RunState.RUNNING
        assert await harness.complete(completion) == [CompletionAnswer.ACCEPTED]


@pytest.mark.parametrize("end", ["success", "failure", "loss"])
@next_to_the_right_one
async def test_a_repeated_completion_is_known_by_its_very_fence(harness: Harness, end: str, distance: int) -> None:
    [held] = await harness.start(a_run())
    completion = ENDS[end](held)
    await harness.complete(completion)
    again = msgspec.structs.replace(completion, fence=held.fence + distance)
    assert await harness.complete(again) == [CompletionAnswer.DUPLICATE if distance == 0 else CompletionAnswer.STALE]


@next_to_the_right_one
async def test_reports_count_under_the_very_fence_of_the_attempt(harness: Harness, distance: int) -> None:
    [held] = await harness.start(a_run())
    fence, expected = held.fence + distance, [distance == 0]
    store = harness.store
    assert await store.report_progress([ProgressReport(run=held.id, fence=fence, done=1)]) == expected
    assert await store.save_checkpoints([Checkpoint(run=held.id, fence=fence, state=b"1")]) == expected
    assert await store.append_log([LogReport(run=held.id, fence=fence, text="line")]) == expected
    assert len(await store.log(held.id, 0, 10)) == int(distance == 0)
    assert ((await harness.view(held.id)).progress is not None) is (distance == 0)
    await harness.complete(complete_release(held))
    [again] = await harness.claim(await harness.worker())
    assert again.state == (b"1" if distance == 0 else None)


async def release(harness: Harness, held: HeldRun) -> None:
    await harness.complete(complete_release(held))


async def lose(harness: Harness, held: HeldRun) -> None:
    await harness.complete(complete_loss(held, blamed=False))


async def fail(harness: Harness, held: HeldRun) -> None:
    await harness.fail(held)
    await harness.move_clock(MINUTE)
    assert (await harness.stage()).runs == 1


WAYS_BACK: dict[str, Callable[[Harness, HeldRun], Awaitable[None]]] = {"release": release, "loss": lose, "retry": fail}


@on_every_claim_path
@pytest.mark.parametrize("back", WAYS_BACK.values(), ids=WAYS_BACK.keys())
async def test_a_run_claimed_again_gets_a_greater_fence_on_every_path(
    harness: Harness, path: str, back: Callable[[Harness, HeldRun], Awaitable[None]]
) -> None:
    way = await prepare_claim_path(harness, path)
    worker = await way.worker(HOUR)
    run = way.adapt(a_run(policy=a_policy(pause=MINUTE)))
    await harness.submit(run)
    [first] = await way.claim(worker, [run])
    await back(harness, first)
    [second] = await way.claim(worker, [run])
    assert second.fence > first.fence
    assert await harness.complete(complete_success(first, None)) == [CompletionAnswer.STALE]
    assert await harness.complete(complete_success(second, None)) == [CompletionAnswer.ACCEPTED]


async def test_one_claim_over_several_paths_gives_every_run_a_greater_fence(harness: Harness) -> None:
    worker = await harness.worker()
    old, new = a_run(), a_run(queue="other")
    await harness.submit(old)
    [first] = await harness.claim(worker)
    await harness.complete(complete_release(first))
    await harness.submit(new)
    [again] = await harness.claim(worker)
    [other] = await harness.claim(worker, queue="other")
    assert first.fence < again.fence < other.fence


@every_kind_of_run
@pytest.mark.parametrize("asked_to_stop", [False, True], ids=["running", "cancelling"])
@next_to_the_right_one
async def test_a_heartbeat_returns_claims_up_to_the_last_one(
    harness: Harness, run: NewRun, asked_to_stop: bool, distance: int
) -> None:
    worker = await harness.worker()
    await harness.claim(worker)
    await harness.submit(run)
    await harness.claim(worker)
    if asked_to_stop:
        await harness.store.cancel([run.id])
    last_claim = harness.last_claim(worker) + distance
    heartbeat = await harness.store.heartbeat(worker, HOUR, (), (), last_claim)
    returned = distance >= 0
    assert heartbeat.returned == int(returned)
    after = RunState.CANCELLED if asked_to_stop else RunState.QUEUED
    before = RunState.CANCELLING if asked_to_stop else RunState.RUNNING
    assert await harness.state(run.id) is (after if returned else before)


@next_to_the_right_one
async def test_a_heartbeat_leaves_the_runs_of_the_very_pending_claim(harness: Harness, distance: int) -> None:
    worker, run = await harness.worker(), a_run()
    await harness.claim(worker)
    await harness.submit(run)
    await harness.claim(worker)
    number = harness.last_claim(worker)
    heartbeat = await harness.store.heartbeat(worker, HOUR, (), (number + distance,), number + 1)
    assert heartbeat.returned == (0 if distance == 0 else 1)
    assert await harness.state(run.id) is (RunState.RUNNING if distance == 0 else RunState.QUEUED)


async def test_a_run_returned_by_a_heartbeat_gets_a_greater_fence(harness: Harness) -> None:
    worker = await harness.worker()
    await harness.submit(a_run())
    [first] = await harness.claim(worker)
    await harness.store.heartbeat(worker, HOUR, (), (), harness.last_claim(worker))
    assert await harness.complete(complete_success(first, None)) == [CompletionAnswer.STALE]
    [second] = await harness.claim(worker)
    assert second.fence > first.fence
    assert await harness.complete(complete_success(first, None)) == [CompletionAnswer.STALE]


@next_to_the_right_one
async def test_an_epoch_is_raised_from_the_very_one_that_was_read(harness: Harness, distance: int) -> None:
    old, new = await harness.store.join("old", HOUR), await harness.store.join("new", HOUR)
    epoch = (await harness.store.take(old, [1]))[1]
    sealed = await harness.store.seal(new, {1: epoch + distance})
    assert sealed == ({1: epoch + 1} if distance == 0 else {})
    assert await harness.store.epochs([1]) == {1: epoch + (1 if distance == 0 else 0)}


async def test_an_owner_keeps_its_epoch_and_the_next_owner_gets_the_next_one(harness: Harness) -> None:
    old, new = await harness.store.join("old", HOUR), await harness.store.join("new", 10 * HOUR)
    [epoch] = (await harness.store.take(old, [1])).values()
    assert await harness.store.take(old, [1]) == {}
    assert (await harness.store.renew(old, HOUR)).owned == {1: epoch}
    await harness.move_clock(HOUR)
    assert await harness.store.take(new, [1]) == {1: epoch + 1}


@pytest.mark.parametrize("key", ["", "key"], ids=["plain", "ordering key"])
@next_to_the_right_one
async def test_a_fire_is_applied_at_the_very_revision_it_was_planned_with(
    harness: Harness, key: str, distance: int
) -> None:
    spec = a_spec(schedule=every(HOUR, start=await harness.now() + HOUR), policy=a_policy(key=key))
    job = await harness.put(a_job(spec))
    assert job.next_fire is not None
    await harness.move_clock(HOUR)
    planned = msgspec.structs.replace(job, rev=job.rev + distance)
    fire = a_fire(planned, a_tick(job, job.next_fire), next_fire=job.next_fire + HOUR)
    [fired] = await harness.store.fire(await harness.owner(), [fire])
    assert fired.applied is (distance == 0)
    assert len(await harness.ticks(job.id)) == int(distance == 0)


@next_to_the_right_one
async def test_a_job_is_changed_at_the_very_version_that_was_expected(harness: Harness, distance: int) -> None:
    new = a_job()
    for interval in (MINUTE, 2 * MINUTE):
        new = msgspec.structs.replace(new, spec=msgspec.structs.replace(new.spec, schedule=every(interval)))
        job = await harness.put(new)
    assert job.version == 2
    changed = msgspec.structs.replace(new.spec, schedule=every(HOUR))
    [put] = await harness.store.put_jobs(
        [msgspec.structs.replace(new, spec=changed, expected_version=job.version + distance)]
    )
    assert put.outcome is (PutOutcome.CHANGED if distance == 0 else PutOutcome.STALE)
