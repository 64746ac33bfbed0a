"""Unreadable rows, for example of a newer version, do not affect other runs and jobs."""

from structlog.testing import capture_logs

from mainspring.core.model.base.instant import HOUR, MINUTE
from mainspring.core.model.runs.run import Outcome, RunState
from mainspring.core.model.schedules.job import JobState
from tests.support.builders import a_job, a_policy, a_run, a_spec, every
from tests.support.store_harness import SHORT_LEASE, Harness, ids


async def failed_as_unreadable(harness: Harness, run: str) -> bool:
    view = await harness.view(run)  # type: ignore[arg-type]
    return (view.state, view.reason) == (RunState.FAILED, "unreadable") and "exactly-once" in (view.error or "")


async def test_a_claim_fails_unreadable_runs_and_starts_the_others(harness: Harness) -> None:
    runs = [a_run(), a_run(), a_run()]
    await harness.submit(*runs)
    await harness.spoil_policy(runs[1].id)
    assert ids(await harness.claim(await harness.worker())) == [runs[0].id, runs[2].id]
    assert await failed_as_unreadable(harness, runs[1].id)
    [attempt] = await harness.store.attempts(runs[1].id)
    assert (attempt.outcome, attempt.reason) == (Outcome.ERROR, "unreadable")


async def test_an_unreadable_run_releases_its_ordering_key(harness: Harness) -> None:
    first, second = a_run(key="video-1"), a_run(key="video-1")
    await harness.submit(first, second)
    await harness.spoil_policy(first.id)
    worker = await harness.worker()
    assert await harness.claim(worker) == []
    assert await failed_as_unreadable(harness, first.id)
    assert ids(await harness.claim(worker)) == [second.id]


async def test_an_unreadable_lost_run_fails_and_the_others_are_returned(harness: Harness) -> None:
    runs = [a_run(), a_run()]
    await harness.submit(*runs)
    await harness.claim(await harness.worker(SHORT_LEASE))
    await harness.spoil_policy(runs[0].id)
    await harness.advance(HOUR)
    assert ids(await harness.store.lost_runs(10)) == [runs[1].id]
    assert await failed_as_unreadable(harness, runs[0].id)


async def test_an_unreadable_overdue_run_fails_and_the_others_are_returned(harness: Harness) -> None:
    runs = await harness.start(*(a_run(policy=a_policy(timeout=MINUTE)) for _ in range(2)))
    await harness.spoil_policy(runs[0].id)
    await harness.advance(HOUR)
    assert ids(await harness.store.overdue_runs(MINUTE, 10)) == [runs[1].id]
    assert await failed_as_unreadable(harness, runs[0].id)


async def test_an_unreadable_job_is_skipped_and_reported_once(harness: Harness) -> None:
    bad, good = [await harness.put(a_job(a_spec(schedule=every(HOUR)))) for _ in range(2)]
    await harness.spoil_spec(bad.id)
    await harness.advance(HOUR)
    with capture_logs() as logs:
        for _ in range(2):
            due = await harness.store.due_jobs(harness.all_shards, await harness.now(), 10)
            assert [job.id for job in due] == [good.id]
            assert await harness.store.jobs([bad.id, good.id]) == [None, await harness.job(good.id)]
    assert [log["job"] for log in logs] == [bad.id]
    assert [fired.applied for fired in await harness.fire_due()] == [True]


async def test_declaring_an_unreadable_job_again_fixes_it(harness: Harness) -> None:
    declared = a_job(a_spec(schedule=every(HOUR)))
    bad = await harness.put(declared)
    await harness.spoil_spec(bad.id)
    await harness.advance(HOUR)
    again, other = [put.job for put in await harness.store.put_jobs([declared, a_job()])]
    assert (again.id, again.spec, again.version) == (bad.id, declared.spec, bad.version + 1)
    assert again.next_fire is not None
    assert again.next_fire > await harness.now()
    assert again.rev > bad.rev
    assert other.spec != again.spec


async def test_an_unreadable_job_can_be_cancelled_and_declared_again(harness: Harness) -> None:
    declared = a_job(a_spec(schedule=every(HOUR)))
    bad = await harness.put(declared)
    await harness.spoil_spec(bad.id)
    await harness.advance(HOUR)
    assert await harness.store.set_jobs_state([bad.id], JobState.CANCELLED) == {bad.id: JobState.CANCELLED}
    assert (await harness.put(declared)).state is JobState.SCHEDULED
