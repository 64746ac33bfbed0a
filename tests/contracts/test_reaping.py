"""Reaping: runs of expired sessions, overdue attempts and expired runs."""

import asyncio

from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND
from mainspring.core.model.runs.completion import CompletionAnswer, complete_loss, complete_release, complete_success
from mainspring.core.model.runs.run import RunState
from tests.support.builders import a_policy, a_run, some_runs
from tests.support.store_harness import SHORT_LEASE, Harness, ids


async def test_the_runs_of_a_session_past_its_lease_are_lost(harness: Harness) -> None:
    dying, healthy = await harness.worker(SHORT_LEASE), await harness.worker()
    await harness.submit(a_run())
    [lost] = await harness.claim(dying)
    await harness.submit(a_run())
    [kept] = await harness.claim(healthy)
    assert await harness.store.lost_runs(10) == []
    await harness.advance(SHORT_LEASE + SECOND)
    assert await harness.store.lost_runs(10) == [lost]
    assert await harness.states([lost, kept]) == [RunState.RUNNING, RunState.RUNNING]


async def test_a_lost_run_is_returned_as_its_worker_held_it(harness: Harness) -> None:
    dying = await harness.worker(SHORT_LEASE)
    run = a_run(policy=a_policy(key="video-1", timeout=HOUR), payload=b'"\\u0000"', deadline=HOUR)
    await harness.submit(run)
    [held] = await harness.claim(dying)
    await harness.store.cancel([held.id])
    await harness.advance(SHORT_LEASE + SECOND)
    [lost] = await harness.store.lost_runs(10)
    assert lost.cancel_requested
    lost.cancel_requested = False
    assert lost == held


async def test_a_lost_run_is_returned_until_its_loss_is_reported(harness: Harness) -> None:
    dying = await harness.worker(SHORT_LEASE)
    await harness.submit(*some_runs(3))
    held = await harness.claim(dying)
    await harness.advance(SHORT_LEASE + SECOND)
    for _ in range(3):
        assert sorted(ids(await harness.store.lost_runs(10))) == sorted(ids(held))
    assert len(await harness.store.lost_runs(2)) == 2
    await harness.complete(complete_loss(held[0], blamed=False))
    assert sorted(ids(await harness.store.lost_runs(10))) == sorted(ids(held[1:]))


async def test_concurrent_reapers_report_a_loss_once(harness: Harness) -> None:
    dying = await harness.worker(SHORT_LEASE)
    await harness.submit(*some_runs(10))
    await harness.claim(dying)
    await harness.advance(SHORT_LEASE + SECOND)

    async def reap() -> list[CompletionAnswer]:
        lost = await harness.store.lost_runs(100)
        return await harness.complete(*(complete_loss(run, blamed=False) for run in lost))

    answers = [answer for part in await asyncio.gather(*(reap() for _ in range(4))) for answer in part]
    assert answers.count(CompletionAnswer.ACCEPTED) == 10
    assert CompletionAnswer.STALE not in answers
    again = await harness.claim(await harness.worker())
    assert [(run.attempt, run.lost) for run in again] == [(2, 1)] * 10


async def test_a_heartbeat_concurrent_with_the_reaper_is_consistent(harness: Harness) -> None:
    """Either the heartbeat wins and no run is lost, or the reaper wins and the worker must stop."""
    for _ in range(20):
        worker = await harness.worker(SHORT_LEASE)
        await harness.submit(a_run())
        [held] = await harness.claim(worker)
        await harness.advance(SHORT_LEASE + SECOND)
        number = harness.last_claim(worker)
        heartbeat, lost = await asyncio.gather(
            harness.store.heartbeat(worker, MINUTE, [held.id], [], number), harness.store.lost_runs(10)
        )
        # In a sharded store one server may have expired the session; the heartbeat then returns its lost runs.
        may_go_on = heartbeat.alive and held.id not in heartbeat.lost
        assert may_go_on == (ids(lost) == [])
        await harness.succeed(held)


async def test_the_success_of_an_expired_worker_counts_until_the_run_is_taken_from_it(harness: Harness) -> None:
    """The run has not started again, so the first completion under the fence counts."""
    dying = await harness.worker(SHORT_LEASE)
    await harness.submit(a_run())
    [held] = await harness.claim(dying)
    await harness.advance(SHORT_LEASE + SECOND)
    [lost] = await harness.store.lost_runs(10)
    assert await harness.complete(complete_success(held, b"1")) == [CompletionAnswer.ACCEPTED]
    assert await harness.complete(complete_loss(lost, blamed=False)) == [CompletionAnswer.STALE]
    assert await harness.state(held.id) is RunState.SUCCEEDED


async def test_a_success_after_the_loss_was_reported_does_not_count(harness: Harness) -> None:
    dying = await harness.worker(SHORT_LEASE)
    await harness.submit(a_run())
    [held] = await harness.claim(dying)
    await harness.advance(SHORT_LEASE + SECOND)
    [lost] = await harness.store.lost_runs(10)
    await harness.complete(complete_loss(lost, blamed=False))
    [again] = await harness.claim(await harness.worker())
    assert await harness.complete(complete_success(held, b"old")) == [CompletionAnswer.STALE]
    assert await harness.complete(complete_success(again, b"new")) == [CompletionAnswer.ACCEPTED]
    assert (await harness.view(held.id)).result == b"new"


async def test_an_attempt_past_its_timeout_is_overdue_after_the_grace_period(harness: Harness) -> None:
    [held] = await harness.start(a_run(policy=a_policy(timeout=10 * MINUTE)))
    await harness.advance(9 * MINUTE)
    assert await harness.store.overdue_runs(0, 10) == []
    await harness.advance(2 * MINUTE)
    assert await harness.store.overdue_runs(5 * MINUTE, 10) == []
    assert await harness.store.overdue_runs(30 * SECOND, 10) == [held]
    await harness.advance(5 * MINUTE)
    assert await harness.store.overdue_runs(5 * MINUTE, 10) == [held]


async def test_overdue_runs_are_returned_up_to_the_limit_until_they_complete(harness: Harness) -> None:
    held = await harness.start(*(a_run(policy=a_policy(timeout=MINUTE)) for _ in range(3)))
    await harness.advance(HOUR)
    assert len(await harness.store.overdue_runs(0, 2)) == 2
    await harness.fail(*held[:2])
    assert ids(await harness.store.overdue_runs(0, 10)) == ids(held[2:])


async def test_the_runs_of_expired_sessions_are_lost_and_not_overdue(harness: Harness) -> None:
    dying = await harness.worker(SHORT_LEASE)
    await harness.submit(a_run(policy=a_policy(timeout=MINUTE)))
    [held] = await harness.claim(dying)
    await harness.advance(HOUR)
    assert ids(await harness.store.lost_runs(10)) == [held.id]
    assert await harness.store.overdue_runs(0, 10) == []


async def test_a_run_past_its_start_by_time_is_skipped(harness: Harness) -> None:
    queued = a_run(start_within=10 * MINUTE)
    waiting = a_run(start_within=5 * MINUTE, delay=5 * MINUTE)
    patient = a_run(start_within=HOUR)
    await harness.submit(queued, waiting, patient, a_run())
    assert await harness.store.expire(10) == 0
    await harness.advance(11 * MINUTE)
    assert await harness.store.expire(10) == 2
    views = [await harness.view(run.id) for run in (queued, waiting)]
    assert [(view.state, view.reason) for view in views] == [(RunState.SKIPPED, "expired")] * 2
    assert all(view.finished_at is not None for view in views)
    assert await harness.state(patient.id) is RunState.QUEUED
    assert await harness.store.expire(10) == 0


async def test_a_run_past_its_deadline_fails(harness: Harness) -> None:
    queued = a_run(deadline=10 * MINUTE)
    waiting = a_run(deadline=5 * MINUTE, delay=5 * MINUTE)
    await harness.submit(queued, waiting)
    await harness.advance(11 * MINUTE)
    assert await harness.store.expire(10) == 2
    views = [await harness.view(run.id) for run in (queued, waiting)]
    assert [(view.state, view.reason) for view in views] == [(RunState.FAILED, "deadline")] * 2


async def test_a_run_past_its_start_by_time_and_deadline_is_skipped(harness: Harness) -> None:
    run = a_run(start_within=2 * MINUTE, deadline=MINUTE)
    await harness.submit(run)
    await harness.advance(10 * MINUTE)
    assert await harness.store.expire(10) == 1
    assert await harness.state(run.id) is RunState.SKIPPED


async def test_a_running_run_is_not_expired(harness: Harness) -> None:
    [held] = await harness.start(a_run(start_within=MINUTE, deadline=MINUTE))
    await harness.advance(10 * MINUTE)
    assert await harness.store.expire(10) == 0
    assert await harness.state(held.id) is RunState.RUNNING


async def test_a_retry_has_met_its_start_by_time_but_can_miss_its_deadline(harness: Harness) -> None:
    in_time, late = await harness.start(a_run(start_within=MINUTE), a_run(deadline=MINUTE))
    await harness.fail(in_time, late)
    await harness.advance(10 * MINUTE)
    assert await harness.store.expire(10) == 1
    assert await harness.states([in_time, late]) == [RunState.SCHEDULED, RunState.FAILED]


async def test_a_released_run_has_not_met_its_start_by_time(harness: Harness) -> None:
    [held] = await harness.start(a_run(start_within=MINUTE))
    await harness.complete(complete_release(held))
    await harness.advance(10 * MINUTE)
    assert await harness.claim(await harness.worker()) == []
    assert await harness.store.expire(10) == 1
    assert await harness.state(held.id) is RunState.SKIPPED


async def test_expire_handles_at_most_its_limit(harness: Harness) -> None:
    await harness.submit(*(a_run(start_within=MINUTE) for _ in range(5)))
    await harness.advance(2 * MINUTE)
    assert [await harness.store.expire(2) for _ in range(4)] == [2, 2, 1, 0]


async def test_the_sweeper_finds_nothing_in_a_consistent_store(harness: Harness) -> None:
    first, second, third = some_runs(3, key="video-1")
    await harness.submit(first, second, third)
    assert await harness.store.sweep(10) == 0
    [held] = await harness.claim(await harness.worker())
    await harness.fail(held)
    assert await harness.store.sweep(10) == 0
    assert await harness.states([first, second, third]) == [RunState.SCHEDULED, RunState.BLOCKED, RunState.BLOCKED]


async def test_tidying_changes_no_visible_state(harness: Harness) -> None:
    run = a_run()
    await harness.submit(run)
    await harness.store.tidy()
    assert await harness.states([run]) == [RunState.QUEUED]
