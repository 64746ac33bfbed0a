"""Recurring jobs: declarations, ticks, and the ledger with one entry per tick."""

import asyncio

import msgspec
import pytest

from mainspring.core.model.base.ids import JobId
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, SECOND
from mainspring.core.model.runs.completion import complete_cancel, complete_release
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.job import Job, JobState, NewJob, Overlap, tick_run_id
from mainspring.core.model.schedules.plan import LISTED, plan
from mainspring.core.model.schedules.schedule import CronSchedule, next_after
from mainspring.core.ports.storage.answers import FireResult
from tests.support.builders import (
    a_fire,
    a_job,
    a_job_id,
    a_policy,
    a_run,
    a_skipped_tick,
    a_spec,
    a_tick,
    after_each,
    every,
)
from tests.support.store_harness import SHORT_LEASE, Harness, ids


def changed(job: NewJob, **fields: object) -> NewJob:
    """Declare the same job with another id and changed fields."""
    return msgspec.structs.replace(job, id=a_job_id(), spec=msgspec.structs.replace(job.spec, **fields))


async def test_a_new_job_starts_at_the_first_tick_after_now(harness: Harness) -> None:
    declared = a_job(a_spec(schedule=every(HOUR)))
    before = await harness.now()
    job = await harness.put(declared)
    assert job.next_fire is not None
    assert job.next_fire in {next_after(every(HOUR), at, declared.id) for at in (before, await harness.now())}
    assert (job.id, job.tenant, job.spec, job.payload) == (declared.id, "default", declared.spec, declared.payload)
    assert (job.version, job.state) == (1, JobState.SCHEDULED)
    assert await harness.job(job.id) == job


async def test_a_cron_starts_at_its_first_tick(harness: Harness) -> None:
    declared = a_job(a_spec(schedule=CronSchedule("H 3 * * *", timezone="Europe/Berlin")))
    before = await harness.now()
    job = await harness.put(declared)
    assert job.next_fire in {next_after(declared.spec.schedule, at, job.id) for at in (before, await harness.now())}


async def test_a_job_whose_schedule_has_no_tick_left_is_finished(harness: Harness) -> None:
    job = await harness.put(a_job(a_spec(schedule=every(HOUR, end=await harness.now() - DAY))))
    assert (job.state, job.next_fire) == (JobState.FINISHED, None)


async def test_jobs_are_answered_in_the_order_declared(harness: Harness) -> None:
    jobs = [a_job() for _ in range(5)]
    known = await harness.put(jobs[3])
    stored = [put.job for put in await harness.store.put_jobs(jobs)]
    assert [job.id for job in stored] == [job.id for job in jobs]
    assert stored[3] == known
    assert await harness.store.put_jobs([]) == []


async def test_an_unchanged_declaration_changes_nothing(harness: Harness) -> None:
    declared = a_job()
    job = await harness.put(declared)
    await harness.advance(MINUTE)
    assert await harness.put(declared) == job
    assert await harness.put(msgspec.structs.replace(declared, id=a_job_id())) == job


async def test_the_same_name_of_another_tenant_is_another_job(harness: Harness) -> None:
    declared = a_job()
    job = await harness.put(declared)
    other = await harness.put(a_job(declared.spec, tenant="acme"))
    assert job.id != other.id
    assert await harness.job(job.id) == job


async def test_another_spec_makes_a_new_version_and_keeps_the_next_tick(harness: Harness) -> None:
    declared = a_job(a_spec(schedule=every(HOUR)))
    job = await harness.put(declared)
    new = await harness.put(changed(declared, task="other", priority=2))
    assert (new.id, new.version, new.next_fire, new.state) == (job.id, 2, job.next_fire, JobState.SCHEDULED)
    assert (new.spec.task, new.spec.priority) == ("other", 2)
    assert new.rev > job.rev
    assert await harness.job(job.id) == new


async def test_another_payload_makes_a_new_version(harness: Harness) -> None:
    declared = a_job(payload=b'"old"')
    job = await harness.put(declared)
    new = await harness.put(msgspec.structs.replace(declared, payload=b'"\\u0000\xf0\x9f\x95\xb0"'))
    assert (new.id, new.version, new.payload) == (job.id, 2, b'"\\u0000\xf0\x9f\x95\xb0"')


async def test_a_changed_schedule_is_computed_from_now(harness: Harness) -> None:
    declared = a_job(a_spec(schedule=every(DAY)))
    job = await harness.put(declared)
    before = await harness.now()
    new = await harness.put(changed(declared, schedule=every(HOUR)))
    assert new.next_fire in {next_after(every(HOUR), at, job.id) for at in (before, await harness.now())}
    assert new.rev > job.rev


async def test_a_paused_job_declared_again_stays_paused(harness: Harness) -> None:
    declared = a_job()
    job = await harness.put(declared)
    await harness.store.set_jobs_state([job.id], JobState.PAUSED)
    assert (await harness.put(declared)).state is JobState.PAUSED
    assert (await harness.put(changed(declared, schedule=every(HOUR)))).state is JobState.PAUSED


@pytest.mark.parametrize("different", [False, True])
async def test_a_cancelled_job_declared_again_is_scheduled(harness: Harness, different: bool) -> None:
    declared = a_job()
    job = await harness.put(declared)
    await harness.store.set_jobs_state([job.id], JobState.CANCELLED)
    await harness.advance(HOUR)
    now = await harness.now()
    back = await harness.put(changed(declared, task="other") if different else declared)
    assert (back.id, back.state) == (job.id, JobState.SCHEDULED)
    assert back.version == (2 if different else 1)
    assert back.next_fire is not None
    assert back.next_fire > now
    assert back.rev > job.rev


async def test_a_finished_job_declared_with_a_later_end_is_scheduled(harness: Harness) -> None:
    declared = a_job(a_spec(schedule=every(MINUTE, end=await harness.now() - DAY)))
    await harness.put(declared)
    back = await harness.put(changed(declared, schedule=every(MINUTE)))
    assert back.state is JobState.SCHEDULED
    assert back.next_fire is not None


async def test_a_job_declared_twice_in_one_batch_is_one_job_as_declared_last(harness: Harness) -> None:
    declared, other = a_job(), a_job()
    again = changed(declared, task="other")
    stored = [put.job for put in await harness.store.put_jobs([declared, other, again, declared, again])]
    assert [job.id for job in stored] == [declared.id, other.id, declared.id, declared.id, declared.id]
    assert stored[-1] == await harness.job(declared.id)
    assert (stored[-1].spec.task, stored[-1].version) == ("other", 4)


async def test_concurrent_declarations_of_the_same_jobs_agree(harness: Harness) -> None:
    jobs = [a_job() for _ in range(20)]
    batches = [[msgspec.structs.replace(job, id=a_job_id()) for job in jobs] for _ in range(4)]
    answers = await asyncio.gather(
        *(harness.store.put_jobs(batch[::-1] if number % 2 else batch) for number, batch in enumerate(batches))
    )
    stored = [[put.job for put in (answer[::-1] if number % 2 else answer)] for number, answer in enumerate(answers)]
    assert stored[1:] == stored[:-1]
    assert {job.version for job in stored[0]} == {1}


# Schedules that end with ticks due


@pytest.mark.parametrize("how", ["schedule changed", "cancelled"])
@pytest.mark.parametrize("paused", [False, True])
async def test_ticks_that_are_due_when_their_schedule_ends_are_recorded_as_skipped(
    harness: Harness, how: str, paused: bool
) -> None:
    declared = a_job(a_spec(schedule=every(HOUR)))
    job = await due_job(harness, declared)
    await harness.advance(3 * HOUR)
    at, owner = job.next_fire, await harness.owner()
    assert at is not None
    if paused:
        await harness.store.set_jobs_state([job.id], JobState.PAUSED)
    now = await harness.now()
    await end_schedule(harness, declared, job.id, how)
    due = [at + number * HOUR for number in range(4) if at + number * HOUR <= now]
    entries = await harness.ticks(job.id)
    assert [(entry.scheduled_at, entry.decision, entry.reason) for entry in entries] == [
        (tick, "skipped", how) for tick in due
    ]
    assert {(entry.run_id, entry.job_version, entry.ticks) for entry in entries} == {(None, 1, 1)}
    assert entries[0].epoch > 0
    assert await harness.store.fire(owner, [a_fire(job, a_tick(job, at), next_fire=now)]) == [FireResult(applied=False)]
    # A repetition records nothing.
    await end_schedule(harness, declared, job.id, how)
    assert await harness.ticks(job.id) == entries


async def end_schedule(harness: Harness, declared: NewJob, job: JobId, how: str) -> None:
    if how == "cancelled":
        await harness.store.set_jobs_state([job], JobState.CANCELLED)
    else:
        await harness.put(changed(declared, schedule=every(DAY, start=await harness.now() + 2 * DAY)))


@pytest.mark.parametrize("how", ["schedule changed", "cancelled"])
async def test_a_due_tick_of_a_fixed_delay_is_recorded_when_its_schedule_ends(harness: Harness, how: str) -> None:
    declared = a_job(a_spec(schedule=after_each(5 * MINUTE)))
    job = await due_job(harness, declared)
    await end_schedule(harness, declared, job.id, how)
    [entry] = await harness.ticks(job.id)
    assert (entry.scheduled_at, entry.decision, entry.reason) == (job.next_fire, "skipped", how)


async def test_a_recorded_tick_is_not_changed_when_its_schedule_ends(harness: Harness) -> None:
    job = await due_job(harness, a_job(a_spec(schedule=every(HOUR))))
    at = job.next_fire
    assert at is not None
    await harness.store.fire(await harness.owner(), [a_fire(job, a_tick(job, at), next_fire=at)])
    await harness.store.set_jobs_state([job.id], JobState.CANCELLED)
    assert [entry.decision for entry in await harness.ticks(job.id)] == ["run"]


async def test_a_change_that_keeps_the_schedule_drops_no_tick(harness: Harness) -> None:
    declared = a_job()
    job = await due_job(harness, declared)
    await harness.put(changed(declared, task="other"))
    assert await harness.ticks(job.id) == []
    [fired] = await harness.fire_due()
    assert fired.runs == 1


async def test_many_dropped_ticks_share_one_ledger_entry(harness: Harness) -> None:
    declared = a_job(a_spec(schedule=every(SECOND)))
    job = await due_job(harness, declared)
    await harness.advance(HOUR)
    await end_schedule(harness, declared, job.id, "schedule changed")
    entries = await harness.ticks(job.id)
    assert len(entries) == LISTED + 1
    assert (entries[0].scheduled_at, entries[0].ticks) == (job.next_fire, 0)
    assert entries[0].last_at == entries[1].scheduled_at - SECOND


async def test_dropped_ticks_may_be_older_than_the_oldest_partition(harness: Harness) -> None:
    declared = a_job(a_spec(schedule=every(DAY)))
    job = await harness.put(declared)
    await harness.advance(20 * DAY)
    await end_schedule(harness, declared, job.id, "schedule changed")
    assert len(await harness.ticks(job.id)) == 20


async def test_unknown_jobs_are_none(harness: Harness) -> None:
    job = await harness.put(a_job())
    assert await harness.store.jobs([a_job_id(), job.id]) == [None, job]


# Due jobs


async def test_due_jobs_are_returned_earliest_first_without_payloads(harness: Harness) -> None:
    jobs = [await harness.put(a_job(a_spec(schedule=every(interval)))) for interval in (3 * HOUR, HOUR, 2 * HOUR)]
    due = await harness.store.due_jobs(harness.all_shards, await harness.now() + DAY, 10)
    assert [job.next_fire for job in due] == sorted(job.next_fire or 0 for job in jobs)
    assert {job.id for job in due} == {job.id for job in jobs}
    [first] = [job for job in jobs if job.id == due[0].id]
    assert due[0] == msgspec.structs.replace(first, payload=b"null")


async def test_due_jobs_are_those_of_the_shards_up_to_the_time_and_limit(harness: Harness) -> None:
    near = await harness.put(a_job(a_spec(schedule=every(MINUTE)), shard=1))
    far = await harness.put(a_job(a_spec(schedule=every(MINUTE, start=await harness.now() + DAY)), shard=1))
    other = await harness.put(a_job(a_spec(schedule=every(MINUTE)), shard=2))
    assert near.next_fire is not None
    due_jobs = harness.store.due_jobs
    assert [job.id for job in await due_jobs([1], near.next_fire, 10)] == [near.id]
    assert await due_jobs([1], near.next_fire - 1, 10) == []
    assert [job.id for job in await due_jobs([1], near.next_fire + 2 * DAY, 10)] == [near.id, far.id]
    assert [job.id for job in await due_jobs([1], near.next_fire + 2 * DAY, 1)] == [near.id]
    assert {job.id for job in await due_jobs([1, 2], near.next_fire + HOUR, 10)} == {near.id, other.id}
    assert await due_jobs([], near.next_fire + HOUR, 10) == []


# Firing


async def due_job(harness: Harness, declared: NewJob) -> Job:
    """Declare a job and let its first tick come due."""
    job = await harness.put(declared)
    assert job.next_fire is not None
    await harness.advance(job.next_fire - await harness.now() + SECOND)
    [job] = await harness.store.due_jobs([job.shard], await harness.now(), 1)
    return job


async def next_tick(harness: Harness, job_id: JobId) -> Job:
    """Let the next tick of a job come due."""
    job = await harness.job(job_id)
    assert job.next_fire is not None
    await harness.advance(job.next_fire - await harness.now() + SECOND)
    return await harness.job(job_id)


async def test_a_tick_becomes_a_run_and_a_ledger_entry(harness: Harness) -> None:
    spec = a_spec(task="report", queue="reports", priority=3, policy=a_policy(timeout=MINUTE))
    job = await due_job(harness, a_job(spec, payload=b'{"page":7}', tenant="acme", shard=2))
    assert job.next_fire is not None
    [fired] = await harness.fire_due()
    assert (fired.applied, fired.runs, fired.queues) == (True, 1, ("reports",))

    [entry] = await harness.ticks(job.id)
    assert (entry.job_id, entry.scheduled_at, entry.decision, entry.reason) == (job.id, job.next_fire, "run", "")
    assert (entry.run_id, entry.job_version, entry.ticks) == (tick_run_id(job.id, job.next_fire), 1, 1)
    assert entry.epoch > 0

    [held] = await harness.claim(await harness.worker(), queue="reports")
    assert (held.id, held.job_id, held.scheduled_at) == (entry.run_id, job.id, job.next_fire)
    assert (held.task, held.payload, held.tenant, held.priority) == ("report", b'{"page":7}', "acme", 3)
    assert held.policy == spec.policy
    assert held.due == job.next_fire
    assert not held.unblocks_others
    view = await harness.view(held.id)
    assert (view.job_id, view.scheduled_at) == (job.id, job.next_fire)


async def test_a_fire_moves_the_schedule_on(harness: Harness) -> None:
    job = await due_job(harness, a_job())
    await harness.fire_due()
    after = await harness.job(job.id)
    assert after.next_fire is not None
    assert after.next_fire > await harness.now()
    assert after.rev > job.rev
    assert after.version == job.version
    assert await harness.fire_due() == []


async def test_the_run_of_a_tick_has_the_payload_of_the_version_that_fired(harness: Harness) -> None:
    declared = a_job(payload=b"1")
    job = await due_job(harness, declared)
    await harness.fire_due()
    await harness.put(msgspec.structs.replace(declared, payload=b"2"))
    await next_tick(harness, job.id)
    await harness.fire_due()
    held = await harness.claim(await harness.worker())
    assert sorted(run.payload for run in held) == [b"1", b"2"]
    assert [entry.job_version for entry in await harness.ticks(job.id)] == [1, 2]


async def test_a_fire_with_an_old_revision_does_nothing(harness: Harness) -> None:
    job = await due_job(harness, a_job())
    now = await harness.now()
    fires = plan([job], now)
    owner = await harness.owner()
    assert [fired.applied for fired in await harness.store.fire(owner, fires)] == [True]
    after = await harness.job(job.id)
    assert [(fired.applied, fired.runs) for fired in await harness.store.fire(owner, fires)] == [(False, 0)]
    assert await harness.job(job.id) == after
    assert len(await harness.ticks(job.id)) == 1


async def test_concurrent_fires_of_one_tick_make_one_run(harness: Harness) -> None:
    job = await due_job(harness, a_job())
    fires = plan([job], await harness.now())
    owner = await harness.owner()
    answers = await asyncio.gather(*(harness.store.fire(owner, fires) for _ in range(5)))
    assert sorted(answer[0].applied for answer in answers) == [False] * 4 + [True]
    assert len(await harness.ticks(job.id)) == 1
    assert len(await harness.claim(await harness.worker())) == 1


@pytest.mark.parametrize("how", ["pause", "cancel", "new version"])
async def test_a_change_of_the_job_invalidates_a_planned_fire(harness: Harness, how: str) -> None:
    declared = a_job()
    job = await due_job(harness, declared)
    fires = plan([job], await harness.now())
    match how:
        case "pause":
            await harness.store.set_jobs_state([job.id], JobState.PAUSED)
        case "cancel":
            await harness.store.set_jobs_state([job.id], JobState.CANCELLED)
        case _:
            await harness.put(changed(declared, task="other"))
    [fired] = await harness.store.fire(await harness.owner(), fires)
    assert not fired.applied
    assert [entry.reason for entry in await harness.ticks(job.id)] == (["cancelled"] if how == "cancel" else [])


@pytest.mark.parametrize("overlap", list(Overlap))
@pytest.mark.parametrize("decision", ["run", "skipped"])
async def test_a_fire_before_its_time_does_nothing(harness: Harness, overlap: Overlap, decision: str) -> None:
    now = await harness.now()
    at = now + HOUR
    job = await harness.put(a_job(a_spec(schedule=every(HOUR, start=at), overlap=overlap)))
    ahead = a_tick(job, at) if decision == "run" else a_skipped_tick(at)
    fire = a_fire(job, a_skipped_tick(now - 1), ahead, next_fire=at + HOUR)
    [fired] = await harness.store.fire(await harness.owner(), [fire])
    assert (fired.applied, fired.runs, fired.queues) == (False, 0, ())
    assert await harness.ticks(job.id) == []
    assert await harness.job(job.id) == job
    await harness.advance(HOUR)
    [fired] = await harness.store.fire(await harness.owner(), [fire])
    assert fired.applied


async def test_a_fire_for_a_shard_that_is_not_owned_does_nothing(harness: Harness) -> None:
    job = await due_job(harness, a_job(shard=2))
    fires = plan([job], await harness.now())
    stranger = await harness.store.join("stranger", DAY)
    await harness.store.take(stranger, [1, 3])
    assert [fired.applied for fired in await harness.store.fire(stranger, fires)] == [False]
    await harness.store.take(stranger, [2])
    assert [fired.applied for fired in await harness.store.fire(stranger, fires)] == [True]


async def test_a_fire_past_the_owners_lease_does_nothing(harness: Harness) -> None:
    owner = await harness.store.join("slow", SHORT_LEASE)
    await harness.store.take(owner, harness.all_shards)
    job = await due_job(harness, a_job(a_spec(schedule=every(HOUR))))
    await harness.advance(SHORT_LEASE + SECOND)
    [fired] = await harness.store.fire(owner, plan([job], await harness.now()))
    assert not fired.applied
    assert await harness.ticks(job.id) == []


async def test_a_fire_after_another_took_the_shard_does_nothing(harness: Harness) -> None:
    slow = await harness.store.join("slow", SHORT_LEASE)
    await harness.store.take(slow, harness.all_shards)
    job = await due_job(harness, a_job(a_spec(schedule=every(HOUR))))
    fires = plan([job], await harness.now())
    await harness.advance(SHORT_LEASE + SECOND)
    await harness.owner()
    await harness.store.renew(await harness.owner(), DAY)
    assert [fired.applied for fired in await harness.store.fire(slow, fires)] == [False]


async def test_a_ledger_entry_has_the_epoch_of_its_fire(harness: Harness) -> None:
    first = await harness.store.join("first", DAY)
    epochs = await harness.store.take(first, [2])
    job = await due_job(harness, a_job(shard=2))
    await harness.store.fire(first, plan([job], await harness.now()))
    await harness.store.leave(first)
    second = await harness.store.join("second", DAY)
    newer = await harness.store.take(second, [2])
    job = await next_tick(harness, job.id)
    await harness.store.fire(second, plan([job], await harness.now()))
    assert [entry.epoch for entry in await harness.ticks(job.id)] == [epochs[2], newer[2]]


async def test_each_fire_of_a_batch_is_applied_independently(harness: Harness) -> None:
    jobs = [await harness.put(a_job()) for _ in range(3)]
    await harness.advance(2 * MINUTE)
    now = await harness.now()
    stored = [await harness.job(job.id) for job in jobs]
    stale = msgspec.structs.replace(stored[1], rev=stored[1].rev + 1)
    fires = plan([stored[0], stale, stored[2]], now)
    fired = await harness.store.fire(await harness.owner(), fires)
    assert [answer.applied for answer in fired] == [True, False, True]
    assert [bool(await harness.ticks(job.id)) for job in jobs] == [True, False, True]
    assert await harness.store.fire(await harness.owner(), []) == []


async def test_a_tick_is_recorded_once(harness: Harness) -> None:
    """Nodes with different time zone data can plan one tick from different revisions: the ledger rejects the second."""
    job = await due_job(harness, a_job(a_spec(schedule=every(HOUR))))
    at = job.next_fire
    assert at is not None
    owner = await harness.owner()
    [fired] = await harness.store.fire(owner, [a_fire(job, a_tick(job, at), next_fire=at)])
    assert (fired.applied, fired.runs) == (True, 1)
    job = await harness.job(job.id)
    [fired] = await harness.store.fire(owner, [a_fire(job, a_tick(job, at), next_fire=at + HOUR)])
    assert (fired.applied, fired.runs) == (True, 0)
    assert (await harness.job(job.id)).next_fire == at + HOUR
    assert len(await harness.ticks(job.id)) == 1
    assert len(await harness.claim(await harness.worker())) == 1


async def test_skipped_ticks_are_recorded_with_their_reason(harness: Harness) -> None:
    job = await due_job(harness, a_job(a_spec(schedule=every(HOUR))))
    at = job.next_fire
    assert at is not None
    span = msgspec.structs.replace(a_skipped_tick(at - 3, "missed: größer"), ticks=0, last_at=at - 2)
    ticks = [span, a_skipped_tick(at - 1, "too old"), a_tick(job, at)]
    [fired] = await harness.store.fire(await harness.owner(), [a_fire(job, *ticks, next_fire=at + HOUR)])
    assert (fired.applied, fired.runs) == (True, 1)
    entries = await harness.ticks(job.id)
    assert [(entry.scheduled_at, entry.decision, entry.reason) for entry in entries] == [
        (at - 3, "skipped", "missed: größer"),
        (at - 1, "skipped", "too old"),
        (at, "run", ""),
    ]
    assert [(entry.ticks, entry.last_at) for entry in entries] == [(0, at - 2), (1, None), (1, None)]
    assert [entry.run_id for entry in entries] == [None, None, tick_run_id(job.id, at)]


async def test_the_ledger_is_read_by_time_and_limit(harness: Harness) -> None:
    job = await due_job(harness, a_job(a_spec(schedule=every(HOUR))))
    at = job.next_fire
    assert at is not None
    ticks = [a_skipped_tick(at + number) for number in range(5)]
    await harness.store.fire(await harness.owner(), [a_fire(job, *ticks, next_fire=at + HOUR)])

    async def read(since: int, until: int, limit: int = 10) -> list[int]:
        return [entry.scheduled_at - at for entry in await harness.store.ledger(job.id, since, until, limit)]

    assert await read(at, at + 5) == [0, 1, 2, 3, 4]
    assert await read(at + 1, at + 3) == [1, 2]
    assert await read(at, at + 5, 2) == [0, 1]
    assert await harness.store.ledger(a_job_id(), at, at + 5, 10) == []


async def test_the_last_ticks_of_several_jobs_are_read_together(harness: Harness) -> None:
    jobs = [await harness.put(a_job(a_spec(schedule=every(DAY)))) for _ in range(3)]
    at = await harness.now() - 3 * DAY
    for job, count in zip(jobs, (5, 2, 0), strict=True):
        for number in range(count):
            current = await harness.job(job.id)
            tick = a_tick(job, at + number * DAY // 2) if number % 2 else a_skipped_tick(at + number * DAY // 2)
            await harness.store.fire(await harness.owner(), [a_fire(current, tick, next_fire=current.next_fire)])
    asked = [jobs[2].id, jobs[0].id, a_job_id(), jobs[1].id]
    found = await harness.store.last_ticks(asked, 3)
    assert [[(entry.scheduled_at - at) * 2 // DAY for entry in ledger] for ledger in found] == [
        [],
        [2, 3, 4],
        [],
        [0, 1],
    ]
    assert [entry.decision for entry in found[1]] == ["skipped", "run", "skipped"]
    assert found[1] == (await harness.ticks(jobs[0].id))[2:]
    assert await harness.store.last_ticks([], 3) == []


async def test_a_tick_whose_due_time_is_ahead_is_scheduled(harness: Harness) -> None:
    job = await due_job(harness, a_job(a_spec(schedule=every(HOUR))))
    at = job.next_fire
    assert at is not None
    jittered = a_tick(job, at, due=await harness.now() + 5 * MINUTE)
    [fired] = await harness.store.fire(await harness.owner(), [a_fire(job, jittered, next_fire=at + HOUR)])
    assert fired.runs == 1
    assert jittered.run_id is not None
    view = await harness.view(jittered.run_id)
    assert (view.state, view.due, view.scheduled_at) == (RunState.SCHEDULED, jittered.due, at)
    await harness.advance(6 * MINUTE)
    assert (await harness.stage()).runs == 1


async def test_a_caught_up_tick_queues_behind_live_work(harness: Harness) -> None:
    job = await due_job(harness, a_job(a_spec(schedule=every(HOUR))))
    at = job.next_fire
    assert at is not None
    late = a_tick(job, at, due=await harness.now(), late=True)
    await harness.store.fire(await harness.owner(), [a_fire(job, late, next_fire=at + HOUR)])
    await harness.advance(10 * SECOND)
    live = a_run()
    await harness.submit(live)
    assert ids(await harness.claim(await harness.worker())) == [live.id, late.run_id]


async def test_the_run_of_a_tick_has_the_time_limits_of_its_job(harness: Harness) -> None:
    job = await due_job(harness, a_job(a_spec(start_within=10 * MINUTE, deadline=20 * MINUTE)))
    await harness.fire_due()
    assert job.next_fire is not None
    run = tick_run_id(job.id, job.next_fire)
    worker = await harness.worker()
    [held] = await harness.claim(worker)
    assert held.deadline == job.next_fire + 20 * MINUTE
    await harness.complete(complete_release(held))
    assert await harness.store.expire(10) == 0
    await harness.advance(11 * MINUTE)
    assert await harness.store.expire(10) == 1
    view = await harness.view(run)
    assert (view.state, view.reason) == (RunState.SKIPPED, "expired")


async def test_the_last_tick_finishes_the_job(harness: Harness) -> None:
    end = await harness.now() + 90 * SECOND
    job = await due_job(harness, a_job(a_spec(schedule=every(MINUTE, end=end))))
    await harness.advance(2 * MINUTE)
    [fired] = await harness.fire_due()
    assert fired.applied
    after = await harness.job(job.id)
    assert (after.state, after.next_fire) == (JobState.FINISHED, None)
    assert await harness.store.set_jobs_state([job.id], JobState.SCHEDULED) == {job.id: JobState.FINISHED}


# Pausing and cancelling


async def test_a_job_is_paused_and_resumed(harness: Harness) -> None:
    job = await harness.put(a_job(a_spec(schedule=every(HOUR))))
    assert await harness.store.set_jobs_state([job.id], JobState.PAUSED) == {job.id: JobState.PAUSED}
    paused = await harness.job(job.id)
    assert (paused.state, paused.next_fire) == (JobState.PAUSED, job.next_fire)
    assert paused.rev > job.rev
    assert await harness.store.set_jobs_state([job.id], JobState.PAUSED) == {job.id: JobState.PAUSED}
    assert await harness.store.set_jobs_state([job.id], JobState.SCHEDULED) == {job.id: JobState.SCHEDULED}
    assert (await harness.job(job.id)).next_fire == job.next_fire


async def test_the_ticks_of_a_paused_job_are_recorded_as_skipped(harness: Harness) -> None:
    job = await harness.put(a_job())
    await harness.store.set_jobs_state([job.id], JobState.PAUSED)
    await next_tick(harness, job.id)
    [fired] = await harness.fire_due()
    assert (fired.applied, fired.runs) == (True, 0)
    [entry] = await harness.ticks(job.id)
    assert (entry.decision, entry.reason, entry.run_id) == ("skipped", "paused", None)
    assert (await harness.job(job.id)).state is JobState.PAUSED


async def test_unknown_jobs_are_missing_in_the_answer_of_a_state_change(harness: Harness) -> None:
    job = await harness.put(a_job())
    assert await harness.store.set_jobs_state([a_job_id(), job.id], JobState.PAUSED) == {job.id: JobState.PAUSED}
    assert await harness.store.set_jobs_state([], JobState.PAUSED) == {}


async def test_cancelling_a_job_ends_its_schedule_and_asks_its_runs_to_stop(harness: Harness) -> None:
    job = await due_job(harness, a_job(a_spec(schedule=every(HOUR))))
    at = job.next_fire
    assert at is not None
    now = await harness.now()
    running, queued = a_tick(job, at), a_tick(job, at + 1, due=now)
    waiting = a_tick(job, at + 2, due=now + HOUR)
    owner = await harness.owner()
    await harness.store.fire(owner, [a_fire(job, running, next_fire=at + 1)])
    [held] = await harness.claim(await harness.worker())
    await harness.store.fire(owner, [a_fire(await harness.job(job.id), queued, waiting, next_fire=at + HOUR)])
    stranger = a_run()
    await harness.submit(stranger)

    assert await harness.store.set_jobs_state([job.id], JobState.CANCELLED) == {job.id: JobState.CANCELLED}
    after = await harness.job(job.id)
    assert (after.state, after.next_fire) == (JobState.CANCELLED, None)
    views = await harness.store.runs([run for tick in (running, queued, waiting) if (run := tick.run_id)])
    assert [view.state for view in views if view] == [RunState.CANCELLING, RunState.CANCELLED, RunState.CANCELLED]
    assert await harness.state(stranger.id) is RunState.QUEUED
    assert held.id == running.run_id
    assert await harness.store.due_jobs(harness.all_shards, now + DAY, 10) == []


async def test_a_cancelled_job_stays_cancelled(harness: Harness) -> None:
    job = await harness.put(a_job())
    await harness.store.set_jobs_state([job.id], JobState.CANCELLED)
    for state in (JobState.SCHEDULED, JobState.PAUSED):
        assert await harness.store.set_jobs_state([job.id], state) == {job.id: JobState.CANCELLED}
    assert (await harness.job(job.id)).next_fire is None


# A fixed delay


async def test_a_fixed_delay_first_ticks_one_delay_from_now(harness: Harness) -> None:
    before = await harness.now()
    job = await harness.put(a_job(a_spec(schedule=after_each(5 * MINUTE))))
    assert job.next_fire is not None
    assert before + 5 * MINUTE <= job.next_fire <= await harness.now() + 5 * MINUTE


async def test_a_fixed_delay_first_ticks_at_its_start_if_that_is_ahead(harness: Harness) -> None:
    start = await harness.now() + HOUR
    job = await harness.put(a_job(a_spec(schedule=after_each(5 * MINUTE, start=start))))
    assert job.next_fire == start


async def test_a_fixed_delay_counts_from_the_end_of_its_run(harness: Harness) -> None:
    job = await due_job(harness, a_job(a_spec(schedule=after_each(5 * MINUTE))))
    await harness.fire_due()
    waits = await harness.job(job.id)
    assert (waits.next_fire, waits.state) == (None, JobState.SCHEDULED)
    await harness.advance(HOUR)
    assert await harness.fire_due() == []
    [held] = await harness.claim(await harness.worker())
    assert held.unblocks_others
    before = await harness.now()
    await harness.succeed(held)
    after = await harness.job(job.id)
    assert after.next_fire is not None
    assert before + 5 * MINUTE <= after.next_fire <= await harness.now() + 5 * MINUTE
    assert after.rev > waits.rev


async def test_a_fixed_delay_waits_for_the_last_attempt(harness: Harness) -> None:
    job = await due_job(harness, a_job(a_spec(schedule=after_each(5 * MINUTE), policy=a_policy(retries=1))))
    await harness.fire_due()
    [held] = await harness.claim(await harness.worker())
    await harness.fail(held)
    assert (await harness.job(job.id)).next_fire is None
    await harness.advance(MINUTE)
    await harness.stage()
    [held] = await harness.claim(await harness.worker())
    await harness.fail(held)
    assert (await harness.job(job.id)).next_fire is not None


@pytest.mark.parametrize("how", ["cancelled", "expired"])
async def test_a_fixed_delay_continues_after_every_outcome(harness: Harness, how: str) -> None:
    job = await due_job(harness, a_job(a_spec(schedule=after_each(5 * MINUTE), start_within=MINUTE)))
    await harness.fire_due()
    assert job.next_fire is not None
    if how == "cancelled":
        await harness.store.cancel([tick_run_id(job.id, job.next_fire)])
    else:
        await harness.advance(10 * MINUTE)
        assert await harness.store.expire(10) == 1
    assert (await harness.job(job.id)).next_fire is not None


async def test_a_paused_fixed_delay_continues(harness: Harness) -> None:
    job = await due_job(harness, a_job(a_spec(schedule=after_each(5 * MINUTE))))
    await harness.fire_due()
    await harness.store.set_jobs_state([job.id], JobState.PAUSED)
    await harness.succeed(*await harness.claim(await harness.worker()))
    after = await harness.job(job.id)
    assert after.state is JobState.PAUSED
    assert after.next_fire is not None
    await next_tick(harness, job.id)
    await harness.fire_due()
    assert [entry.reason for entry in await harness.ticks(job.id)] == ["", "paused"]
    assert (await harness.job(job.id)).next_fire is not None


async def test_a_cancelled_fixed_delay_does_not_continue(harness: Harness) -> None:
    job = await due_job(harness, a_job(a_spec(schedule=after_each(5 * MINUTE))))
    await harness.fire_due()
    held = await harness.claim(await harness.worker())
    await harness.store.set_jobs_state([job.id], JobState.CANCELLED)
    await harness.succeed(*held)
    assert (await harness.job(job.id)).next_fire is None


async def test_a_job_changed_to_a_fixed_delay_starts_again_from_now(harness: Harness) -> None:
    declared = a_job(a_spec(schedule=every(MINUTE)))
    job = await due_job(harness, declared)
    await harness.fire_due()
    held = await harness.claim(await harness.worker())
    new = await harness.put(changed(declared, schedule=after_each(5 * MINUTE)))
    await harness.succeed(*held)
    assert (await harness.job(job.id)).next_fire == new.next_fire


async def test_a_fixed_delay_whose_tick_left_no_run_ticks_again_one_delay_from_now(harness: Harness) -> None:
    """The previous run is still active, and the overlap rule skips the tick."""
    declared = a_job(a_spec(schedule=every(MINUTE), overlap=Overlap.SKIP))
    job = await due_job(harness, declared)
    await harness.fire_due()
    held = await harness.claim(await harness.worker())
    await harness.put(changed(declared, schedule=after_each(5 * MINUTE)))
    await next_tick(harness, job.id)
    before = await harness.now()
    [fired] = await harness.fire_due()
    assert (fired.applied, fired.runs) == (True, 0)
    after = await harness.job(job.id)
    assert after.next_fire is not None
    assert before + 5 * MINUTE <= after.next_fire
    await harness.succeed(*held)


# Overlap


async def test_overlap_allow_runs_side_by_side(harness: Harness) -> None:
    job = await due_job(harness, a_job(a_spec(overlap=Overlap.ALLOW)))
    await harness.fire_due()
    await next_tick(harness, job.id)
    [fired] = await harness.fire_due()
    assert fired.runs == 1
    assert len(await harness.claim(await harness.worker())) == 2


@pytest.mark.parametrize("active", ["queued", "running", "cancelling", "between attempts", "jittered"])
async def test_overlap_skip_skips_a_tick_while_a_run_is_active(harness: Harness, active: str) -> None:
    job = await due_job(harness, a_job(a_spec(overlap=Overlap.SKIP)))
    assert job.next_fire is not None
    due = await harness.now() + HOUR if active == "jittered" else None
    tick = a_tick(job, job.next_fire, due=due)
    await harness.store.fire(await harness.owner(), [a_fire(job, tick, next_fire=job.next_fire + MINUTE)])
    if active not in ("queued", "jittered"):
        [held] = await harness.claim(await harness.worker())
    if active == "cancelling":
        await harness.store.cancel([held.id])
    elif active == "between attempts":
        await harness.fail(held)
    await next_tick(harness, job.id)
    [fired] = await harness.fire_due()
    assert (fired.applied, fired.runs, fired.queues) == (True, 0, ())
    entries = await harness.ticks(job.id)
    assert [(entry.decision, entry.reason) for entry in entries] == [("run", ""), ("skipped", "overlap")]
    assert entries[1].run_id is None
    assert await harness.store.runs([tick_run_id(job.id, entries[1].scheduled_at)]) == [None]


async def test_overlap_skip_runs_again_once_the_run_has_ended(harness: Harness) -> None:
    job = await due_job(harness, a_job(a_spec(overlap=Overlap.SKIP)))
    await harness.fire_due()
    await harness.succeed(*await harness.claim(await harness.worker()))
    await next_tick(harness, job.id)
    [fired] = await harness.fire_due()
    assert fired.runs == 1


async def test_overlap_queue_blocks_one_run_behind_the_active_one(harness: Harness) -> None:
    job = await due_job(harness, a_job(a_spec(overlap=Overlap.QUEUE)))
    await harness.fire_due()
    [held] = await harness.claim(await harness.worker())
    assert held.unblocks_others
    for runs in (1, 0, 0):
        await next_tick(harness, job.id)
        [fired] = await harness.fire_due()
        assert (fired.applied, fired.runs) == (True, runs)
    entries = await harness.ticks(job.id)
    assert [(entry.decision, entry.reason) for entry in entries] == [
        ("run", ""),
        ("run", ""),
        ("skipped", "overlap"),
        ("skipped", "overlap"),
    ]
    second = entries[1].run_id
    assert second is not None
    assert await harness.state(second) is RunState.BLOCKED
    await harness.succeed(held)
    assert ids(await harness.claim(await harness.worker())) == [second]


async def test_overlap_queue_keeps_blocking_during_a_retry(harness: Harness) -> None:
    job = await due_job(harness, a_job(a_spec(overlap=Overlap.QUEUE, policy=a_policy())))
    await harness.fire_due()
    [held] = await harness.claim(await harness.worker())
    await harness.fail(held)
    await next_tick(harness, job.id)
    [fired] = await harness.fire_due()
    assert fired.runs == 1
    await harness.stage()
    assert ids(await harness.claim(await harness.worker())) == [held.id]


async def test_overlap_queue_accepts_two_ticks_of_one_fire(harness: Harness) -> None:
    job = await due_job(harness, a_job(a_spec(overlap=Overlap.QUEUE, schedule=every(HOUR))))
    at = job.next_fire
    assert at is not None
    ticks = [a_tick(job, at + number, due=at) for number in range(3)]
    [fired] = await harness.store.fire(await harness.owner(), [a_fire(job, *ticks, next_fire=at + HOUR)])
    assert fired.runs == 2
    views = await harness.store.runs([tick_run_id(job.id, at + number) for number in range(3)])
    assert [view and view.state for view in views] == [RunState.QUEUED, RunState.BLOCKED, None]


async def test_overlap_queue_counts_a_scheduled_run(harness: Harness) -> None:
    job = await due_job(harness, a_job(a_spec(overlap=Overlap.QUEUE, schedule=every(HOUR))))
    at = job.next_fire
    assert at is not None
    jittered = a_tick(job, at + 1, due=await harness.now() + HOUR)
    owner = await harness.owner()
    await harness.store.fire(owner, [a_fire(job, a_tick(job, at), jittered, next_fire=at + 2)])
    [fired] = await harness.store.fire(
        owner, [a_fire(await harness.job(job.id), a_tick(job, at + 2, due=at), next_fire=at + HOUR)]
    )
    assert (fired.applied, fired.runs) == (True, 0)
    assert [entry.reason for entry in await harness.ticks(job.id)] == ["", "", "overlap"]


async def test_overlap_queue_with_an_ordering_key_waits_for_other_runs_of_the_key(harness: Harness) -> None:
    [stranger] = await harness.start(a_run(key="video-1"))
    job = await due_job(harness, a_job(a_spec(overlap=Overlap.QUEUE, policy=a_policy(key="video-1"))))
    [fired] = await harness.fire_due()
    assert fired.runs == 1
    await next_tick(harness, job.id)
    [fired] = await harness.fire_due()
    assert fired.runs == 0
    await harness.succeed(stranger)
    assert len(await harness.claim(await harness.worker())) == 1


async def test_overlap_cancel_cancels_the_running_run_and_waits_for_it(harness: Harness) -> None:
    job = await due_job(harness, a_job(a_spec(overlap=Overlap.CANCEL)))
    await harness.fire_due()
    worker = await harness.worker()
    [held] = await harness.claim(worker)
    await next_tick(harness, job.id)
    [fired] = await harness.fire_due()
    assert (fired.applied, fired.runs) == (True, 1)
    assert await harness.state(held.id) is RunState.CANCELLING
    second = (await harness.ticks(job.id))[1].run_id
    assert second is not None
    assert await harness.state(second) is RunState.BLOCKED
    heartbeat = await harness.store.heartbeat(worker, DAY, [held.id], [], harness.last_claim(worker))
    assert heartbeat.cancels == (held.id,)
    await harness.complete(complete_release(held))
    assert await harness.state(held.id) is RunState.CANCELLED
    assert ids(await harness.claim(worker)) == [second]


async def test_overlap_cancel_ends_a_run_that_has_not_started_at_once(harness: Harness) -> None:
    job = await due_job(harness, a_job(a_spec(overlap=Overlap.CANCEL)))
    await harness.fire_due()
    await next_tick(harness, job.id)
    [fired] = await harness.fire_due()
    assert (fired.runs, fired.queues) == (1, ("default",))
    first, second = [entry.run_id for entry in await harness.ticks(job.id)]
    assert first is not None
    assert second is not None
    assert [await harness.state(first), await harness.state(second)] == [RunState.CANCELLED, RunState.QUEUED]


async def test_overlap_cancel_replaces_the_blocked_run(harness: Harness) -> None:
    job = await due_job(harness, a_job(a_spec(overlap=Overlap.CANCEL)))
    await harness.fire_due()
    [held] = await harness.claim(await harness.worker())
    for _ in range(2):
        await next_tick(harness, job.id)
        await harness.fire_due()
    _, second, third = [entry.run_id for entry in await harness.ticks(job.id)]
    assert second is not None
    assert third is not None
    assert [await harness.state(second), await harness.state(third)] == [RunState.CANCELLED, RunState.BLOCKED]
    await harness.succeed(held)
    assert await harness.state(third) is RunState.QUEUED


#: The policies of a job before and after a change of its overlap rule that puts its ticks into another line.
OTHER_LINES = [
    pytest.param(a_policy(), a_policy(), id="another rule"),
    pytest.param(a_policy(key="a"), a_policy(key="b"), id="another key"),
    pytest.param(a_policy(key="a"), a_policy(), id="no key any more"),
]


@pytest.mark.parametrize(("before", "after"), OTHER_LINES)
@pytest.mark.parametrize("active", ["running", "between attempts"])
async def test_overlap_queue_skips_a_tick_while_a_run_with_another_key_is_active(
    harness: Harness, before: RunPolicy, after: RunPolicy, active: str
) -> None:
    declared = a_job(a_spec(schedule=every(HOUR), policy=before))
    job = await due_job(harness, declared)
    await harness.fire_due()
    [held] = await harness.claim(await harness.worker())
    if active == "between attempts":
        await harness.fail(held)
    await harness.put(changed(declared, overlap=Overlap.QUEUE, policy=after))
    await next_tick(harness, job.id)
    [fired] = await harness.fire_due()
    assert (fired.applied, fired.runs) == (True, 0)
    assert [entry.reason for entry in await harness.ticks(job.id)] == ["", "overlap"]
    if active == "between attempts":
        await harness.stage()
        [held] = await harness.claim(await harness.worker())
    await harness.succeed(held)
    await next_tick(harness, job.id)
    [fired] = await harness.fire_due()
    assert fired.runs == 1


@pytest.mark.parametrize(("before", "after"), OTHER_LINES)
async def test_overlap_cancel_cancels_a_run_with_another_key_and_starts_none_beside_it(
    harness: Harness, before: RunPolicy, after: RunPolicy
) -> None:
    declared = a_job(a_spec(schedule=every(HOUR), policy=before))
    job = await due_job(harness, declared)
    await harness.fire_due()
    [held] = await harness.claim(await harness.worker())
    await harness.put(changed(declared, overlap=Overlap.CANCEL, policy=after))
    for _ in range(2):
        await next_tick(harness, job.id)
        [fired] = await harness.fire_due()
        assert (fired.applied, fired.runs) == (True, 0)
        assert await harness.state(held.id) is RunState.CANCELLING
    assert [entry.reason for entry in await harness.ticks(job.id)] == ["", "overlap", "overlap"]
    await harness.complete(complete_cancel(held))
    await next_tick(harness, job.id)
    [fired] = await harness.fire_due()
    assert fired.runs == 1


@pytest.mark.parametrize(("before", "after"), OTHER_LINES)
async def test_overlap_cancel_replaces_a_run_with_another_key_that_has_not_started(
    harness: Harness, before: RunPolicy, after: RunPolicy
) -> None:
    declared = a_job(a_spec(schedule=every(HOUR), policy=before))
    job = await due_job(harness, declared)
    await harness.fire_due()
    await harness.put(changed(declared, overlap=Overlap.CANCEL, policy=after))
    await next_tick(harness, job.id)
    [fired] = await harness.fire_due()
    assert fired.runs == 1
    first, second = [entry.run_id for entry in await harness.ticks(job.id)]
    assert first is not None
    assert second is not None
    assert [await harness.state(first), await harness.state(second)] == [RunState.CANCELLED, RunState.QUEUED]


async def test_overlap_allow_with_another_key_runs_side_by_side(harness: Harness) -> None:
    declared = a_job(a_spec(schedule=every(HOUR), policy=a_policy(key="a")))
    job = await due_job(harness, declared)
    await harness.fire_due()
    await harness.put(changed(declared, policy=a_policy(key="b")))
    await next_tick(harness, job.id)
    await harness.fire_due()
    assert len(await harness.claim(await harness.worker())) == 2


async def test_the_overlap_rule_applies_per_job(harness: Harness) -> None:
    for overlap in (Overlap.SKIP, Overlap.QUEUE, Overlap.CANCEL):
        for _ in range(2):
            await harness.put(a_job(a_spec(overlap=overlap)))
    await harness.advance(MINUTE)
    assert [(fired.applied, fired.runs) for fired in await harness.fire_due()] == [(True, 1)] * 6
    assert len(await harness.claim(await harness.worker())) == 6


async def test_the_run_of_a_tick_cannot_start_after_its_job_was_cancelled(harness: Harness) -> None:
    """Cancel and fire race for the row of the job: one of them sees the other."""
    for _ in range(20):
        job = await due_job(harness, a_job())
        fires = plan([job], await harness.now())
        owner = await harness.owner()
        await asyncio.gather(
            harness.store.fire(owner, fires), harness.store.set_jobs_state([job.id], JobState.CANCELLED)
        )
        assert await harness.claim(await harness.worker()) == []


# Revisions


@pytest.mark.parametrize("key", ["", "key"], ids=["no key", "ordering key"])
async def test_the_revision_of_a_job_grows_with_every_change(harness: Harness, key: str) -> None:
    """A scheduler fires only what it planned with the newest revision, so no revision may come back."""
    declared = a_job(a_spec(schedule=after_each(5 * MINUTE), policy=a_policy(key=key)))
    job = await due_job(harness, declared)
    revisions = [job.rev]

    async def note() -> None:
        revisions.append((await harness.job(job.id)).rev)

    await harness.fire_due()
    await note()
    await harness.succeed(*await harness.claim(await harness.worker()))
    await note()
    await harness.store.set_jobs_state([job.id], JobState.PAUSED, resume_at=await harness.now() + HOUR)
    await note()
    await harness.advance(HOUR)
    await harness.store.tidy()
    await note()
    await harness.put(changed(declared, schedule=after_each(7 * MINUTE)))
    await note()
    await harness.store.set_jobs_state([job.id], JobState.CANCELLED)
    await note()
    assert revisions == sorted(set(revisions))
