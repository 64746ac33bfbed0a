"""Nothing starts before its due time, and everything may start exactly at it: runs, retries, ticks, pauses, limits."""

import msgspec
import pytest

from mainspring.core.model.base.instant import HOUR, MILLISECOND, MINUTE, SECOND
from mainspring.core.model.limits.limits import Limit
from mainspring.core.model.runs.completion import complete_release
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.restored import KnownOutcome
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.catch_up import CatchUp
from mainspring.core.model.schedules.job import Job, JobState
from mainspring.core.ports.storage.catalog import Pause
from mainspring.core.store import Demand
from tests.support.boundaries import ADA, around_the_boundary, on_every_claim_path, prepare_claim_path
from tests.support.builders import a_fire, a_job, a_limit, a_policy, a_run, a_spec, a_tick, after_each, every
from tests.support.store_harness import Harness, ids

QUEUED, SCHEDULED = RunState.QUEUED, RunState.SCHEDULED

#: A run without a key, one with an ordering key and one with a limit. Stores queue each in its own way.
KINDS = {"plain": a_run(), "ordering key": a_run(key="key"), "limit": a_run(limits=(a_limit(),))}
every_kind_of_run = pytest.mark.parametrize("run", KINDS.values(), ids=KINDS.keys())


async def an_hourly_job(harness: Harness, key: str = "", catch_up: CatchUp | None = None) -> Job:
    """Declare a job whose first tick is in an hour."""
    schedule = every(HOUR, start=await harness.now() + HOUR)
    return await harness.put(a_job(a_spec(schedule=schedule, policy=a_policy(key=key), catch_up=catch_up)))


@every_kind_of_run
@around_the_boundary
async def test_a_run_submitted_at_its_due_time_is_queued(harness: Harness, run: NewRun, offset: int) -> None:
    timed = msgspec.structs.replace(run, at=await harness.now() - offset)
    [accepted] = await harness.submit(timed)
    assert accepted.state is (SCHEDULED if offset < 0 else QUEUED)


@every_kind_of_run
@around_the_boundary
async def test_a_run_is_staged_at_its_due_time(harness: Harness, run: NewRun, offset: int) -> None:
    await harness.submit(msgspec.structs.replace(run, delay=HOUR))
    await harness.move_clock(HOUR + offset)
    staged = await harness.stage()
    claimed = await harness.claim(await harness.worker())
    assert (staged.runs, len(claimed)) == ((0, 0) if offset < 0 else (1, 1))
    assert await harness.state(run.id) is (SCHEDULED if offset < 0 else RunState.RUNNING)


@every_kind_of_run
async def test_a_run_is_not_staged_with_one_that_is_due_before_it(harness: Harness, run: NewRun) -> None:
    due = await harness.now() + HOUR
    limits = tuple(msgspec.structs.replace(limit, key="other") for limit in run.policy.limits)
    policy = msgspec.structs.replace(run.policy, ordering_key=run.policy.ordering_key and "other", limits=limits)
    earlier = a_run(at=due, policy=policy)
    later = msgspec.structs.replace(run, at=due + 1)
    await harness.submit(later, earlier)
    await harness.move_clock(HOUR)
    assert (await harness.stage()).runs == 1
    assert await harness.states([earlier, later]) == [QUEUED, SCHEDULED]


@every_kind_of_run
@around_the_boundary
async def test_an_edited_run_is_queued_at_its_new_due_time(harness: Harness, run: NewRun, offset: int) -> None:
    await harness.submit(msgspec.structs.replace(run, delay=HOUR))
    edited = msgspec.structs.replace(run, at=await harness.now() - offset)
    accepted = await harness.store.edit_run(edited, ADA)
    assert accepted is not None
    assert accepted.state is (SCHEDULED if offset < 0 else QUEUED)


@pytest.mark.parametrize("key", ["", "key"], ids=["plain", "ordering key"])
@around_the_boundary
async def test_a_retry_is_staged_after_its_whole_pause(harness: Harness, key: str, offset: int) -> None:
    [held] = await harness.start(a_run(policy=a_policy(key=key, pause=MINUTE)))
    await harness.fail(held)
    await harness.move_clock(MINUTE + offset)
    assert (await harness.stage()).runs == (0 if offset < 0 else 1)
    assert (await harness.view(held.id)).due == held.started_at + MINUTE


@around_the_boundary
async def test_a_released_run_is_staged_after_its_whole_delay(harness: Harness, offset: int) -> None:
    [held] = await harness.start(a_run())
    await harness.complete(complete_release(held, delay=MINUTE))
    await harness.move_clock(MINUTE + offset)
    assert (await harness.stage()).runs == (0 if offset < 0 else 1)


@around_the_boundary
async def test_a_child_is_queued_if_it_is_due_when_its_parents_are_done(harness: Harness, offset: int) -> None:
    parent = a_run()
    child = a_run(after=[parent], at=await harness.now() + HOUR)
    await harness.submit(child, parent)
    [held] = await harness.claim(await harness.worker())
    await harness.move_clock(HOUR + offset)
    await harness.succeed(held)
    await harness.resolve()
    assert await harness.state(child.id) is (SCHEDULED if offset < 0 else QUEUED)


@around_the_boundary
async def test_upcoming_runs_include_those_due_at_the_end(harness: Harness, offset: int) -> None:
    due = (await harness.now() // MILLISECOND + 1) * MILLISECOND
    await harness.submit(a_run(at=due, shard=1))
    expected = [] if offset < 0 else [(1, due)]
    assert await harness.store.upcoming(harness.all_shards, due + offset, 10) == expected


@pytest.mark.parametrize(
    ("past", "rounded"), [(0, 0), (1, MILLISECOND), (999, MILLISECOND)], ids=["exact", "after", "before the next"]
)
async def test_the_time_of_an_upcoming_run_is_never_before_it_is_due(harness: Harness, past: int, rounded: int) -> None:
    start = (await harness.now() // MILLISECOND + 1) * MILLISECOND
    await harness.submit(a_run(at=start + past, shard=1))
    assert await harness.store.upcoming(harness.all_shards, start + HOUR, 10) == [(1, start + rounded)]


@pytest.mark.parametrize("key", ["", "key"], ids=["plain", "ordering key"])
@around_the_boundary
async def test_a_tick_is_fired_at_its_time(harness: Harness, key: str, offset: int) -> None:
    job = await an_hourly_job(harness, key)
    assert job.next_fire is not None
    fire = a_fire(job, a_tick(job, job.next_fire), next_fire=job.next_fire + HOUR)
    owner = await harness.owner()
    await harness.move_clock(HOUR + offset)
    staged = await harness.stage()
    due = await harness.store.due_jobs(harness.all_shards, await harness.now(), 10)
    [fired] = await harness.store.fire(owner, [fire])
    expected = offset >= 0
    assert (staged.schedules_due, bool(due), fired.applied, fired.runs) == (expected, expected, expected, int(expected))
    assert len(await harness.ticks(job.id)) == int(expected)


@pytest.mark.parametrize("key", ["", "key"], ids=["no key", "ordering key"])
@pytest.mark.parametrize("limits", [(), (a_limit(),)], ids=["no limit", "limit"])
@around_the_boundary
async def test_the_run_of_a_tick_waits_until_it_is_due(
    harness: Harness, key: str, limits: tuple[Limit, ...], offset: int
) -> None:
    policy = a_policy(key=key, limits=limits)
    job = await harness.put(a_job(a_spec(schedule=every(HOUR, start=await harness.now() + HOUR), policy=policy)))
    assert job.next_fire is not None
    await harness.move_clock(HOUR)
    tick = a_tick(job, job.next_fire, due=job.next_fire - offset)
    assert tick.run_id is not None
    await harness.store.fire(await harness.owner(), [a_fire(job, tick, next_fire=job.next_fire + HOUR)])
    assert await harness.state(tick.run_id) is (SCHEDULED if offset < 0 else QUEUED)


@pytest.mark.parametrize("end", ["success", "failure", "cancel", "finish", "expiry"])
@around_the_boundary
async def test_a_fixed_delay_counts_from_the_end_of_the_run(harness: Harness, end: str, offset: int) -> None:
    schedule = after_each(MINUTE, start=await harness.now() + HOUR)
    job = await harness.put(a_job(a_spec(schedule=schedule, policy=a_policy(retries=0), start_within=SECOND)))
    await harness.move_clock(HOUR)
    await harness.fire_due()
    [tick] = await harness.ticks(job.id)
    assert tick.run_id is not None
    held = await harness.claim(await harness.worker()) if end in ("success", "failure") else []
    await harness.move_clock(SECOND + 12_345)
    if end == "success":
        await harness.succeed(*held)
    elif end == "failure":
        await harness.fail(*held)
    elif end == "cancel":
        await harness.store.cancel([tick.run_id])
    elif end == "finish":
        await harness.store.finish([KnownOutcome(run=tick.run_id)], ADA)
    else:
        assert await harness.store.expire(10) == 1
    await harness.move_clock(MINUTE + offset)
    due = await harness.store.due_jobs(harness.all_shards, await harness.now(), 10)
    assert [one.id for one in due] == ([] if offset < 0 else [job.id])
    assert len(await harness.fire_due()) == (0 if offset < 0 else 1)


@pytest.mark.parametrize("end", ["cancelled", "schedule changed"])
@around_the_boundary
async def test_the_end_of_a_schedule_records_ticks_that_are_due(harness: Harness, end: str, offset: int) -> None:
    new = a_job(a_spec(schedule=every(HOUR, start=await harness.now() + HOUR)))
    job = await harness.put(new)
    await harness.move_clock(HOUR + offset)
    if end == "cancelled":
        await harness.store.set_jobs_state([job.id], JobState.CANCELLED)
    else:
        start = await harness.now() + HOUR
        changed = msgspec.structs.replace(new.spec, schedule=every(2 * HOUR, start=start))
        await harness.put(msgspec.structs.replace(new, spec=changed))
    assert [tick.reason for tick in await harness.ticks(job.id)] == ([] if offset < 0 else [end])


@around_the_boundary
async def test_a_tick_is_late_after_the_grace(harness: Harness, offset: int) -> None:
    job = await an_hourly_job(harness, catch_up=CatchUp(mode="none", grace=MINUTE))
    await harness.move_clock(HOUR + MINUTE + offset)
    await harness.fire_due()
    [tick] = await harness.ticks(job.id)
    assert tick.decision == ("run" if offset <= 0 else "skipped")


@around_the_boundary
async def test_a_missed_tick_is_too_old_after_the_maximum_age(harness: Harness, offset: int) -> None:
    job = await an_hourly_job(harness, catch_up=CatchUp(mode="all", grace=MINUTE, max_age=10 * MINUTE))
    await harness.move_clock(HOUR + 10 * MINUTE + offset)
    await harness.fire_due()
    [tick] = await harness.ticks(job.id)
    assert tick.decision == ("run" if offset <= 0 else "skipped")


@around_the_boundary
async def test_a_paused_job_resumes_at_the_end_of_its_pause(harness: Harness, offset: int) -> None:
    job = await an_hourly_job(harness)
    until = await harness.now() + MINUTE
    await harness.store.set_jobs_state([job.id], JobState.PAUSED, ADA, resume_at=until)
    await harness.move_clock(MINUTE + offset)
    await harness.store.tidy()
    state = (await harness.job(job.id)).state
    assert state is (JobState.PAUSED if offset < 0 else JobState.SCHEDULED)


@pytest.mark.parametrize("tidied", [False, True], ids=["not tidied", "tidied"])
@around_the_boundary
async def test_a_tick_at_the_end_of_a_pause_is_live(harness: Harness, tidied: bool, offset: int) -> None:
    job = await an_hourly_job(harness)
    assert job.next_fire is not None
    # The tick is before, at or after the end of the pause.
    resume_at = job.next_fire - offset
    await harness.store.set_jobs_state([job.id], JobState.PAUSED, resume_at=resume_at)
    await harness.move_clock(HOUR + MINUTE)
    if tidied:
        await harness.store.tidy()
    await harness.fire_due()
    [tick] = await harness.ticks(job.id)
    assert tick.decision == ("skipped" if offset < 0 else "run")


@pytest.mark.parametrize("tenant", [None, "default"])
@around_the_boundary
async def test_a_paused_queue_is_claimed_from_at_the_end_of_the_pause(
    harness: Harness, tenant: str | None, offset: int
) -> None:
    until = await harness.now() + HOUR
    await harness.store.pause(Pause(tenant=tenant, queue="default", until=until), ADA)
    await harness.submit(a_run(), a_run(queue="other"))
    await harness.move_clock(HOUR + offset)
    paused = offset < 0
    assert len(await harness.store.pauses()) == int(paused)
    [depth, _] = await harness.store.depths()
    assert depth.oldest_ready == (None if paused else until)
    held = await harness.claim_from(await harness.worker(), Demand("default", 10), Demand("other", 10))
    assert sorted(run.queue for run in held) == (["other"] if paused else ["default", "other"])


@on_every_claim_path
@around_the_boundary
async def test_every_claim_path_ends_a_pause_at_its_end(harness: Harness, path: str, offset: int) -> None:
    way = await prepare_claim_path(harness, path)
    until = await harness.now() + HOUR
    await harness.store.pause(Pause(tenant=None, queue="default", until=until), ADA)
    run = way.adapt(a_run())
    await harness.submit(run)
    worker = await way.worker(10 * HOUR)
    await harness.move_clock(HOUR + offset)
    held = await way.claim(worker, [run])
    assert ids(held) == ([] if offset < 0 else [run.id])
    assert [one.ready_at for one in held] == ([] if offset < 0 else [until])


@around_the_boundary
async def test_a_pause_can_be_lifted_until_its_end(harness: Harness, offset: int) -> None:
    await harness.store.pause(Pause(tenant=None, queue="default", until=await harness.now() + HOUR), ADA)
    await harness.move_clock(HOUR + offset)
    assert await harness.store.resume(None, "default", ADA) is (offset < 0)


@around_the_boundary
async def test_a_limit_per_period_admits_the_next_run_after_one_period(harness: Harness, offset: int) -> None:
    first, second = (a_run(limits=(a_limit(most=1, per=MINUTE),)) for _ in range(2))
    await harness.submit(first, second)
    await harness.claim(await harness.worker())
    await harness.move_clock(MINUTE + offset)
    assert (await harness.stage()).runs == (0 if offset < 0 else 1)
    assert await harness.state(second.id) is (RunState.BLOCKED if offset < 0 else QUEUED)


@around_the_boundary
async def test_a_new_run_under_a_limit_per_period_is_queued_after_one_period(harness: Harness, offset: int) -> None:
    await harness.start(a_run(limits=(a_limit(most=1, per=MINUTE),)))
    await harness.move_clock(MINUTE + offset)
    [accepted] = await harness.submit(a_run(limits=(a_limit(most=1, per=MINUTE),)))
    assert accepted.state is (RunState.BLOCKED if offset < 0 else QUEUED)
