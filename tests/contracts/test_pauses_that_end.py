"""Pauses with an end time, which expire even if no scheduler is running."""

import msgspec
import pytest

from mainspring.core.model.base.ids import JobId
from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND, isoformat
from mainspring.core.model.schedules.job import Job, JobState
from mainspring.core.ports.storage.access import AuditFilter, Author
from mainspring.core.ports.storage.catalog import Pause
from mainspring.core.store import Demand
from tests.support.builders import a_job, a_run, a_spec, every
from tests.support.store_harness import Harness

pytestmark = pytest.mark.api

ADA = Author("ada", why="the bank is closed")


async def an_hourly_job(harness: Harness) -> Job:
    """Declare a job that ticks every hour, first in an hour."""
    return await harness.put(a_job(a_spec(schedule=every(HOUR, start=await harness.now() + HOUR))))


async def pause(harness: Harness, job: JobId, hours: float, author: Author = ADA) -> int:
    until = await harness.now() + round(hours * HOUR)
    await harness.store.set_jobs_state([job], JobState.PAUSED, author, resume_at=until)
    return until


async def decisions(harness: Harness, job: JobId) -> list[str]:
    return [entry.reason or entry.decision for entry in await harness.ticks(job)]


async def test_a_paused_job_resumes_at_the_end_of_its_pause(harness: Harness) -> None:
    job = await an_hourly_job(harness)
    until = await pause(harness, job.id, 1.5)
    paused = await harness.job(job.id)
    assert (paused.state, paused.resume_at, paused.pause_why) == (JobState.PAUSED, until, ADA.why)
    await harness.store.tidy()
    assert (await harness.job(job.id)).state is JobState.PAUSED
    await harness.advance(HOUR + SECOND)
    await harness.fire_due()
    await harness.advance(30 * MINUTE)
    await harness.store.tidy()
    resumed = await harness.job(job.id)
    assert (resumed.state, resumed.resume_at) == (JobState.SCHEDULED, None)
    # Schedulers drop an older revision of a schedule than the one that they know.
    assert resumed.rev > paused.rev
    await harness.advance(30 * MINUTE)
    [fired] = await harness.fire_due()
    assert (fired.applied, fired.runs) == (True, 1)
    assert await decisions(harness, job.id) == ["paused: the bank is closed", "run"]


@pytest.mark.parametrize("meanwhile", ["nothing", "tidied", "resumed by hand"])
async def test_ticks_of_an_expired_pause_are_skipped_even_if_no_scheduler_was_running(
    harness: Harness, meanwhile: str
) -> None:
    job = await an_hourly_job(harness)
    await pause(harness, job.id, 2.5)
    await harness.advance(3 * HOUR + SECOND)
    if meanwhile == "tidied":
        await harness.store.tidy()
    elif meanwhile == "resumed by hand":
        # The pause had expired already.
        await harness.store.set_jobs_state([job.id], JobState.SCHEDULED)
    [fired] = await harness.fire_due()
    assert (fired.applied, fired.runs) == (True, 1)
    assert await decisions(harness, job.id) == [*["paused: the bank is closed"] * 2, "run"]
    await harness.store.tidy()
    assert (await harness.job(job.id)).state is JobState.SCHEDULED


async def test_ticks_of_a_pause_stay_skipped_after_a_manual_resume(harness: Harness) -> None:
    job = await an_hourly_job(harness)
    await harness.store.set_jobs_state([job.id], JobState.PAUSED)
    await harness.advance(HOUR + MINUTE)
    await harness.store.set_jobs_state([job.id], JobState.SCHEDULED)
    await harness.advance(HOUR)
    await harness.fire_due()
    assert await decisions(harness, job.id) == ["paused", "run"]


async def test_pausing_a_paused_job_replaces_its_end_and_reason(harness: Harness) -> None:
    job = await an_hourly_job(harness)
    first = await pause(harness, job.id, 1)
    rev = (await harness.job(job.id)).rev
    await harness.store.set_jobs_state([job.id], JobState.PAUSED, ADA, resume_at=first)
    assert (await harness.job(job.id)).rev == rev
    bob = Author("bob", why="still closed")
    second = await pause(harness, job.id, 2, bob)
    paused = await harness.job(job.id)
    assert (paused.resume_at, paused.pause_why) == (second, "still closed")
    newest, oldest = await harness.store.audit(None, AuditFilter(target=job.id))
    assert [(entry.author, entry.action, entry.why) for entry in (oldest, newest)] == [
        ("ada", "jobs.pause", ADA.why),
        ("bob", "jobs.pause", bob.why),
    ]
    assert newest.before is not None
    assert newest.after is not None
    assert msgspec.json.decode(newest.before) == {"resumeAt": isoformat(first)}
    assert msgspec.json.decode(newest.after) == {"resumeAt": isoformat(second)}
    await harness.advance(90 * MINUTE)
    await harness.store.tidy()
    assert (await harness.job(job.id)).state is JobState.PAUSED
    await harness.store.set_jobs_state([job.id], JobState.PAUSED)
    await harness.advance(HOUR)
    await harness.store.tidy()
    assert (await harness.job(job.id)).state is JobState.PAUSED


@pytest.mark.parametrize("meanwhile", ["nothing", "tidied", "resumed by hand"])
async def test_ticks_of_a_pause_stay_skipped_if_a_new_pause_ends_before_them(harness: Harness, meanwhile: str) -> None:
    job = await an_hourly_job(harness)
    earlier = await harness.now() + 30 * MINUTE
    await pause(harness, job.id, 5)
    await harness.advance(2 * HOUR + SECOND)
    await harness.store.set_jobs_state([job.id], JobState.PAUSED, resume_at=earlier)
    if meanwhile == "tidied":
        await harness.store.tidy()
    elif meanwhile == "resumed by hand":
        await harness.store.set_jobs_state([job.id], JobState.SCHEDULED)
    await harness.advance(HOUR)
    await harness.fire_due()
    assert await decisions(harness, job.id) == ["paused", "paused", "run"]


@pytest.mark.parametrize("end", ["tidied", "resumed by hand"])
async def test_ticks_of_two_pauses_in_a_row_stay_skipped(harness: Harness, end: str) -> None:
    """Nothing is fired before the second pause has ended."""
    job = await an_hourly_job(harness)
    await pause(harness, job.id, 5)
    await harness.advance(HOUR + SECOND)
    await pause(harness, job.id, 1 if end == "tidied" else 7)
    await harness.advance(HOUR)
    if end == "tidied":
        await harness.store.tidy()
    else:
        await harness.store.set_jobs_state([job.id], JobState.SCHEDULED)
    await harness.advance(HOUR)
    await harness.fire_due()
    reasons = await decisions(harness, job.id)
    assert [reason.partition(":")[0] for reason in reasons] == ["paused", "paused", "run"]


async def test_a_cancelled_job_declared_again_is_not_paused(harness: Harness) -> None:
    declared = a_job(a_spec(schedule=every(HOUR, start=await harness.now() + HOUR)))
    job = await harness.put(declared)
    await pause(harness, job.id, 10)
    await harness.store.set_jobs_state([job.id], JobState.CANCELLED)
    back = await harness.put(declared)
    assert (back.state, back.resume_at, back.paused_until) == (JobState.SCHEDULED, None, None)
    await harness.advance(HOUR + SECOND)
    await harness.fire_due()
    assert await decisions(harness, job.id) == ["run"]


async def test_a_paused_queue_resumes_at_the_end_of_its_pause(harness: Harness) -> None:
    await harness.submit(a_run(queue="mail"))
    worker = await harness.worker()
    until = await harness.now() + HOUR
    await harness.store.pause(Pause(tenant=None, queue="mail", until=until), ADA)
    [there] = await harness.store.pauses()
    assert (there.until, there.why) == (until, ADA.why)
    assert await harness.claim_from(worker, Demand("mail", 1)) == []
    await harness.advance(HOUR)
    assert await harness.store.pauses() == []
    assert not await harness.store.resume(None, "mail", ADA)
    assert len(await harness.claim_from(worker, Demand("mail", 1))) == 1
    await harness.store.tidy()
    await harness.submit(a_run(queue="mail"))
    assert len(await harness.claim_from(worker, Demand("mail", 1))) == 1


async def test_pausing_a_paused_queue_replaces_the_end(harness: Harness) -> None:
    until = await harness.now() + HOUR
    for end in (None, until, until):
        await harness.store.pause(Pause(tenant="acme", queue="mail", until=end), ADA)
    assert [pause.until for pause in await harness.store.pauses()] == [until]
    assert [entry.action for entry in await harness.store.audit("acme")] == ["queues.pause"] * 2
    await harness.advance(2 * HOUR)
    await harness.store.pause(Pause(tenant="acme", queue="mail", until=until + 3 * HOUR), ADA)
    assert [pause.until for pause in await harness.store.pauses()] == [until + 3 * HOUR]


async def test_resume_can_restore_the_previous_pause(harness: Harness) -> None:
    run, worker = a_run(queue="mail"), await harness.worker()
    await harness.submit(run)
    now = await harness.now()
    before = Pause(tenant=None, queue=None, since=now - HOUR, author="bob", why="a freeze", until=now + HOUR)
    for _ in range(2):
        await harness.store.pause(Pause(tenant=None, queue=None), ADA)
        assert await harness.store.resume(None, None, ADA, back=before)
        assert await harness.store.pauses() == [before]
        assert await harness.claim_from(worker, Demand("mail", 1)) == []
    await harness.advance(2 * HOUR)
    await harness.store.pause(Pause(tenant=None, queue=None), ADA)
    # The previous pause has expired.
    assert await harness.store.resume(None, None, ADA, back=before)
    assert await harness.store.pauses() == []
    assert not await harness.store.resume(None, None, ADA, back=before)
    assert len(await harness.claim_from(worker, Demand("mail", 1))) == 1
