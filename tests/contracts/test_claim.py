"""Claiming: the best by rank, each run once, under one fence."""

import asyncio

from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND
from mainspring.core.model.runs.completion import complete_loss, complete_release
from mainspring.core.model.runs.rank import HEAD_START, IDLE, MOST_URGENT, OVERTAKING_BOUND
from mainspring.core.model.runs.run import RunState
from mainspring.core.store import Demand
from tests.support.builders import a_policy, a_run, some_runs
from tests.support.store_harness import SHORT_LEASE, Harness, ids


async def test_a_claim_counts_the_attempt_and_assigns_one_fence_to_the_batch(harness: Harness) -> None:
    await harness.submit(*some_runs(3))
    before = await harness.now()
    held = await harness.claim(await harness.worker())
    assert [run.attempt for run in held] == [1, 1, 1]
    assert [run.lost for run in held] == [0, 0, 0]
    assert len({run.fence for run in held}) == 1
    after = await harness.now()
    assert all(before <= run.started_at <= after for run in held)


async def test_one_fence_covers_all_queues_of_a_claim(harness: Harness) -> None:
    await harness.submit(a_run(queue="a"), a_run(queue="b"))
    held = await harness.claim_from(await harness.worker(), Demand("a", 1), Demand("b", 1))
    assert len(held) == 2
    assert len({run.fence for run in held}) == 1


async def test_a_fence_is_greater_than_every_earlier_one(harness: Harness) -> None:
    await harness.submit(*some_runs(5))
    one, other = await harness.worker(), await harness.worker()
    fences = [(await harness.claim(session, 1))[0].fence for session in (one, other, one, one, other)]
    assert fences == sorted(set(fences))
    assert fences[0] > 0


async def test_a_run_claimed_again_gets_a_greater_fence(harness: Harness) -> None:
    [first] = await harness.start(a_run())
    await harness.complete(complete_release(first))
    [second] = await harness.claim(await harness.worker())
    assert second.fence > first.fence


async def test_a_claimed_run_shows_as_running(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    view = await harness.view(held.id)
    assert view.state is RunState.RUNNING
    assert (view.fence, view.attempt, view.started_at) == (held.fence, 1, held.started_at)


async def test_the_end_of_an_attempt_is_its_timeout(harness: Harness) -> None:
    [held] = await harness.start(a_run(policy=a_policy(timeout=7 * MINUTE)))
    assert held.attempt_until == held.started_at + 7 * MINUTE


async def test_the_end_of_an_attempt_is_its_deadline_if_that_is_sooner(harness: Harness) -> None:
    sooner, later = await harness.start(
        a_run(policy=a_policy(timeout=7 * MINUTE), deadline=3 * MINUTE),
        a_run(policy=a_policy(timeout=MINUTE), deadline=3 * MINUTE),
    )
    assert sooner.attempt_until == sooner.due + 3 * MINUTE
    assert later.attempt_until == later.started_at + MINUTE


async def test_a_claim_takes_urgent_runs_first(harness: Harness) -> None:
    runs = [a_run(priority=priority) for priority in (5, 10, 1, 7, 2)]
    await harness.submit(*runs)
    held = await harness.claim(await harness.worker(), 3)
    assert [run.priority for run in held] == [1, 2, 5]


async def test_runs_of_one_priority_are_claimed_in_the_order_they_became_eligible(harness: Harness) -> None:
    runs = some_runs(4)
    for run in reversed(runs):
        await harness.submit(run)
        await harness.advance(1)
    assert ids(await harness.claim(await harness.worker())) == ids(reversed(runs))


async def test_a_batch_of_one_priority_is_claimed_in_the_order_of_its_ids(harness: Harness) -> None:
    runs = some_runs(20)
    await harness.submit(*reversed(runs))
    worker = await harness.worker()
    claimed = [run for _ in range(4) for run in ids(await harness.claim(worker, 5))]
    assert claimed == ids(runs)


async def test_an_old_run_is_claimed_before_a_newer_urgent_one(harness: Harness) -> None:
    patient = a_run(priority=6)
    await harness.submit(patient)
    await harness.advance(HEAD_START + SECOND)
    await harness.submit(a_run(priority=5))
    assert ids(await harness.claim(await harness.worker(), 1)) == [patient.id]


async def test_a_run_is_not_overtaken_by_runs_eligible_after_the_aging_bound(harness: Harness) -> None:
    idle = a_run(priority=IDLE)
    await harness.submit(idle)
    await harness.advance(OVERTAKING_BOUND - MINUTE)
    overtakes = a_run(priority=MOST_URGENT)
    await harness.submit(overtakes)
    await harness.advance(2 * MINUTE)
    await harness.submit(a_run(priority=MOST_URGENT))
    assert ids(await harness.claim(await harness.worker(), 2)) == [overtakes.id, idle.id]


async def test_a_claim_takes_at_most_the_limit_of_each_demand(harness: Harness) -> None:
    await harness.submit(*some_runs(5, queue="a"), *some_runs(5, queue="b"), *some_runs(5, queue="c"))
    held = await harness.claim_from(await harness.worker(), Demand("a", 2), Demand("b", 10), Demand("nobody", 3))
    assert sorted(run.queue for run in held) == ["a"] * 2 + ["b"] * 5


async def test_a_demand_of_zero_takes_no_run(harness: Harness) -> None:
    await harness.submit(a_run())
    worker = await harness.worker()
    assert await harness.claim(worker, 0) == []
    assert await harness.claim_from(worker) == []
    assert len(await harness.claim(worker, 1)) == 1


async def test_a_claimed_run_is_not_claimed_again(harness: Harness) -> None:
    await harness.submit(*some_runs(3))
    worker = await harness.worker()
    assert len(await harness.claim(worker)) == 3
    assert await harness.claim(worker) == []
    assert await harness.claim(await harness.worker()) == []


async def test_an_unknown_session_claims_nothing(harness: Harness) -> None:
    await harness.submit(a_run())
    assert await harness.claim(SessionId(987_654_321)) == []


async def test_a_closed_session_claims_nothing(harness: Harness) -> None:
    await harness.submit(a_run())
    worker = await harness.worker()
    await harness.store.close_session(worker)
    assert await harness.claim(worker) == []


async def test_a_session_past_its_lease_claims_nothing(harness: Harness) -> None:
    run = a_run()
    await harness.submit(run)
    worker = await harness.worker(SHORT_LEASE)
    await harness.advance(SHORT_LEASE + SECOND)
    assert await harness.claim(worker) == []
    assert await harness.state(run.id) is RunState.QUEUED


async def test_an_expired_session_claims_nothing(harness: Harness) -> None:
    await harness.submit(a_run())
    worker = await harness.worker(SHORT_LEASE)
    await harness.advance(SHORT_LEASE + SECOND)
    await harness.store.lost_runs(10)
    assert await harness.claim(worker) == []


async def test_a_run_past_its_start_by_time_is_not_claimed(harness: Harness) -> None:
    late, in_time = a_run(start_within=MINUTE), a_run(start_within=HOUR)
    await harness.submit(late, in_time)
    await harness.advance(2 * MINUTE)
    assert ids(await harness.claim(await harness.worker())) == [in_time.id]


async def test_a_run_past_its_deadline_is_not_claimed(harness: Harness) -> None:
    late, in_time = a_run(deadline=MINUTE), a_run(deadline=HOUR)
    await harness.submit(late, in_time)
    await harness.advance(2 * MINUTE)
    assert ids(await harness.claim(await harness.worker())) == [in_time.id]


async def test_a_run_that_started_in_time_is_retried_after_its_start_by_time(harness: Harness) -> None:
    [held] = await harness.start(a_run(start_within=MINUTE))
    await harness.fail(held)
    await harness.advance(10 * MINUTE)
    await harness.stage()
    assert ids(await harness.claim(await harness.worker())) == [held.id]


async def test_a_lost_run_that_started_in_time_is_claimed_after_its_start_by_time(harness: Harness) -> None:
    [held] = await harness.start(a_run(start_within=MINUTE))
    await harness.advance(10 * MINUTE)
    await harness.complete(complete_loss(held, blamed=False))
    assert await harness.store.expire(10) == 0
    assert ids(await harness.claim(await harness.worker())) == [held.id]


async def test_runs_past_their_start_by_time_do_not_hide_other_runs(harness: Harness) -> None:
    expired = [a_run(start_within=MINUTE, priority=1) for _ in range(10)]
    good = some_runs(3)
    await harness.submit(*expired, *good)
    await harness.advance(2 * MINUTE)
    assert ids(await harness.claim(await harness.worker(), 3)) == ids(good)


async def test_a_cancelled_run_is_not_claimed(harness: Harness) -> None:
    stopped, other = some_runs(2)
    await harness.submit(stopped, other)
    await harness.store.cancel([stopped.id])
    assert ids(await harness.claim(await harness.worker())) == [other.id]


async def test_concurrent_claims_never_return_a_run_twice(harness: Harness) -> None:
    runs = some_runs(400)
    await harness.submit(*runs)
    workers = [await harness.worker() for _ in range(8)]

    async def drain(worker: SessionId) -> list[str]:
        claimed: list[str] = []
        while held := await harness.claim(worker, 7):
            claimed += ids(held)
        return claimed

    claimed = [run for part in await asyncio.gather(*map(drain, workers)) for run in part]
    assert len(claimed) == len(set(claimed))
    # A worker may have found nothing while others were claiming, so the rest is claimed here.
    claimed += ids(await harness.claim(workers[0]))
    assert sorted(claimed) == sorted(ids(runs))


async def test_concurrent_claims_and_submits_lose_no_run(harness: Harness) -> None:
    worker = await harness.worker()
    batches = [some_runs(20) for _ in range(10)]
    claimed: list[str] = []

    async def claim() -> None:
        claimed.extend(ids(await harness.claim(worker, 15)))

    await asyncio.gather(*(harness.submit(*batch) for batch in batches), *(claim() for _ in range(10)))
    claimed += ids(await harness.claim(worker))
    assert sorted(claimed) == sorted(run for batch in batches for run in ids(batch))


async def test_lets_go_is_set_for_a_run_with_an_ordering_key(harness: Harness) -> None:
    plain, keyed = await harness.start(a_run(), a_run(key="video-1"))
    assert not plain.unblocks_others
    assert keyed.unblocks_others
