"""Staging: the owner of a shard queues its due runs."""

import asyncio

import pytest

from mainspring.core.model.base.instant import DAY, HOUR, MILLISECOND, MINUTE, SECOND
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.job import JobState
from tests.support.builders import a_job, a_run, a_spec, every, some_runs
from tests.support.store_harness import SHORT_LEASE, Harness, ids


async def test_nothing_is_staged_before_it_is_due(harness: Harness) -> None:
    run = a_run(delay=5 * MINUTE)
    await harness.submit(run)
    await harness.advance(4 * MINUTE)
    staged = await harness.stage()
    assert (staged.runs, staged.queues, staged.more, staged.schedules_due) == (0, (), False, False)
    assert await harness.state(run.id) is RunState.SCHEDULED


async def test_a_due_run_is_queued(harness: Harness) -> None:
    runs = [a_run(delay=MINUTE, queue=queue, shard=shard) for shard, queue in enumerate(["a", "b", "a"])]
    await harness.submit(*runs)
    await harness.advance(2 * MINUTE)
    before = await harness.now()
    staged = await harness.stage()
    assert staged.runs == 3
    assert sorted(staged.queues) == ["a", "b"]
    assert not staged.more
    assert before <= staged.now <= await harness.now()
    assert set(await harness.states(runs)) == {RunState.QUEUED}
    assert (await harness.stage()).runs == 0


async def test_a_run_keeps_its_due_time_when_it_is_staged_late(harness: Harness) -> None:
    run = a_run(at=await harness.now() + MINUTE)
    await harness.submit(run)
    await harness.advance(HOUR)
    await harness.stage()
    [held] = await harness.claim(await harness.worker())
    assert held.due == run.at


async def test_the_oldest_are_staged_first_up_to_the_limit(harness: Harness) -> None:
    now = await harness.now()
    runs = [a_run(at=now + MINUTE - index, shard=1) for index in range(10)]
    await harness.submit(*runs)
    await harness.advance(2 * MINUTE)
    staged = await harness.stage(4)
    assert (staged.runs, staged.more) == (4, True)
    assert await harness.states(runs) == [RunState.SCHEDULED] * 6 + [RunState.QUEUED] * 4
    staged = await harness.stage(7)
    assert (staged.runs, staged.more) == (6, False)


async def test_a_run_submitted_later_with_an_earlier_due_time_is_staged(harness: Harness) -> None:
    now = await harness.now()
    await harness.submit(a_run(at=now + MINUTE))
    await harness.advance(2 * MINUTE)
    await harness.stage()
    late = a_run(at=now + 30 * SECOND + HOUR)
    await harness.submit(late)
    await harness.advance(HOUR)
    assert (await harness.stage()).runs == 1
    assert await harness.state(late.id) is RunState.QUEUED


async def test_shards_that_are_not_owned_are_skipped(harness: Harness) -> None:
    mine, other = a_run(delay=MINUTE, shard=1), a_run(delay=MINUTE, shard=2)
    await harness.submit(mine, other)
    await harness.advance(2 * MINUTE)
    owner = await harness.store.join("one", DAY)
    await harness.store.take(owner, [1, 3])
    assert (await harness.store.stage(owner, [1, 2, 3], 10)).runs == 1
    assert await harness.states([mine, other]) == [RunState.QUEUED, RunState.SCHEDULED]


async def test_owned_shards_that_were_not_requested_are_skipped(harness: Harness) -> None:
    one, two = a_run(delay=MINUTE, shard=1), a_run(delay=MINUTE, shard=2)
    await harness.submit(one, two)
    await harness.advance(2 * MINUTE)
    owner = await harness.owner()
    assert (await harness.store.stage(owner, [], 10)).runs == 0
    assert (await harness.store.stage(owner, [2], 10)).runs == 1
    assert await harness.states([one, two]) == [RunState.SCHEDULED, RunState.QUEUED]


async def test_an_owner_past_its_lease_stages_nothing(harness: Harness) -> None:
    run = a_run(delay=MINUTE)
    await harness.submit(run)
    await harness.put(a_job())
    owner = await harness.store.join("slow", SHORT_LEASE)
    await harness.store.take(owner, harness.all_shards)
    await harness.advance(2 * SHORT_LEASE)
    staged = await harness.store.stage(owner, harness.all_shards, 10)
    assert (staged.runs, staged.more, staged.schedules_due) == (0, False, False)
    assert await harness.state(run.id) is RunState.SCHEDULED
    await harness.store.renew(owner, MINUTE)
    assert (await harness.store.stage(owner, harness.all_shards, 10)).runs == 1


async def test_an_owner_whose_shards_were_taken_stages_nothing(harness: Harness) -> None:
    await harness.submit(a_run(delay=MINUTE))
    slow = await harness.store.join("slow", SHORT_LEASE)
    await harness.store.take(slow, harness.all_shards)
    await harness.advance(2 * SHORT_LEASE)
    await harness.owner()
    assert (await harness.store.stage(slow, harness.all_shards, 10)).runs == 0
    assert (await harness.stage()).runs == 1


async def test_two_owners_at_once_stage_a_run_once(harness: Harness) -> None:
    runs = some_runs(50, delay=MINUTE)
    await harness.submit(*runs)
    await harness.advance(2 * MINUTE)
    await harness.owner()
    staged = await asyncio.gather(*(harness.stage(20) for _ in range(6)))
    total = sum(answer.runs for answer in staged) + (await harness.stage()).runs
    assert total == 50
    assert sorted(ids(await harness.claim(await harness.worker()))) == sorted(ids(runs))


async def test_staged_runs_are_ranked_by_when_they_were_staged(harness: Harness) -> None:
    delayed = a_run(delay=MINUTE)
    await harness.submit(delayed)
    await harness.advance(10 * MINUTE)
    prompt = a_run()
    await harness.submit(prompt)
    await harness.advance(SECOND)
    await harness.stage()
    assert ids(await harness.claim(await harness.worker())) == [prompt.id, delayed.id]


async def test_a_retry_is_ranked_behind_live_work_of_its_priority(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    await harness.fail(held)
    await harness.advance(MINUTE)
    await harness.stage()
    await harness.advance(10 * SECOND)
    live = a_run()
    await harness.submit(live)
    assert ids(await harness.claim(await harness.worker())) == [live.id, held.id]


async def test_staging_reports_whether_a_schedule_is_due(harness: Harness) -> None:
    job = await harness.put(a_job(a_spec(schedule=every(HOUR)), shard=2))
    assert not (await harness.stage()).schedules_due
    await harness.advance(HOUR)
    assert (await harness.stage()).schedules_due
    assert not (await harness.store.stage(await harness.owner(), [1], 10)).schedules_due
    await harness.fire_due()
    assert not (await harness.stage()).schedules_due
    assert job.shard == 2


@pytest.mark.parametrize(
    ("owned", "requested", "due"),
    [([2], [2], True), ([1, 2, 3], [2, 3], True), ([1], [1, 2], False), ([1, 2], [1], False)],
    ids=["owned", "one of several", "not owned", "not requested"],
)
async def test_staging_reports_due_schedules_of_owned_and_requested_shards(
    harness: Harness, owned: list[int], requested: list[int], due: bool
) -> None:
    await harness.put(a_job(a_spec(schedule=every(HOUR)), shard=2))
    await harness.advance(HOUR)
    one, other = [await harness.store.join(name, DAY) for name in ("one", "other")]
    await harness.store.take(one, owned)
    await harness.store.take(other, harness.all_shards)
    assert (await harness.store.stage(one, requested, 10)).schedules_due is due


async def test_staging_reports_no_due_schedule_of_a_cancelled_job(harness: Harness) -> None:
    job = await harness.put(a_job(a_spec(schedule=every(HOUR))))
    await harness.advance(HOUR)
    await harness.store.set_jobs_state([job.id], JobState.CANCELLED)
    assert not (await harness.stage()).schedules_due


async def test_upcoming_lists_shard_and_time_of_due_runs_and_jobs(harness: Harness) -> None:
    # Whole milliseconds, because upcoming times are rounded.
    now = (await harness.now()) // MILLISECOND * MILLISECOND + HOUR
    await harness.submit(
        a_run(at=now + 3 * SECOND, shard=1),
        a_run(at=now + SECOND, shard=2),
        a_run(at=now + 2 * SECOND, shard=1),
        a_run(at=now + 5 * SECOND, shard=3),
        a_run(at=now + HOUR, shard=1),
        a_run(shard=1),
    )
    upcoming = await harness.store.upcoming([1, 2], now + MINUTE, 10)
    assert upcoming == [(2, now + SECOND), (1, now + 2 * SECOND), (1, now + 3 * SECOND)]
    assert await harness.store.upcoming([1, 2], now + MINUTE, 2) == upcoming[:2]
    assert await harness.store.upcoming([], now + MINUTE, 10) == []
    assert await harness.store.upcoming([1], now + SECOND, 10) == []
    assert await harness.store.upcoming([1], now + 2 * SECOND, 10) == [(1, now + 2 * SECOND)]


async def test_upcoming_lists_each_millisecond_of_a_shard_once_and_never_early(harness: Harness) -> None:
    now = (await harness.now()) // MILLISECOND * MILLISECOND + HOUR
    await harness.submit(*(a_run(at=now + micros, shard=1) for micros in (1, 2, 999, 1_000, 1_001)))
    await harness.submit(a_run(at=now + 1, shard=2))
    upcoming = await harness.store.upcoming([1, 2], now + MINUTE, 10)
    assert sorted(upcoming) == [(1, now + 1_000), (1, now + 2_000), (2, now + 1_000)]
    assert [due for _, due in upcoming] == [now + 1_000, now + 1_000, now + 2_000]


async def test_upcoming_lists_retries_but_no_blocked_queued_or_running_runs(harness: Harness) -> None:
    [held] = await harness.start(a_run(key="a"))
    await harness.submit(a_run(key="a"))
    await harness.fail(held)
    now = await harness.now()
    [(shard, due)] = await harness.store.upcoming(harness.all_shards, now + HOUR, 10)
    assert shard == 0
    assert 0 <= due - (await harness.view(held.id)).due < MILLISECOND
