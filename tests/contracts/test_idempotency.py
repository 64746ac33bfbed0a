"""Idempotency keys: a repeated request returns the same run or job."""

import asyncio

import pytest

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import HOUR, MINUTE
from mainspring.core.model.runs.new_run import Idempotency, NewRun
from mainspring.core.model.runs.run import RunState
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.answers import PutOutcome
from mainspring.core.store import KEYS_KEPT
from tests.support.builders import a_job, a_run, a_spec, every
from tests.support.store_harness import Harness, ids

pytestmark = pytest.mark.api

READER = "dashboard"


def keyed(key: str = "order-1", fingerprint: bytes = b"same", *, tenant: str = "default", queue: str = "q") -> NewRun:
    return a_run(idempotency=Idempotency(key, fingerprint), tenant=tenant, queue=queue)


async def existing_ids(harness: Harness, *runs: NewRun) -> list[RunId]:
    """Return the ids of the runs that exist."""
    return [view.id for view in await harness.store.runs(ids(runs)) if view is not None]


async def test_a_repeated_key_returns_the_first_run(harness: Harness) -> None:
    first, again = keyed(), keyed()
    [one] = await harness.submit(first)
    assert (one.id, one.new, one.conflict) == (first.id, True, False)
    [two] = await harness.submit(again)
    assert (two.id, two.state, two.new, two.conflict) == (first.id, RunState.QUEUED, False, False)
    assert await existing_ids(harness, first, again) == [first.id]


async def test_a_key_reused_for_another_request_is_a_conflict(harness: Harness) -> None:
    first, other = keyed(fingerprint=b"one"), keyed(fingerprint=b"other")
    await harness.submit(first)
    [answer] = await harness.submit(other)
    assert (answer.id, answer.new, answer.conflict) == (first.id, False, True)
    assert await existing_ids(harness, other) == []


async def test_of_two_runs_with_one_key_in_a_batch_one_is_created(harness: Harness) -> None:
    first, same, other, free = keyed(), keyed(), keyed(fingerprint=b"other"), keyed("order-2")
    answers = await harness.submit(first, same, other, free)
    assert [(answer.id, answer.new, answer.conflict) for answer in answers] == [
        (first.id, True, False),
        (first.id, False, False),
        (first.id, False, True),
        (free.id, True, False),
    ]
    assert await existing_ids(harness, first, same, other, free) == [first.id, free.id]


async def test_a_batch_may_mix_used_keys_new_keys_and_none(harness: Harness) -> None:
    first = keyed()
    await harness.submit(first)
    plain, new = a_run(), keyed("order-2")
    answers = await harness.submit(plain, keyed(), new)
    assert [(answer.id, answer.new) for answer in answers] == [(plain.id, True), (first.id, False), (new.id, True)]


async def test_keys_belong_to_a_tenant(harness: Harness) -> None:
    one, other = keyed(tenant="acme"), keyed(tenant="beta", fingerprint=b"other")
    answers = [*await harness.submit(one), *await harness.submit(other)]
    assert [(answer.id, answer.new, answer.conflict) for answer in answers] == [
        (one.id, True, False),
        (other.id, True, False),
    ]


async def test_a_key_is_free_after_its_retention(harness: Harness) -> None:
    first = keyed()
    await harness.submit(first)
    await harness.advance(KEYS_KEPT - 10 * MINUTE)
    await harness.store.tidy()
    [before] = await harness.submit(keyed())
    assert (before.id, before.new) == (first.id, False)
    await harness.advance(11 * MINUTE)
    late = keyed(fingerprint=b"other")
    [after] = await harness.submit(late)
    assert (after.id, after.new, after.conflict) == (late.id, True, False)
    [again] = await harness.submit(keyed(fingerprint=b"other"))
    assert (again.id, again.new) == (late.id, False), "the retention of a key starts again with its second use"


async def test_an_expired_key_is_free_even_before_tidying(harness: Harness) -> None:
    await harness.submit(keyed("tidied"), keyed("left alone"))
    await harness.advance(KEYS_KEPT + MINUTE)
    [left_alone] = await harness.submit(keyed("left alone"))
    await harness.store.tidy()
    [tidied] = await harness.submit(keyed("tidied"))
    assert (left_alone.new, tidied.new) == (True, True)


async def test_the_same_run_submitted_again_is_no_conflict(harness: Harness) -> None:
    run = keyed()
    await harness.submit(run)
    [again] = await harness.submit(run)
    assert (again.id, again.new, again.conflict) == (run.id, False, False)
    in_one = keyed("order-2")
    answers = await harness.submit(in_one, in_one)
    assert [(answer.id, answer.new, answer.conflict) for answer in answers] == [
        (in_one.id, True, False),
        (in_one.id, False, False),
    ]


async def test_the_answer_has_the_current_state_of_the_first_run(harness: Harness) -> None:
    running, ended = keyed("a"), keyed("b")
    _, held = await harness.start(running, ended)
    await harness.succeed(held)
    answers = await harness.submit(keyed("a"), keyed("b"), keyed("b", b"other"))
    assert [answer.state for answer in answers] == [RunState.RUNNING, RunState.SUCCEEDED, RunState.SUCCEEDED]


async def test_of_concurrent_submits_with_one_key_one_creates_a_run(harness: Harness) -> None:
    runs = [keyed() for _ in range(8)]
    answers = [answer for [answer] in await asyncio.gather(*(harness.submit(run) for run in runs))]
    assert sum(answer.new for answer in answers) == 1
    assert len({answer.id for answer in answers}) == 1
    assert await existing_ids(harness, *runs) == [answers[0].id]


async def test_the_key_of_a_purged_run_is_free(harness: Harness) -> None:
    [held] = await harness.start(keyed())
    await harness.succeed(held)
    await harness.store.purge([held.id], Author("ops"))
    other = keyed(fingerprint=b"other")
    [answer] = await harness.submit(other)
    assert (answer.id, answer.new, answer.conflict) == (other.id, True, False)


async def test_a_duplicate_emits_no_event_and_holds_no_ordering_key(harness: Harness) -> None:
    await harness.submit(keyed())
    await harness.store.attach_reader(READER)
    await harness.submit(a_run(idempotency=Idempotency("order-1", b"same"), key="video-1"))
    assert await harness.unread_events(READER) == []
    [free] = await harness.submit(a_run(key="video-1"))
    assert free.state is RunState.QUEUED


async def test_a_job_declared_again_with_its_key_is_not_changed(harness: Harness) -> None:
    key = Idempotency("job-1", b"same")
    first = a_job(a_spec(name="report"), idempotency=key)
    [put] = await harness.store.put_jobs([first])
    assert put.outcome is PutOutcome.CREATED
    changed = await harness.put(a_job(a_spec(name="report", task="other")))
    [again] = await harness.store.put_jobs([a_job(a_spec(name="report"), idempotency=key)])
    assert (again.outcome, again.job) == (PutOutcome.UNCHANGED, changed)


async def test_a_key_reused_for_another_job_is_a_conflict(harness: Harness) -> None:
    first = await harness.put(a_job(a_spec(name="report"), idempotency=Idempotency("job-1", b"one")))
    [put] = await harness.store.put_jobs([a_job(a_spec(name="other"), idempotency=Idempotency("job-1", b"other"))])
    assert (put.outcome, put.job) == (PutOutcome.CONFLICT, first)
    assert await harness.store.job_named("default", "other") is None


async def test_runs_and_jobs_share_the_keys_of_their_tenant(harness: Harness) -> None:
    key = Idempotency("order-1", b"same")
    run, job = keyed("order-2"), a_job(idempotency=key)
    await harness.submit(run)
    await harness.put(job)
    [answer] = await harness.submit(a_run(idempotency=key))
    assert (str(answer.id), answer.new, answer.conflict) == (job.id, False, True)
    [put] = await harness.store.put_jobs([a_job(a_spec(name="other"), idempotency=Idempotency("order-2", b"same"))])
    assert (put.outcome, str(put.job.id), put.job.version) == (PutOutcome.CONFLICT, run.id, 0)
    [elsewhere] = await harness.store.put_jobs([a_job(tenant="acme", idempotency=key)])
    assert elsewhere.outcome is PutOutcome.CREATED


async def test_a_rejected_declaration_uses_no_key(harness: Harness) -> None:
    await harness.put(a_job(a_spec(name="report")))
    key = Idempotency("job-1", b"one")
    refused = a_job(a_spec(name="report", schedule=every(HOUR)), must_be_new=True, idempotency=key)
    [put] = await harness.store.put_jobs([refused])
    assert put.outcome is PutOutcome.EXISTS
    [free] = await harness.store.put_jobs([a_job(idempotency=Idempotency("job-1", b"other"))])
    assert free.outcome is PutOutcome.CREATED


async def test_used_keys_are_returned(harness: Harness) -> None:
    run, gone = keyed(), keyed("gone")
    await harness.submit(run, gone, keyed("other", tenant="acme"))
    await harness.store.put_jobs([a_job(idempotency=Idempotency("job", b"x"))])
    await harness.store.cancel([gone.id])
    await harness.store.purge([gone.id], Author("ada"))
    asked = ["order-1", "gone", "job", "other", "never"]
    assert await harness.store.used_keys("default", asked) == {"order-1", "job"}
    assert await harness.store.used_keys("acme", asked) == {"other"}
    assert await harness.store.used_keys("nobody", asked) == set()
    await harness.advance(KEYS_KEPT + MINUTE)
    assert await harness.store.used_keys("default", asked) == set()


@pytest.mark.parametrize("other", ["queued", "scheduled", "ended", "job"])
async def test_the_key_of_a_purged_run_is_free_although_other_runs_exist(harness: Harness, other: str) -> None:
    [held] = await harness.start(keyed())
    await harness.succeed(held)
    await harness.store.purge([held.id], Author("ops"))
    if other == "job":
        await harness.put(a_job())
    elif other == "ended":
        await harness.succeed(*await harness.start(a_run()))
    else:
        await harness.submit(a_run(delay=HOUR if other == "scheduled" else 0))
    [answer] = await harness.submit(keyed())
    assert answer.new


async def test_a_rejected_declaration_frees_its_own_key_alone(harness: Harness) -> None:
    def some_runs() -> list[NewRun]:
        same_key = a_run(tenant="acme", idempotency=Idempotency("key", b"same"))
        return [same_key, a_run(idempotency=Idempotency("other", b"same"))]

    first = some_runs()
    await harness.submit(*first)
    job = await harness.put(a_job())
    rejected = a_job(job.spec, must_be_new=True, idempotency=Idempotency("key", b"job"))
    [put] = await harness.store.put_jobs([rejected])
    assert put.outcome is PutOutcome.EXISTS
    assert [answer.id for answer in await harness.submit(*some_runs())] == ids(first)
    [answer] = await harness.submit(a_run(idempotency=Idempotency("key", b"same")))
    assert answer.new
