"""Ordering keys: one run of a key at a time, in the order of their due times."""

import asyncio

import pytest

from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, SECOND
from mainspring.core.model.runs.completion import complete_cancel, complete_loss, complete_release, complete_success
from mainspring.core.model.runs.new_run import JobRef
from mainspring.core.model.runs.restored import KnownOutcome
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.job import JobState
from mainspring.core.ports.storage.access import Author
from tests.support.builders import a_job, a_policy, a_run, a_spec, every, some_runs
from tests.support.store_harness import Harness, ids

KEY = "video-1"


async def test_the_second_of_a_key_is_blocked_while_the_first_is_queued(harness: Harness) -> None:
    first, second = some_runs(2, key=KEY)
    [accepted] = await harness.submit(first)
    assert accepted.state is RunState.QUEUED
    [accepted] = await harness.submit(second)
    assert accepted.state is RunState.BLOCKED
    assert ids(await harness.claim(await harness.worker())) == [first.id]


async def test_the_second_of_a_key_is_blocked_while_the_first_is_running(harness: Harness) -> None:
    [held] = await harness.start(a_run(key=KEY))
    [accepted] = await harness.submit(a_run(key=KEY))
    assert accepted.state is RunState.BLOCKED
    assert await harness.claim(await harness.worker()) == []
    assert await harness.state(held.id) is RunState.RUNNING


async def test_the_second_of_a_key_is_blocked_while_the_first_waits_for_its_retry(harness: Harness) -> None:
    [held] = await harness.start(a_run(key=KEY))
    blocked = a_run(key=KEY)
    await harness.submit(blocked)
    await harness.fail(held)
    later = a_run(key=KEY)
    [accepted] = await harness.submit(later)
    assert accepted.state is RunState.BLOCKED
    assert await harness.states([held, blocked]) == [RunState.SCHEDULED, RunState.BLOCKED]
    await harness.advance(MINUTE)
    await harness.stage()
    assert ids(await harness.claim(await harness.worker())) == [held.id]
    assert await harness.states([blocked, later]) == [RunState.BLOCKED, RunState.BLOCKED]


async def test_a_retry_stays_ahead_of_a_delayed_run_that_comes_due_before_it(harness: Harness) -> None:
    [held] = await harness.start(a_run(key=KEY))
    delayed = a_run(key=KEY, delay=SECOND)
    await harness.submit(delayed)
    await harness.fail(held)
    await harness.advance(3 * SECOND)
    await harness.stage()
    assert await harness.states([held, delayed]) == [RunState.SCHEDULED, RunState.BLOCKED]
    await harness.advance(MINUTE)
    await harness.stage()
    assert await harness.states([held, delayed]) == [RunState.QUEUED, RunState.BLOCKED]


async def test_a_release_keeps_the_key(harness: Harness) -> None:
    [held] = await harness.start(a_run(key=KEY))
    blocked = a_run(key=KEY)
    await harness.submit(blocked)
    await harness.complete(complete_release(held))
    assert await harness.states([held, blocked]) == [RunState.QUEUED, RunState.BLOCKED]


async def test_a_release_with_a_delay_keeps_the_key(harness: Harness) -> None:
    [held] = await harness.start(a_run(key=KEY))
    blocked = a_run(key=KEY)
    await harness.submit(blocked)
    await harness.complete(complete_release(held, "unknown task", 10 * SECOND))
    assert await harness.states([held, blocked]) == [RunState.SCHEDULED, RunState.BLOCKED]
    await harness.advance(MINUTE)
    await harness.stage()
    assert await harness.states([held, blocked]) == [RunState.QUEUED, RunState.BLOCKED]


async def test_a_loss_keeps_the_key(harness: Harness) -> None:
    [held] = await harness.start(a_run(key=KEY))
    blocked = a_run(key=KEY)
    await harness.submit(blocked)
    await harness.complete(complete_loss(held, blamed=False))
    assert await harness.states([held, blocked]) == [RunState.QUEUED, RunState.BLOCKED]


@pytest.mark.parametrize("how", ["success", "failure", "cancel"])
async def test_the_end_of_a_key_holder_queues_the_next_run(harness: Harness, how: str) -> None:
    [held] = await harness.start(a_run(policy=a_policy(key=KEY, retries=0)))
    second, third = some_runs(2, key=KEY)
    await harness.submit(second, third)
    match how:
        case "success":
            await harness.succeed(held)
        case "failure":
            await harness.fail(held)
        case _:
            await harness.complete(complete_cancel(held))
    assert await harness.states([second, third]) == [RunState.QUEUED, RunState.BLOCKED]
    assert ids(await harness.claim(await harness.worker())) == [second.id]


async def test_blocked_runs_of_a_key_are_queued_in_the_order_of_due_time_and_id(harness: Harness) -> None:
    [held] = await harness.start(a_run(key=KEY))
    one, two, three, four = some_runs(4, key=KEY)
    now = await harness.now()
    early = a_run(key=KEY, at=now - HOUR)
    await harness.submit(two, one)
    await harness.advance(SECOND)
    await harness.submit(three)
    await harness.submit(early)
    await harness.advance(SECOND)
    await harness.submit(four)
    order = []
    worker = await harness.worker()
    await harness.succeed(held)
    while held_next := await harness.claim(worker):
        order += ids(held_next)
        await harness.succeed(*held_next)
    assert order == ids([early, one, two, three, four])


async def test_a_batch_of_one_key_is_queued_in_the_order_of_its_ids(harness: Harness) -> None:
    runs = some_runs(4, key=KEY)
    await harness.submit(*reversed(runs))
    assert await harness.states(runs) == [RunState.QUEUED] + [RunState.BLOCKED] * 3


async def test_priority_does_not_reorder_inside_a_key(harness: Harness) -> None:
    idle, urgent = a_run(key=KEY, priority=10), a_run(key=KEY, priority=1)
    await harness.submit(idle)
    await harness.submit(urgent)
    assert ids(await harness.claim(await harness.worker())) == [idle.id]


async def test_different_keys_do_not_wait_for_each_other(harness: Harness) -> None:
    runs = [a_run(key="a"), a_run(key="b"), a_run(key="a", tenant="acme"), a_run()]
    accepted = await harness.submit(*runs)
    assert [answer.state for answer in accepted] == [RunState.QUEUED] * 4


async def test_a_key_spans_queues(harness: Harness) -> None:
    accepted = await harness.submit(a_run(key=KEY, queue="a"))
    accepted += await harness.submit(a_run(key=KEY, queue="b", task="other"))
    assert [answer.state for answer in accepted] == [RunState.QUEUED, RunState.BLOCKED]


async def test_a_key_spans_shards(harness: Harness) -> None:
    first, second = a_run(key=KEY, shard=1), a_run(key=KEY, shard=2)
    [held] = await harness.start(first)
    await harness.submit(second)
    assert await harness.state(second.id) is RunState.BLOCKED
    await harness.succeed(held)
    assert await harness.state(second.id) is RunState.QUEUED


async def test_a_delayed_run_waits_for_its_key_when_it_comes_due(harness: Harness) -> None:
    delayed = a_run(key=KEY, delay=5 * MINUTE)
    await harness.submit(delayed)
    prompt = a_run(key=KEY)
    [accepted] = await harness.submit(prompt)
    assert accepted.state is RunState.QUEUED, "a scheduled run holds no key"
    await harness.advance(6 * MINUTE)
    staged = await harness.stage()
    assert (staged.runs, staged.queues) == (0, ())
    assert await harness.states([delayed, prompt]) == [RunState.BLOCKED, RunState.QUEUED]
    [held] = await harness.claim(await harness.worker())
    await harness.succeed(held)
    assert await harness.state(delayed.id) is RunState.QUEUED


async def test_a_delayed_run_with_a_key_is_not_early(harness: Harness) -> None:
    before = await harness.now()
    delayed, prompt = a_run(key=KEY, delay=5 * MINUTE), a_run(key=KEY)
    exact = a_run(key=KEY, at=before + 7 * MINUTE)
    await harness.submit(delayed, prompt, exact)
    view = await harness.view(delayed.id)
    assert before + 5 * MINUTE <= view.due <= await harness.now() + 5 * MINUTE
    assert (await harness.view(exact.id)).due == exact.at
    await harness.advance(4 * MINUTE)
    assert (await harness.stage()).runs == 0
    assert await harness.states([delayed, prompt, exact]) == [
        RunState.SCHEDULED,
        RunState.QUEUED,
        RunState.SCHEDULED,
    ]


async def test_a_delayed_run_takes_a_free_key_when_it_comes_due(harness: Harness) -> None:
    first, second = a_run(key=KEY, delay=5 * MINUTE), a_run(key=KEY, delay=5 * MINUTE)
    await harness.submit(first, second)
    await harness.advance(6 * MINUTE)
    assert (await harness.stage()).runs == 1
    assert await harness.states([first, second]) == [RunState.QUEUED, RunState.BLOCKED]
    assert (await harness.stage()).runs == 0


async def test_cancelling_the_key_holder_queues_the_next_run(harness: Harness) -> None:
    first, second = some_runs(2, key=KEY)
    await harness.submit(first, second)
    await harness.store.cancel([first.id])
    assert await harness.states([first, second]) == [RunState.CANCELLED, RunState.QUEUED]


async def test_cancelling_the_key_holder_between_two_attempts_queues_the_next_run(harness: Harness) -> None:
    [held] = await harness.start(a_run(key=KEY))
    second = a_run(key=KEY)
    await harness.submit(second)
    await harness.fail(held)
    await harness.store.cancel([held.id])
    assert await harness.states([held, second]) == [RunState.CANCELLED, RunState.QUEUED]


async def test_a_cancelling_key_holder_keeps_its_key_until_it_has_stopped(harness: Harness) -> None:
    [held] = await harness.start(a_run(key=KEY))
    second = a_run(key=KEY)
    await harness.submit(second)
    await harness.store.cancel([held.id])
    assert await harness.states([held, second]) == [RunState.CANCELLING, RunState.BLOCKED]
    await harness.complete(complete_cancel(held))
    assert await harness.states([held, second]) == [RunState.CANCELLED, RunState.QUEUED]


async def test_cancelling_a_run_blocked_by_a_key_keeps_the_order_of_the_others(harness: Harness) -> None:
    first, second, third = some_runs(3, key=KEY)
    [held] = await harness.start(first)
    await harness.submit(second, third)
    await harness.store.cancel([second.id])
    assert await harness.states([second, third]) == [RunState.CANCELLED, RunState.BLOCKED]
    await harness.succeed(held)
    assert await harness.state(third.id) is RunState.QUEUED


@pytest.mark.parametrize("holder", ["queued", "running", "between two attempts"])
async def test_cancelling_a_blocked_run_does_not_free_the_key(harness: Harness, holder: str) -> None:
    policy = a_policy(key="k", pause=MINUTE)
    first, second, third = (a_run(policy=policy) for _ in range(3))
    await harness.submit(first, second, third)
    if holder != "queued":
        held = await harness.claim(await harness.worker())
        if holder == "between two attempts":
            await harness.fail(*held)
    await harness.store.cancel([second.id])
    assert await harness.state(third.id) is RunState.BLOCKED


async def test_cancelling_the_key_holder_and_all_blocked_runs_frees_the_key(harness: Harness) -> None:
    runs = some_runs(4, key=KEY)
    await harness.submit(*runs)
    answer = await harness.store.cancel(ids(runs))
    assert answer == dict.fromkeys(ids(runs), RunState.CANCELLED)
    [accepted] = await harness.submit(a_run(key=KEY))
    assert accepted.state is RunState.QUEUED


@pytest.mark.parametrize("end", ["cancel", "finish", "expiry", "job cancelled"])
async def test_a_blocked_run_that_ends_with_the_key_holder_is_not_queued(harness: Harness, end: str) -> None:
    """The blocked runs end first, wherever the holder of their key is named."""
    policy = a_policy(key="k")
    job = await harness.put(a_job(a_spec(schedule=every(DAY), policy=policy)))
    ref = JobRef(id=job.id, version=job.version)
    runs = [a_run(policy=policy, start_within=SECOND, job=ref) for _ in range(4)]
    for run in runs:
        await harness.submit(run)
    await harness.store.attach_reader("reader")
    match end:
        case "cancel":
            await harness.store.cancel(ids(runs))
        case "finish":
            await harness.store.finish([KnownOutcome(run=run.id) for run in runs], Author("ada"))
        case "expiry":
            await harness.move_clock(MINUTE)
            assert await harness.store.expire(10) == len(runs)
        case _:
            await harness.store.set_jobs_state([job.id], JobState.CANCELLED)
    events = [(kind, subjects) for kind, subjects in await harness.unread_events("reader") if kind.startswith("run.")]
    assert len({kind for kind, _ in events}) == 1
    assert sorted(run for _, subjects in events for run in subjects) == ids(runs)


async def test_the_expiry_of_the_key_holder_queues_the_next_run(harness: Harness) -> None:
    first = a_run(key=KEY, start_within=MINUTE)
    second = a_run(key=KEY)
    await harness.submit(first)
    await harness.submit(second)
    await harness.advance(2 * MINUTE)
    assert await harness.store.expire(10) == 1
    assert await harness.states([first, second]) == [RunState.SKIPPED, RunState.QUEUED]


async def test_the_deadline_of_the_key_holder_between_two_attempts_queues_the_next_run(harness: Harness) -> None:
    [held] = await harness.start(a_run(policy=a_policy(key=KEY), deadline=5 * SECOND))
    second = a_run(key=KEY)
    await harness.submit(second)
    await harness.fail(held)
    await harness.advance(MINUTE)
    assert await harness.store.expire(10) == 1
    assert await harness.states([held, second]) == [RunState.FAILED, RunState.QUEUED]


async def test_a_run_blocked_by_a_key_may_expire(harness: Harness) -> None:
    first = a_run(key=KEY)
    second = a_run(key=KEY, start_within=MINUTE)
    third = a_run(key=KEY)
    [held] = await harness.start(first)
    await harness.submit(second)
    await harness.submit(third)
    await harness.advance(2 * MINUTE)
    assert await harness.store.expire(10) == 1
    assert await harness.states([second, third]) == [RunState.SKIPPED, RunState.BLOCKED]
    await harness.succeed(held)
    assert await harness.state(third.id) is RunState.QUEUED


async def test_a_batch_of_completions_queues_the_next_run_of_each_key(harness: Harness) -> None:
    firsts = [a_run(key=f"video-{number}") for number in range(20)]
    seconds = [a_run(key=f"video-{number}") for number in range(20)]
    held = await harness.start(*firsts)
    await harness.submit(*seconds)
    await harness.succeed(*reversed(held))
    assert set(await harness.states(seconds)) == {RunState.QUEUED}


async def test_a_run_released_by_its_key_is_ranked_by_the_time_of_release(harness: Harness) -> None:
    [held] = await harness.start(a_run(key=KEY))
    second = a_run(key=KEY)
    await harness.submit(second)
    await harness.advance(MINUTE)
    plain = a_run()
    await harness.submit(plain)
    await harness.advance(MINUTE)
    await harness.succeed(held)
    assert ids(await harness.claim(await harness.worker())) == [plain.id, second.id]


async def test_a_submit_concurrent_with_a_completion_of_its_key_is_not_left_blocked(harness: Harness) -> None:
    """The submit sees a held key and blocks, the completion sees no blocked run: without a lock it stays blocked."""
    worker = await harness.worker()
    await harness.submit(a_run(key=KEY))
    for _ in range(100):
        [held] = await harness.claim(worker)
        following = a_run(key=KEY)
        await asyncio.gather(harness.submit(following), harness.complete(complete_success(held, None)))
        assert await harness.state(following.id) is RunState.QUEUED


async def test_concurrent_workers_run_each_key_one_at_a_time_in_order(harness: Harness) -> None:
    keys = [f"video-{number}" for number in range(5)]
    submitted: dict[str, list[str]] = {key: [] for key in keys}
    finished: dict[str, list[str]] = {key: [] for key in keys}

    async def submit(key: str) -> None:
        for _ in range(12):
            run = a_run(key=key)
            submitted[key].append(run.id)
            await harness.submit(run)

    async def work() -> None:
        worker = await harness.worker()
        while sum(map(len, finished.values())) < 60:
            for held in await harness.claim(worker, 3):
                finished[held.policy.ordering_key].append(held.id)
                await harness.succeed(held)
            await asyncio.sleep(0)

    await asyncio.gather(*map(submit, keys), *(work() for _ in range(3)))
    assert finished == submitted
