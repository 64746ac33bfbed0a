"""Declaring jobs: outcomes, conditions and versions."""

import asyncio

import msgspec
import pytest

from mainspring.core.model.base.errors import NotFound
from mainspring.core.model.base.ids import JobId
from mainspring.core.model.base.instant import HOUR, MINUTE
from mainspring.core.model.schedules.job import Job, JobState, NewJob
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.answers import PutOutcome
from tests.support.builders import a_job, a_job_id, a_spec, every
from tests.support.store_harness import Harness

pytestmark = pytest.mark.api


def again(job: NewJob, **changes: object) -> NewJob:
    """Declare the same job with another id, as another client would."""
    spec = msgspec.structs.replace(job.spec, **{name: changes.pop(name) for name in list(changes) if name in _SPEC})
    return msgspec.structs.replace(job, id=a_job_id(), spec=spec, **changes)


_SPEC = {"task", "queue", "schedule", "tags", "owner", "priority"}


async def put(harness: Harness, job: NewJob) -> tuple[PutOutcome, Job]:
    [answer] = await harness.store.put_jobs([job])
    return answer.outcome, answer.job


async def cancelled(harness: Harness, job: NewJob) -> JobId:
    stored = await harness.put(job)
    await harness.store.set_jobs_state([stored.id], JobState.CANCELLED)
    return stored.id


async def test_a_declaration_returns_created_changed_or_unchanged(harness: Harness) -> None:
    job = a_job()
    assert (await put(harness, job))[0] is PutOutcome.CREATED
    assert (await put(harness, job))[0] is PutOutcome.UNCHANGED
    assert (await put(harness, again(job)))[0] is PutOutcome.UNCHANGED
    assert (await put(harness, again(job, task="other")))[0] is PutOutcome.CHANGED
    assert (await put(harness, again(job, task="other", payload=b"2")))[0] is PutOutcome.CHANGED


async def test_a_batch_of_declarations_is_answered_in_order(harness: Harness) -> None:
    known, changed, new = a_job(), a_job(), a_job()
    await harness.store.put_jobs([known, changed])
    answers = await harness.store.put_jobs([new, again(changed, queue="other"), again(known)])
    assert [(answer.job.id, answer.outcome) for answer in answers] == [
        (new.id, PutOutcome.CREATED),
        (changed.id, PutOutcome.CHANGED),
        (known.id, PutOutcome.UNCHANGED),
    ]


async def test_a_job_declared_after_its_cancellation_counts_as_changed(harness: Harness) -> None:
    job = a_job()
    await cancelled(harness, job)
    outcome, back = await put(harness, again(job))
    assert (outcome, back.id, back.version, back.state) == (PutOutcome.CHANGED, job.id, 1, JobState.SCHEDULED)


async def test_labels_are_part_of_a_version(harness: Harness) -> None:
    job = a_job(a_spec(owner="ada", tags=("nightly", "billing")))
    stored = await harness.put(job)
    assert (stored.spec.owner, stored.spec.tags) == ("ada", ("nightly", "billing"))
    assert (await put(harness, again(job, tags=("nightly",))))[1].version == 2


async def test_a_declaration_that_must_be_new_is_rejected_if_the_job_exists(harness: Harness) -> None:
    job = a_job()
    stored = await harness.put(job)
    other = again(job, task="other", must_be_new=True)
    assert await put(harness, other) == (PutOutcome.EXISTS, stored)
    assert await put(harness, again(job, must_be_new=True)) == (PutOutcome.EXISTS, stored), (
        "also if the spec is the same"
    )
    await harness.store.set_jobs_state([stored.id], JobState.PAUSED)
    assert (await put(harness, other))[0] is PutOutcome.EXISTS
    assert await harness.store.job_named("default", job.spec.name) == stored.id


async def test_a_declaration_that_must_be_new_may_replace_a_cancelled_job(harness: Harness) -> None:
    job = a_job()
    await cancelled(harness, job)
    outcome, back = await put(harness, again(job, task="other", must_be_new=True))
    assert (outcome, back.id, back.version, back.state) == (PutOutcome.CHANGED, job.id, 2, JobState.SCHEDULED)
    assert (await put(harness, a_job(must_be_new=True)))[0] is PutOutcome.CREATED
    assert (await put(harness, again(job, must_be_new=True, tenant="acme")))[0] is PutOutcome.CREATED


async def test_a_declaration_that_must_be_new_may_be_repeated(harness: Harness) -> None:
    job = a_job(must_be_new=True)
    await harness.put(job)
    assert (await put(harness, job))[0] is PutOutcome.UNCHANGED


async def test_of_concurrent_declarations_that_must_be_new_one_succeeds(harness: Harness) -> None:
    jobs = [a_job(a_spec(name="report"), must_be_new=True) for _ in range(5)]
    answers = [answer for [answer] in await asyncio.gather(*(harness.store.put_jobs([job]) for job in jobs))]
    assert sorted(answer.outcome for answer in answers) == [PutOutcome.CREATED] + [PutOutcome.EXISTS] * 4
    assert len({answer.job.id for answer in answers}) == 1


async def test_a_change_may_require_an_expected_version(harness: Harness) -> None:
    job = a_job()
    await harness.put(job)
    outcome, second = await put(harness, again(job, task="second", expected_version=1))
    assert (outcome, second.version) == (PutOutcome.CHANGED, 2)
    assert await put(harness, again(job, task="third", expected_version=1)) == (PutOutcome.STALE, second)
    assert await put(harness, again(job, task="third", expected_version=3)) == (PutOutcome.STALE, second)
    assert (await put(harness, again(job, task="third", expected_version=2)))[1].version == 3


async def test_a_change_with_an_expected_version_may_be_repeated(harness: Harness) -> None:
    job = a_job()
    await harness.put(job)
    change = again(job, task="second", expected_version=1)
    _, second = await put(harness, change)
    assert await put(harness, change) == (PutOutcome.UNCHANGED, second)


async def test_of_two_concurrent_changes_of_one_version_one_succeeds(harness: Harness) -> None:
    job = a_job()
    await harness.put(job)
    changes = [again(job, task=f"task-{number}", expected_version=1) for number in range(5)]
    answers = [answer for [answer] in await asyncio.gather(*(harness.store.put_jobs([job]) for job in changes))]
    assert sorted(answer.outcome for answer in answers) == [PutOutcome.CHANGED] + [PutOutcome.STALE] * 4


async def test_an_expected_version_of_an_unknown_job_is_a_conflict(harness: Harness) -> None:
    missing, innocent = a_job(expected_version=1), a_job()
    with pytest.raises(NotFound):
        await harness.store.put_jobs([innocent, missing])
    assert await harness.store.jobs([missing.id, innocent.id]) == [None, None]


async def test_versions_have_author_and_reason(harness: Harness) -> None:
    job = a_job(a_spec(task="first"), payload=b"1", author="ada", why="a start")
    before = await harness.now()
    await harness.put(job)
    await harness.advance(MINUTE)
    await harness.put(again(job, task="second", author="bob", why="faster"))
    await harness.put(again(job, task="second", author="eve", why="the same"))
    await harness.advance(MINUTE)
    await harness.put(again(job, task="second", payload=b"2", author="", why=""))
    versions = await harness.store.versions(job.id)
    assert [(kept.version, kept.spec.task, kept.payload, kept.made_by, kept.why) for kept in versions] == [
        (3, "second", b"2", "", ""),
        (2, "second", b"1", "bob", "faster"),
        (1, "first", b"1", "ada", "a start"),
    ]
    assert versions[2].spec == job.spec
    made = [kept.made_at for kept in reversed(versions)]
    assert before <= made[0] <= made[1] - MINUTE
    assert made[1] <= made[2] - MINUTE
    assert await harness.store.versions(a_job_id()) == []


async def test_a_job_is_found_by_its_name(harness: Harness) -> None:
    mine, other = a_job(a_spec(name="report")), a_job(a_spec(name="report"), tenant="acme", payload=b"2")
    stored, others = await harness.put(mine), await harness.put(other)
    assert await harness.store.job_named("default", "report") == stored.id
    assert await harness.store.job_named("acme", "report") == others.id
    assert others.payload == b"2"
    assert await harness.store.job_named("acme", "other") is None
    assert await harness.store.job_named("beta", "report") is None


async def test_a_job_has_times_of_creation_and_change(harness: Harness) -> None:
    job = a_job()
    before = await harness.now()
    made = await harness.put(job)
    assert before <= made.created_at == made.updated_at <= await harness.now()
    await harness.advance(HOUR)
    assert (await harness.put(job)).updated_at == made.updated_at
    changed = await harness.put(again(job, schedule=every(HOUR)))
    assert changed.created_at == made.created_at
    assert changed.updated_at >= made.updated_at + HOUR
    await harness.advance(HOUR)
    await harness.store.set_jobs_state([job.id], JobState.PAUSED, Author("ada"))
    assert (await harness.job(job.id)).updated_at >= changed.updated_at + HOUR


async def test_a_tick_does_not_change_the_time_of_change_of_a_job(harness: Harness) -> None:
    job = await harness.put(a_job())
    await harness.advance(2 * MINUTE)
    await harness.fire_due()
    fired = await harness.job(job.id)
    assert (fired.rev > job.rev, fired.updated_at) == (True, job.updated_at)
