"""Submitting runs: durable, once, and in the right initial state."""

import pytest

from mainspring.core.model.base.ids import RunId, derived_id
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, SECOND, Instant, Micros
from mainspring.core.model.runs.completion import complete_release
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.retry import RetryPolicy
from mainspring.core.model.runs.run import RunState
from tests.support.builders import a_run, an_id, some_runs
from tests.support.store_harness import Harness, ids


async def test_the_answers_come_in_the_order_of_the_runs(harness: Harness) -> None:
    runs = some_runs(5)
    shuffled = [runs[index] for index in (3, 0, 4, 1, 2)]
    accepted = await harness.submit(*shuffled)
    assert [answer.id for answer in accepted] == ids(shuffled)
    assert all(answer.new for answer in accepted)


async def test_an_immediate_run_is_queued_at_once(harness: Harness) -> None:
    run = a_run()
    before = await harness.now()
    [accepted] = await harness.submit(run)
    assert accepted.state is RunState.QUEUED
    view = await harness.view(run.id)
    assert view.state is RunState.QUEUED
    assert before <= view.due <= await harness.now()
    assert view.created_at == view.due
    assert view.attempt == 0


async def test_a_run_due_in_the_past_is_queued_at_once(harness: Harness) -> None:
    run = a_run(at=await harness.now() - HOUR)
    [accepted] = await harness.submit(run)
    assert accepted.state is RunState.QUEUED
    assert (await harness.view(run.id)).due == run.at


async def test_the_delay_of_a_run_counts_from_its_submission(harness: Harness) -> None:
    run = a_run(delay=5 * MINUTE)
    before = await harness.now()
    [accepted] = await harness.submit(run)
    assert accepted.state is RunState.SCHEDULED
    view = await harness.view(run.id)
    assert view.state is RunState.SCHEDULED
    assert before + 5 * MINUTE <= view.due <= await harness.now() + 5 * MINUTE


async def test_a_run_for_an_instant_is_due_exactly_then(harness: Harness) -> None:
    run = a_run(at=await harness.now() + HOUR + 1)
    [accepted] = await harness.submit(run)
    assert accepted.state is RunState.SCHEDULED
    assert (await harness.view(run.id)).due == run.at


async def test_a_scheduled_run_is_not_claimed(harness: Harness) -> None:
    await harness.submit(a_run(delay=5 * MINUTE))
    assert await harness.claim(await harness.worker()) == []


async def test_a_known_id_creates_no_second_run(harness: Harness) -> None:
    run, later = a_run(), a_run(delay=HOUR)
    await harness.submit(run, later)
    again = await harness.submit(later, run)
    assert [(answer.id, answer.state, answer.new) for answer in again] == [
        (later.id, RunState.SCHEDULED, False),
        (run.id, RunState.QUEUED, False),
    ]
    assert ids(await harness.claim(await harness.worker())) == [run.id]


async def test_the_first_submission_of_an_id_counts(harness: Harness) -> None:
    run = a_run(payload=b"1")
    await harness.submit(run)
    await harness.submit(a_run(id=run.id, payload=b"2", queue="other"))
    [held] = await harness.claim(await harness.worker())
    assert held.payload == b"1"


async def test_an_id_twice_in_one_batch_is_one_run(harness: Harness) -> None:
    run = a_run()
    accepted = await harness.submit(run, a_run(), run)
    assert [answer.new for answer in accepted] == [True, True, False]
    assert [answer.state for answer in accepted] == [RunState.QUEUED] * 3
    assert len(await harness.claim(await harness.worker())) == 2


async def test_a_batch_of_known_and_new_ids_creates_only_the_new_runs(harness: Harness) -> None:
    known = some_runs(3)
    await harness.submit(*known)
    new = some_runs(3)
    accepted = await harness.submit(known[0], new[0], known[1], new[1], known[2], new[2])
    assert [answer.new for answer in accepted] == [False, True] * 3


async def test_a_running_and_an_ended_run_are_known_too(harness: Harness) -> None:
    running, ended = a_run(), a_run()
    _, held = await harness.start(running, ended)
    await harness.succeed(held)
    again = await harness.submit(running, ended)
    assert [(answer.state, answer.new) for answer in again] == [(RunState.RUNNING, False), (RunState.SUCCEEDED, False)]


@pytest.mark.parametrize("key", ["", "video-1"])
async def test_the_answer_for_a_known_run_has_its_current_state(harness: Harness, key: str) -> None:
    held, _ = await harness.start(a_run(key=key), a_run())
    await harness.store.cancel([held.id])
    [again, _] = await harness.submit(a_run(id=held.id, key=key), a_run(key="other"))
    assert (again.state, again.new) == (RunState.CANCELLING, False)


async def test_an_id_with_an_old_timestamp_is_accepted(harness: Harness) -> None:
    """The ids of backfills and replays carry the time of a tick or of a failure."""
    old = await harness.now() - 300 * DAY
    run = a_run(id=RunId(derived_id(old, 0, "tick")), payload=b"1")
    assert [answer.new for answer in await harness.submit(run)] == [True]
    assert [answer.new for answer in await harness.submit(run)] == [False]
    [held] = await harness.claim(await harness.worker())
    assert held.payload == b"1"
    await harness.succeed(held)
    assert await harness.state(run.id) is RunState.SUCCEEDED


async def test_an_empty_batch_submits_nothing(harness: Harness) -> None:
    assert await harness.submit() == []


async def test_a_large_batch_is_submitted_in_one_call(harness: Harness) -> None:
    runs = some_runs(1_000)
    accepted = await harness.submit(*runs)
    assert [answer.id for answer in accepted] == ids(runs)
    assert sorted(ids(await harness.claim(await harness.worker()))) == sorted(ids(runs))


async def test_a_run_reaches_its_worker_as_it_was_submitted(harness: Harness) -> None:
    policy = RunPolicy(
        retry=RetryPolicy(max_retries=7, backoff="list", delays=(SECOND, MINUTE)),
        timeout=17 * MINUTE,
        guarantee="at-most-once",
        ordering_key="video-42",
    )
    run = a_run(
        shard=3,
        task="resize",
        payload=b'{"width":640}',
        queue="images",
        tenant="acme",
        priority=2,
        policy=policy,
        deadline=HOUR,
    )
    [held] = await harness.start(run)
    assert (held.id, held.task, held.payload, held.queue, held.tenant) == (
        run.id,
        "resize",
        b'{"width":640}',
        "images",
        "acme",
    )
    assert held.policy == policy
    assert held.priority == 2
    assert held.deadline == held.due + HOUR
    assert held.job_id is None
    assert held.scheduled_at is None
    assert not held.cancel_requested


async def test_a_view_shows_what_was_submitted(harness: Harness) -> None:
    run = a_run(task="resize", queue="images", tenant="acme", priority=9, delay=HOUR)
    await harness.submit(run)
    view = await harness.view(run.id)
    assert (view.task, view.queue, view.tenant, view.priority) == ("resize", "images", "acme", 9)


@pytest.mark.parametrize(
    "payload",
    [
        b'{"a":"\\u0000\xc3\xa9\xf0\x9f\x98\x80"}',
        '"Grüße, 世界 🕰 \u2028\'; DROP TABLE run; --"'.encode(),
        b'"\\ud800"',
        b"{}",
        b"",
        bytes(range(256)),
        b"[" + b"1," * 60_000 + b"1]",
    ],
    ids=["an escaped NUL", "unicode", "a lone surrogate", "empty object", "nothing", "all bytes", "large"],
)
async def test_a_payload_is_stored_byte_for_byte(harness: Harness, payload: bytes) -> None:
    [held] = await harness.start(a_run(payload=payload))
    assert held.payload == payload


async def test_names_may_be_any_printable_text(harness: Harness) -> None:
    run = a_run(task="größe/→'\"%s", queue="очередь", tenant="客户")
    [held] = await harness.start(run)
    assert (held.task, held.queue, held.tenant) == (run.task, run.queue, run.tenant)


async def test_an_unknown_run_is_none(harness: Harness) -> None:
    assert await harness.store.runs([an_id()]) == [None]


async def test_time_limits_count_from_the_due_time_by_the_clock_of_the_store(harness: Harness) -> None:
    # The clock of the store differs from the clock of the client.
    await harness.advance(3 * HOUR)
    past = await harness.now() - 10 * MINUTE

    def limited(*, key: str = "", delay: Micros = 0, at: Instant | None = None) -> NewRun:
        return a_run(key=key, delay=delay, at=at, start_within=20 * MINUTE, deadline=HOUR)

    batches = [
        [limited()],
        [limited(), limited()],
        [limited(), limited(delay=5 * MINUTE), limited(at=past)],
        [limited(key="a"), limited(key="b", delay=5 * MINUTE), limited(key="c", at=past)],
    ]
    for batch in batches:
        await harness.submit(*batch)
    await harness.advance(6 * MINUTE)
    await harness.stage()
    held = await harness.claim(await harness.worker())
    assert len(held) == sum(map(len, batches))
    assert [run.deadline for run in held] == [run.due + HOUR for run in held]
    await harness.complete(*(complete_release(run) for run in held))
    # Runs due in the past had ten minutes less, delayed ones five more.
    for later, expired in ((5 * MINUTE, 2), (10 * MINUTE, 5), (5 * MINUTE, 2)):
        await harness.advance(later)
        assert await harness.store.expire(100) == expired


async def test_a_run_carries_its_trace_context(harness: Harness) -> None:
    """The held run and the view have it, and no other run."""
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    recorded, plain = a_run(policy=RunPolicy(trace=trace)), a_run()
    await harness.submit(recorded, plain)
    assert (await harness.view(recorded.id)).policy.trace == trace
    held = {run.id: run.policy.trace for run in await harness.claim(await harness.worker())}
    assert held == {recorded.id: trace, plain.id: ""}
