"""Manual and backfill runs of a recurring job."""

import pytest

from mainspring.core.model.base.ids import JobId
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, SECOND, Instant
from mainspring.core.model.runs.new_run import JobRef, NewRun
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.job import Job, JobState, Overlap
from tests.support.builders import a_job, a_policy, a_run, a_spec, after_each, every
from tests.support.store_harness import Harness, ids

pytestmark = pytest.mark.api


def manual(job: JobId, *, key: str = "", payload: bytes = b"1", delay: int = 0) -> NewRun:
    return a_run(job=JobRef(id=job, version=1), key=key, payload=payload, delay=delay)


def backfill(job: JobId, scheduled_at: Instant) -> NewRun:
    return a_run(job=JobRef(id=job, version=1, kind="backfill", scheduled_at=scheduled_at))


async def a_daily_job(harness: Harness, overlap: Overlap = Overlap.ALLOW) -> Job:
    daily = every(DAY, start=await harness.now() + 2 * HOUR)
    return await harness.put(a_job(a_spec(overlap=overlap, schedule=daily)))


async def test_manual_and_backfill_runs_belong_to_their_job(harness: Harness) -> None:
    job = await a_daily_job(harness)
    tick = await harness.now() - DAY
    by_hand, made_up = manual(job.id), backfill(job.id, tick)
    held = await harness.start(by_hand, made_up)
    assert [(run.job_id, run.scheduled_at) for run in held] == [(job.id, None), (job.id, tick)]
    await harness.succeed(*held)
    for run, scheduled_at in ((by_hand, None), (made_up, tick)):
        view = await harness.view(run.id)
        assert (view.job_id, view.job_version, view.scheduled_at) == (job.id, 1, scheduled_at)


async def test_the_run_of_a_tick_has_the_job_version(harness: Harness) -> None:
    minutely = every(MINUTE, start=await harness.now() + 30 * SECOND)
    job = await harness.put(a_job(a_spec(name="report", schedule=minutely)))
    await harness.put(a_job(a_spec(name="report", schedule=minutely, task="other")))
    await harness.advance(MINUTE)
    await harness.fire_due()
    [entry] = await harness.ticks(job.id)
    assert entry.run_id is not None
    assert (await harness.view(entry.run_id)).job_version == 2
    await harness.submit(one_off := a_run())
    assert (await harness.view(one_off.id)).job_version is None


async def test_a_manual_run_may_have_its_own_payload(harness: Harness) -> None:
    job = await harness.put(a_job(a_spec(schedule=every(DAY)), payload=b'"the job"'))
    [held] = await harness.start(manual(job.id, payload=b'"by hand"'))
    assert held.payload == b'"by hand"'
    assert (await harness.job(job.id)).payload == b'"the job"'


async def test_a_manual_run_is_not_in_the_ledger_and_moves_no_schedule(harness: Harness) -> None:
    job = await a_daily_job(harness)
    held = await harness.start(manual(job.id), backfill(job.id, await harness.now() - DAY))
    await harness.succeed(*held)
    assert await harness.ticks(job.id) == []
    assert await harness.job(job.id) == job


async def test_the_end_of_a_manual_run_sets_no_tick_of_a_fixed_delay(harness: Harness) -> None:
    job = await harness.put(a_job(a_spec(schedule=after_each(MINUTE))))
    await harness.advance(MINUTE + SECOND)
    await harness.fire_due()
    by_hand = manual(job.id)
    await harness.submit(by_hand)
    held = {run.id: run for run in await harness.claim(await harness.worker())}
    await harness.succeed(held.pop(by_hand.id))
    assert (await harness.job(job.id)).next_fire is None
    await harness.succeed(*held.values())
    assert (await harness.job(job.id)).next_fire is not None


@pytest.mark.parametrize("overlap", list(Overlap))
async def test_a_manual_run_ignores_the_overlap_rule(harness: Harness, overlap: Overlap) -> None:
    job = await a_daily_job(harness, overlap)
    await harness.advance(DAY + SECOND)
    await harness.fire_due()
    [entry] = await harness.ticks(job.id)
    runs = [manual(job.id), manual(job.id)]
    assert [answer.state for answer in await harness.submit(*runs)] == [RunState.QUEUED] * 2
    assert len(await harness.claim(await harness.worker())) == 3
    assert entry.run_id is not None
    assert await harness.state(entry.run_id) is RunState.RUNNING


async def test_a_tick_counts_an_active_manual_run_as_overlap(harness: Harness) -> None:
    job = await a_daily_job(harness, Overlap.SKIP)
    by_hand = manual(job.id, delay=3 * DAY)
    await harness.submit(by_hand)
    await harness.advance(DAY + SECOND)
    await harness.fire_due()
    await harness.store.cancel([by_hand.id])
    await harness.advance(DAY)
    await harness.fire_due()
    decisions = [(entry.decision, entry.reason) for entry in await harness.ticks(job.id)]
    assert decisions == [("skipped", "overlap"), ("run", "")]


async def test_cancelling_the_job_cancels_a_manual_run(harness: Harness) -> None:
    job = await a_daily_job(harness)
    running, waiting = manual(job.id), manual(job.id, delay=HOUR)
    await harness.start(running)
    await harness.submit(waiting)
    await harness.store.set_jobs_state([job.id], JobState.CANCELLED)
    assert await harness.states([running, waiting]) == [RunState.CANCELLING, RunState.CANCELLED]


async def test_a_manual_run_respects_its_ordering_key(harness: Harness) -> None:
    daily = every(DAY, start=await harness.now() + 2 * HOUR)
    job = await harness.put(a_job(a_spec(schedule=daily, policy=a_policy(key="video-1"))))
    first, second = manual(job.id, key="video-1"), manual(job.id, key="video-1")
    [held] = await harness.start(first)
    [answer] = await harness.submit(second)
    assert answer.state is RunState.BLOCKED
    await harness.advance(DAY + SECOND)
    await harness.fire_due()
    [entry] = await harness.ticks(job.id)
    assert entry.run_id is not None
    assert await harness.state(entry.run_id) is RunState.BLOCKED
    await harness.succeed(held)
    assert await harness.states([second]) == [RunState.QUEUED]


async def test_a_backfill_queues_behind_live_work(harness: Harness) -> None:
    job = await a_daily_job(harness)
    made_up, live = backfill(job.id, await harness.now() - DAY), a_run()
    await harness.submit(made_up)
    await harness.advance(10 * SECOND)
    await harness.submit(live)
    worker = await harness.worker()
    assert [ids(await harness.claim(worker, 1)) for _ in range(2)] == [[live.id], [made_up.id]]


async def test_a_manual_run_submitted_twice_is_one_run(harness: Harness) -> None:
    job = await a_daily_job(harness)
    made_up = backfill(job.id, await harness.now() - DAY)
    answers = [*await harness.submit(made_up), *await harness.submit(made_up)]
    assert [answer.new for answer in answers] == [True, False]
