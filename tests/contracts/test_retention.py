"""Retention: ended runs are pruned after their time, and no others."""

import pytest

from mainspring.core.model.base.instant import DAY, HOUR
from mainspring.core.model.runs.new_run import About
from mainspring.core.model.runs.run import RunState
from mainspring.core.ports.storage.upkeep import Retention
from tests.support.builders import a_job, a_policy, a_run, a_spec, every
from tests.support.store_harness import Harness

pytestmark = pytest.mark.slow

KEPT = Retention(succeeded=7 * DAY, unsuccessful=30 * DAY, ledger=20 * DAY)


async def prune_all(harness: Harness) -> int:
    gone = 0
    while more := await harness.store.prune(KEPT, 100):
        gone += more
    return gone


async def test_runs_younger_than_their_retention_are_kept(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    await harness.succeed(held)
    await harness.advance(5 * DAY)
    await prune_all(harness)
    assert await harness.state(held.id) is RunState.SUCCEEDED


async def test_successful_and_unsuccessful_runs_have_their_own_retention(harness: Harness) -> None:
    succeeded, failed = await harness.start(a_run(), a_run(policy=a_policy(retries=0)))
    cancelled, skipped = a_run(delay=HOUR), a_run(start_within=HOUR)
    await harness.succeed(succeeded)
    await harness.fail(failed)
    await harness.submit(cancelled, skipped)
    await harness.store.cancel([cancelled.id])
    await harness.advance(2 * HOUR)
    await harness.store.expire(10)
    runs = [succeeded.id, failed.id, cancelled.id, skipped.id]

    await harness.advance(9 * DAY)
    assert await prune_all(harness) > 0
    views = await harness.store.runs(runs)
    assert [view and view.state for view in views] == [None, RunState.FAILED, RunState.CANCELLED, RunState.SKIPPED]
    assert len(await harness.store.attempts(failed.id)) == 1

    await harness.advance(23 * DAY)
    assert await prune_all(harness) > 0
    assert await harness.store.runs(runs) == [None] * 4
    assert await harness.store.attempts(failed.id) == []


async def test_a_run_that_has_not_ended_is_never_pruned(harness: Harness) -> None:
    [running] = await harness.start(a_run(key="a"))
    retried, queued, blocked = a_run(), a_run(), a_run(key="a")
    far = a_run(delay=200 * DAY, payload=b'"far"')
    await harness.submit(retried, blocked, far)
    [held] = await harness.claim(await harness.worker())
    await harness.fail(held)
    await harness.submit(queued)
    for _ in range(10):
        await harness.advance(10 * DAY)
        await prune_all(harness)
    assert await harness.states([running, retried, queued, blocked, far]) == [
        RunState.RUNNING,
        RunState.SCHEDULED,
        RunState.QUEUED,
        RunState.BLOCKED,
        RunState.SCHEDULED,
    ]


async def test_a_run_scheduled_far_ahead_keeps_its_payload(harness: Harness) -> None:
    far = a_run(delay=100 * DAY, payload=b'"far"', policy=a_policy(retries=9))
    await harness.submit(far)
    for _ in range(11):
        await harness.advance(10 * DAY)
        await prune_all(harness)
    await harness.stage()
    [held] = await harness.claim(await harness.worker())
    assert (held.id, held.payload, held.policy) == (far.id, b'"far"', far.policy)


async def test_a_run_that_waited_long_keeps_its_payload(harness: Harness) -> None:
    run = a_run(payload=b'"patient"')
    await harness.submit(run)
    for _ in range(5):
        await harness.advance(10 * DAY)
        await prune_all(harness)
    [held] = await harness.claim(await harness.worker())
    assert held.payload == b'"patient"'


@pytest.mark.parametrize("name", ["", "short", "long"])
@pytest.mark.parametrize("days", [1, 3, 40])
async def test_a_run_that_ended_long_after_its_submission_keeps_its_payload(
    harness: Harness, name: str, days: int
) -> None:
    policy = a_policy(retries=0, retention=name)
    slow, failing = (a_run(payload=b'"slow"', policy=policy, about=About(tags=("a",))) for _ in range(2))
    held = await harness.start(slow, failing)
    await harness.advance(days * DAY)
    await harness.succeed(held[0])
    await harness.fail(held[1])
    seen = 0
    for _ in range(30):
        await prune_all(harness)
        for view in await harness.store.runs([slow.id, failing.id], payloads=True):
            if view is not None:
                assert (view.task, view.payload, view.policy) == ("greet", b'"slow"', policy)
                seen += 1
        await harness.advance(6 * HOUR)
    assert seen > 3


async def test_the_ledger_is_pruned_and_the_job_continues(harness: Harness) -> None:
    daily = every(DAY, start=await harness.now() + 2 * HOUR)
    job = await harness.put(a_job(a_spec(schedule=daily), payload=b'"kept"'))
    await harness.advance(DAY + HOUR)
    await harness.fire_due()
    assert len(await harness.ticks(job.id)) == 1
    await harness.advance(15 * DAY)
    await prune_all(harness)
    assert len(await harness.ticks(job.id)) == 1
    await harness.advance(8 * DAY)
    assert await prune_all(harness) > 0
    assert await harness.ticks(job.id) == []
    assert (await harness.job(job.id)).payload == b'"kept"'


async def test_prune_repeats_until_every_old_run_is_gone(harness: Harness) -> None:
    held = await harness.start(*(a_run() for _ in range(25)))
    await harness.succeed(*held)
    await harness.advance(10 * DAY)
    rounds = 0
    while await harness.store.prune(KEPT, 10):
        rounds += 1
        assert rounds < 100
    assert await harness.store.runs([run.id for run in held]) == [None] * 25
