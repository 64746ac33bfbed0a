"""Limits: a maximum of concurrent runs of a key, and of starts in a period."""

import asyncio
from collections import Counter
from random import Random

import msgspec
import pytest

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, SECOND, Micros
from mainspring.core.model.limits.limits import Limit, LimiterState, build_limiters, left, passed, recent, started
from mainspring.core.model.runs.completion import (
    CompletionAnswer,
    complete_cancel,
    complete_loss,
    complete_release,
    complete_success,
)
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.model.schedules.job import JobState, Overlap
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.upkeep import Retention
from mainspring.core.store import Demand
from tests.support.boundaries import on_every_claim_path, prepare_claim_path
from tests.support.builders import a_job, a_limit, a_policy, a_run, a_spec, every
from tests.support.store_harness import SHORT_LEASE, Harness, ids
from tests.support.waiting import DEADLINE_SECONDS

QUEUED, BLOCKED, RUNNING, SCHEDULED = RunState.QUEUED, RunState.BLOCKED, RunState.RUNNING, RunState.SCHEDULED

ONE = (a_limit(),)
READER = "dashboard"


def limited(number: int, *limits: Limit) -> list[NewRun]:
    return [a_run(limits=limits or ONE) for _ in range(number)]


async def test_runs_beyond_the_limit_of_a_key_are_blocked(harness: Harness) -> None:
    runs = limited(5, a_limit(most=3))
    accepted = await harness.submit(*runs)
    assert [answer.state for answer in accepted] == [QUEUED] * 3 + [BLOCKED] * 2
    assert ids(await harness.claim(await harness.worker())) == ids(runs[:3])
    [late] = await harness.submit(*limited(1, a_limit(most=3)))
    assert late.state is BLOCKED


async def test_a_batch_is_admitted_in_the_order_of_due_time_and_id(harness: Harness) -> None:
    runs = limited(3)
    early = a_run(limits=ONE, at=await harness.now() - HOUR)
    await harness.submit(*reversed(runs), early)
    assert await harness.states([early, *runs]) == [QUEUED, BLOCKED, BLOCKED, BLOCKED]


@pytest.mark.parametrize("seed", range(4))
async def test_claims_count_starts_as_the_rule_does(harness: Harness, seed: int) -> None:
    random = Random(seed)
    limits = a_limit("narrow", 3, 90 * SECOND), a_limit("wide", 9, 7 * MINUTE), a_limit("most", 12)
    limiters = build_limiters("default", "greet", limits, None)
    states = dict.fromkeys((limiter.number for limiter in limiters), LimiterState())
    worker = await harness.worker()
    await harness.freeze_clock()
    for _ in range(12):
        submitted = await harness.submit(*limited(random.randrange(3), *limits))
        held = await harness.claim(worker, random.randrange(1, 4))
        now = await harness.now()
        for limiter in limiters:
            after = states[limiter.number]
            for _ in [answer for answer in submitted if answer.state is QUEUED]:
                after = passed(limiter, after)
            for _ in held:
                after = started(limiter, after, now)
            stored, _ = await harness.store.limiter(limiter.number, 1)
            assert (stored.used, recent(limiter, stored, now)) == (after.used, recent(limiter, after, now))
            for _ in held:
                after = left(limiter, after, now, "succeeded", started_at=now)
            states[limiter.number] = after
        # Blocked runs would be admitted when the completion makes room for them.
        await harness.store.cancel([answer.id for answer in submitted if answer.state is BLOCKED])
        await harness.succeed(*held)
        await harness.move_clock(random.randrange(40) * SECOND)


async def test_a_run_that_is_examined_twice_occupies_its_limit_once(harness: Harness) -> None:
    def number_of(key: str) -> int:
        return build_limiters("default", "greet", (a_limit(key),), None)[0].number

    low, middle, high = sorted(("a", "b", "c"), key=number_of)
    first, second, third = a_limit(low, 2), a_limit(middle, 1), a_limit(high, 1)
    holders = a_run(limits=(first,)), a_run(limits=(first,)), a_run(limits=(second,)), a_run(limits=(third,))
    moving, behind = a_run(limits=(second, third)), a_run(limits=(second,))
    of_both, last = a_run(limits=(first, second)), a_run(limits=(first,))
    for run in (*holders, moving, behind, of_both, last):
        await harness.submit(run)
    held = await harness.claim(await harness.worker())
    assert ids(held) == ids(holders)
    # The first run of the second line moves to the third limit. So the run of both limits is decided only when the
    # rest of that line was examined, and the last run with it.
    await harness.succeed(*held[:3])
    assert await harness.states([moving, behind, of_both, last]) == [BLOCKED, QUEUED, BLOCKED, QUEUED]
    state, _ = await harness.store.limiter(number_of(low), 1)
    assert state.used == 1


async def test_a_run_does_not_overtake_one_that_waits_behind_a_run_of_two_limits(harness: Harness) -> None:
    keys = sorted(("one", "other"), key=lambda key: build_limiters("default", "greet", (a_limit(key),), None)[0].number)
    first, second = (a_limit(key) for key in keys)
    ahead, elsewhere = a_run(limits=(first,), key="k"), a_run(limits=(second,))
    of_both, of_one = a_run(limits=(first, second)), a_run(limits=(first,))
    next_of_key = a_run(limits=(first,), key="k")
    for run in (ahead, elsewhere, of_both, of_one, next_of_key):
        await harness.submit(run)
    held = await harness.claim(await harness.worker())
    assert ids(held) == ids([ahead, elsewhere])
    # The first run in line moves to its other limit, and the next of the key arrives behind the second one.
    await harness.succeed(held[0])
    assert await harness.states([of_both, of_one, next_of_key]) == [BLOCKED, QUEUED, BLOCKED]


async def test_the_view_of_a_blocked_run_names_its_limiter(harness: Harness) -> None:
    first, second = limited(2)
    await harness.submit(first, second)
    [gate] = build_limiters("default", "greet", ONE, None)
    assert (await harness.view(first.id)).limiter is None
    view = await harness.view(second.id)
    assert (view.limiter, view.policy.limits) == (gate.number, ONE)


async def test_a_run_that_two_limits_block_names_the_first_limiter(harness: Harness) -> None:
    limits = a_limit("one"), a_limit("other")
    await harness.submit(*(a_run(limits=(limit,)) for limit in limits))
    both = a_run(limits=limits)
    await harness.submit(both)
    first, second = build_limiters("default", "greet", limits, None)
    assert (await harness.view(both.id)).limiter == first.number < second.number


async def test_limiters_are_separate_by_key_tenant_and_kind_but_shared_by_tasks_and_queues(harness: Harness) -> None:
    accepted = await harness.submit(
        a_run(limits=ONE),
        a_run(limits=(a_limit("other"),)),
        a_run(limits=ONE, tenant="acme"),
        a_run(limits=(a_limit(per=HOUR),)),
        a_run(limits=(a_limit(per=MINUTE),)),
        a_run(),
        a_run(limits=ONE, task="other", queue="other", shard=3),
    )
    assert [answer.state for answer in accepted] == [QUEUED] * 6 + [BLOCKED]


async def test_a_completion_admits_the_first_blocked_run(harness: Harness) -> None:
    runs = limited(4)
    [held] = await harness.start(runs[0])
    await harness.submit(*reversed(runs[1:]))
    await harness.succeed(held)
    assert await harness.states(runs[1:]) == [QUEUED, BLOCKED, BLOCKED]
    worker = await harness.worker()
    order = []
    while claimed := await harness.claim(worker):
        order += ids(claimed)
        await harness.succeed(*claimed)
    assert order == ids(runs[1:])


async def test_a_batch_of_completions_admits_as_many_blocked_runs(harness: Harness) -> None:
    limits = [a_limit(f"customer-{number}", 2) for number in range(10)]
    held = await harness.start(*(run for limit in limits for run in limited(2, limit)))
    waiting = [run for limit in limits for run in limited(3, limit)]
    await harness.submit(*waiting)
    await harness.succeed(*held)
    assert await harness.states(waiting) == [QUEUED, QUEUED, BLOCKED] * 10


async def submit_admitted(harness: Harness, **more: object) -> NewRun:
    run = a_run(limits=ONE, **more)  # type: ignore[arg-type]
    [accepted] = await harness.submit(run)
    assert accepted.state is QUEUED
    return run


@pytest.mark.parametrize(
    "way",
    [
        "success",
        "failure",
        "a retry waits",
        "timeout",
        "at-most-once is lost",
        "released for later",
        "cancelled",
        "cancelled instead of tried again",
        "cancelled while queued",
        "expired",
        "deadline while queued",
        "deadline while it waits to be tried again",
        "the only worker for it left",
        "edited to be later",
        "edited to have another key",
        "edited to have no limit",
        "its job was cancelled",
    ],
)
async def test_every_way_to_leave_a_limiter_admits_the_next_run(harness: Harness, way: str) -> None:
    waiting = a_run(limits=ONE)

    async def started(**more: object) -> HeldRun:
        [held] = await harness.start(a_run(limits=ONE, **more))  # type: ignore[arg-type]
        await harness.submit(waiting)
        return held

    match way:
        case "success":
            await harness.succeed(await started())
        case "failure":
            await harness.fail(await started(policy=a_policy(limits=ONE, retries=0)))
        case "a retry waits":
            await harness.fail(await started())
        case "timeout":
            held = await started(policy=a_policy(limits=ONE, retries=0))
            await harness.fail(held, error="too slow")
        case "at-most-once is lost":
            await harness.complete(
                complete_loss(await started(policy=a_policy(limits=ONE, at_most_once=True)), blamed=True)
            )
        case "released for later":
            await harness.complete(complete_release(await started(), "unknown task", MINUTE))
        case "cancelled":
            held = await started()
            await harness.store.cancel([held.id])
            assert await harness.state(waiting.id) is BLOCKED, "it still runs"
            await harness.complete(complete_cancel(held))
        case "cancelled instead of tried again":
            held = await started()
            await harness.store.cancel([held.id])
            await harness.fail(held)
        case "cancelled while queued":
            run = await submit_admitted(harness)
            await harness.submit(waiting)
            await harness.store.cancel([run.id])
        case "expired" | "deadline while queued":
            late = {"start_within": MINUTE} if way == "expired" else {"deadline": MINUTE}
            await submit_admitted(harness, **late)
            await harness.submit(waiting)
            await harness.advance(2 * MINUTE)
            assert await harness.store.expire(10) == 1
        case "deadline while it waits to be tried again":
            held = await started(deadline=MINUTE)
            await harness.complete(complete_release(held, "unknown task", 5 * MINUTE))
            await harness.advance(2 * MINUTE)
            assert await harness.store.expire(10) == 1
        case "the only worker for it left":
            worker = await harness.worker()
            await submit_admitted(harness, target=worker)
            await harness.submit(waiting)
            await harness.store.close_session(worker)
            assert await harness.store.expire(10) == 1
        case "edited to be later" | "edited to have another key" | "edited to have no limit":
            run = await submit_admitted(harness)
            await harness.submit(waiting)
            edited = {
                "edited to be later": a_run(id=run.id, limits=ONE, delay=HOUR),
                "edited to have another key": a_run(id=run.id, limits=(a_limit("other"),)),
                "edited to have no limit": a_run(id=run.id),
            }[way]
            assert await harness.store.edit_run(edited, Author("ada")) is not None
            assert await harness.state(run.id) is (SCHEDULED if way == "edited to be later" else QUEUED)
        case "its job was cancelled":
            minutely = every(MINUTE, start=await harness.now() + 30 * SECOND)
            job = await harness.put(a_job(a_spec(schedule=minutely, policy=a_policy(limits=ONE))))
            await harness.advance(MINUTE)
            [fired] = await harness.fire_due()
            assert (fired.runs, fired.queues) == (1, ("default",))
            await harness.submit(waiting)
            assert await harness.state(waiting.id) is BLOCKED
            await harness.store.set_jobs_state([job.id], JobState.CANCELLED)
        case _:
            raise AssertionError(way)
    assert await harness.state(waiting.id) is QUEUED
    [last] = limited(1)
    await harness.submit(last)
    assert await harness.state(last.id) is BLOCKED, "the limit was freed once"


async def test_an_unreadable_run_leaves_its_limiter(harness: Harness) -> None:
    run = await submit_admitted(harness)
    [waiting] = limited(1)
    await harness.submit(waiting)
    await harness.spoil_policy(run.id)
    worker = await harness.worker()
    await harness.claim(worker)
    assert await harness.states([run, waiting]) == [RunState.FAILED, QUEUED]


@pytest.mark.parametrize("how", ["lost", "released", "the claim's answer was lost"])
async def test_a_returned_run_is_admitted_again_by_its_due_time(harness: Harness, how: str) -> None:
    first, second = limited(2)
    await harness.submit(first, second)
    worker = await harness.worker()
    [held] = await harness.claim(worker)
    match how:
        case "lost":
            await harness.complete(complete_loss(held, blamed=False))
        case "released":
            await harness.complete(complete_release(held))
        case _:
            heartbeat = await harness.store.heartbeat(worker, DAY, [], [], harness.last_claim(worker))
            assert heartbeat.returned == 1
    assert await harness.states([first, second]) == [QUEUED, BLOCKED]
    [again] = await harness.claim(worker)
    await harness.succeed(again)
    assert await harness.state(second.id) is QUEUED


async def test_a_returned_run_waits_behind_runs_due_before_it(harness: Harness) -> None:
    now = await harness.now()
    [held] = await harness.start(a_run(limits=ONE, at=now - MINUTE))
    before = a_run(limits=ONE, at=now - HOUR)
    await harness.submit(before)
    await harness.complete(complete_release(held))
    assert await harness.states([held, before]) == [BLOCKED, QUEUED]
    [other] = await harness.claim(await harness.worker())
    await harness.succeed(other)
    assert await harness.state(held.id) is QUEUED
    assert (await harness.view(held.id)).attempt == 0


async def test_a_retry_needs_its_limit_again_when_it_comes_due(harness: Harness) -> None:
    [held] = await harness.start(a_run(limits=ONE))
    second, third = limited(2)
    await harness.submit(second, third)
    await harness.fail(held)
    assert await harness.states([held, second, third]) == [SCHEDULED, QUEUED, BLOCKED]
    await harness.advance(MINUTE)
    staged = await harness.stage()
    assert (staged.runs, await harness.state(held.id)) == (0, BLOCKED)
    worker = await harness.worker()
    order = []
    while claimed := await harness.claim(worker):
        order += ids(claimed)
        await harness.succeed(*claimed)
    assert order == [second.id, third.id, held.id]


async def test_a_delayed_run_needs_its_limit_when_it_comes_due(harness: Harness) -> None:
    delayed = a_run(limits=ONE, delay=5 * MINUTE)
    also = a_run(limits=ONE, delay=5 * MINUTE)
    [accepted, _] = await harness.submit(delayed, also)
    assert accepted.state is SCHEDULED
    await harness.advance(6 * MINUTE)
    staged = await harness.stage()
    assert (staged.runs, staged.queues) == (1, ("default",))
    assert await harness.states([delayed, also]) == [QUEUED, BLOCKED]


async def test_cancelling_a_blocked_run_keeps_the_order_of_the_others(harness: Harness) -> None:
    first, second, third = limited(3)
    [held] = await harness.start(first)
    await harness.submit(second, third)
    await harness.store.cancel([second.id])
    assert await harness.states([second, third]) == [RunState.CANCELLED, BLOCKED]
    await harness.succeed(held)
    assert await harness.state(third.id) is QUEUED


async def test_cancelling_all_of_a_key_leaves_it_free(harness: Harness) -> None:
    runs = limited(4)
    await harness.submit(*runs)
    await harness.store.attach_reader(READER)
    answer = await harness.store.cancel(ids(runs))
    assert answer == dict.fromkeys(ids(runs), RunState.CANCELLED)
    assert {kind for kind, _ in await harness.unread_events(READER)} == {"run.cancelled"}, (
        "none was queued to be cancelled"
    )
    [accepted] = await harness.submit(*limited(1))
    assert accepted.state is QUEUED


async def test_a_blocked_run_may_expire(harness: Harness) -> None:
    await submit_admitted(harness)
    waiting = a_run(limits=ONE, start_within=MINUTE)
    await harness.submit(waiting)
    await harness.advance(2 * MINUTE)
    assert await harness.store.expire(10) == 1
    assert await harness.state(waiting.id) is RunState.SKIPPED


async def test_a_run_blocked_by_one_limit_does_not_hold_another(harness: Harness) -> None:
    a, b = a_limit("a"), a_limit("b")
    [held] = await harness.start(*limited(1, a))
    both = a_run(limits=(a, b))
    only_b = a_run(limits=(b,))
    accepted = await harness.submit(both) + await harness.submit(only_b)
    assert [answer.state for answer in accepted] == [BLOCKED, QUEUED]
    await harness.succeed(held)
    assert await harness.states([both, only_b]) == [BLOCKED, QUEUED], "it is blocked by the other limit now"
    [another_a] = await harness.submit(*limited(1, a))
    assert another_a.state is QUEUED
    for _ in range(2):
        for claimed in await harness.claim(await harness.worker()):
            await harness.succeed(claimed)
    assert await harness.state(both.id) is RunState.SUCCEEDED


async def test_limits_in_opposite_orders_do_not_deadlock(harness: Harness) -> None:
    a, b = a_limit("a"), a_limit("b")
    runs = [a_run(limits=(a, b) if number % 2 else (b, a)) for number in range(10)]
    await harness.submit(*runs)
    worker = await harness.worker()
    for _ in runs:
        [held] = await harness.claim(worker)
        await harness.succeed(held)
    assert set(await harness.states(runs)) == {RunState.SUCCEEDED}


async def test_each_run_counts_by_its_own_limit_and_overtakes_no_blocked_run(harness: Harness) -> None:
    held = await harness.start(*limited(2, a_limit(most=2)))
    small, large = a_run(limits=(a_limit(most=1),)), a_run(limits=(a_limit(most=5),))
    await harness.submit(small)
    await harness.submit(large)
    assert await harness.states([small, large]) == [BLOCKED, BLOCKED]
    await harness.succeed(held[0])
    assert await harness.states([small, large]) == [BLOCKED, BLOCKED]
    await harness.succeed(held[1])
    assert await harness.states([small, large]) == [QUEUED, QUEUED]


async def test_a_run_holds_its_ordering_key_while_it_is_blocked_by_a_limit(harness: Harness) -> None:
    [held] = await harness.start(*limited(1))
    first, second = (a_run(policy=a_policy(key="video", limits=ONE)) for _ in range(2))
    free = a_run(key="video")
    await harness.submit(first, second)
    await harness.submit(free)
    assert await harness.states([first, second, free]) == [BLOCKED] * 3
    views = [await harness.view(run.id) for run in (first, second)]
    assert [view.limiter is not None for view in views] == [True, False]
    await harness.succeed(held)
    assert await harness.states([first, second, free]) == [QUEUED, BLOCKED, BLOCKED]
    [claimed] = await harness.claim(await harness.worker())
    [between] = limited(1)
    await harness.submit(between)
    await harness.succeed(claimed)
    assert await harness.states([second, free, between]) == [QUEUED, BLOCKED, BLOCKED], "the second was due before it"


async def test_cancelling_a_run_blocked_by_a_limit_releases_its_ordering_key(harness: Harness) -> None:
    await submit_admitted(harness)
    first, second = a_run(policy=a_policy(key="video", limits=ONE)), a_run(key="video")
    await harness.submit(first, second)
    await harness.store.cancel([first.id])
    assert await harness.states([first, second]) == [RunState.CANCELLED, QUEUED]


async def test_overlap_queue_counts_a_run_blocked_by_a_limit_as_active(harness: Harness) -> None:
    await submit_admitted(harness)
    minutely = every(MINUTE, start=await harness.now() + 30 * SECOND)
    job = await harness.put(a_job(a_spec(schedule=minutely, overlap=Overlap.QUEUE, policy=a_policy(limits=ONE))))
    decisions = []
    for _ in range(3):
        await harness.advance(MINUTE)
        await harness.fire_due()
    decisions = [entry.decision for entry in await harness.ticks(job.id)]
    assert decisions == ["run", "run", "skipped"]


# Rate limits


async def test_a_rate_limit_bounds_the_starts_in_a_period(harness: Harness) -> None:
    limit = a_limit(most=3, per=HOUR)
    runs = limited(7, limit)
    await harness.submit(*runs)
    assert await harness.states(runs) == [QUEUED] * 3 + [BLOCKED] * 4
    worker = await harness.worker()
    held = await harness.claim(worker)
    await harness.succeed(*held)
    assert await harness.states(runs[3:]) == [BLOCKED] * 4, "a started run counts, whatever its outcome"
    await harness.advance(30 * MINUTE)
    assert (await harness.stage()).runs == 0
    await harness.advance(31 * MINUTE)
    staged = await harness.stage()
    assert (staged.runs, staged.queues) == (3, ("default",))
    assert await harness.states(runs[3:]) == [QUEUED] * 3 + [BLOCKED]


async def test_a_queued_run_counts_in_a_rate_limit_until_it_starts(harness: Harness) -> None:
    limit = a_limit(most=2, per=MINUTE)
    runs = limited(4, limit)
    await harness.submit(*runs)
    await harness.advance(HOUR)
    assert (await harness.stage()).runs == 0, "the two queued runs still count"
    worker = await harness.worker()
    [held] = await harness.claim(worker, 1)
    await harness.advance(2 * MINUTE)
    assert (await harness.stage()).runs == 1
    assert await harness.states(runs) == [RUNNING, QUEUED, QUEUED, BLOCKED]
    await harness.succeed(held)
    assert await harness.state(runs[3].id) is BLOCKED


@pytest.mark.parametrize(("after", "state"), [(HOUR - 1, BLOCKED), (HOUR, QUEUED)])
async def test_pruning_keeps_the_starts_of_the_last_period(harness: Harness, after: Micros, state: RunState) -> None:
    await harness.freeze_clock()
    limit = a_limit(per=HOUR)
    await harness.succeed(*await harness.start(*limited(1, limit)))
    await harness.move_clock(after)
    await harness.store.prune(Retention(), 100)
    [accepted] = await harness.submit(*limited(1, limit))
    assert accepted.state is state


async def test_a_run_that_ends_before_its_start_does_not_count_in_the_period(harness: Harness) -> None:
    runs = limited(2, a_limit(per=HOUR))
    await harness.submit(*runs)
    await harness.store.cancel([runs[0].id])
    assert await harness.state(runs[1].id) is QUEUED


async def test_a_retry_counts_as_another_start_in_a_rate_limit(harness: Harness) -> None:
    limit = a_limit(most=2, per=HOUR)
    [held] = await harness.start(*limited(1, limit))
    await harness.fail(held)
    await harness.advance(MINUTE)
    assert (await harness.stage()).runs == 1
    [again] = await harness.claim(await harness.worker())
    await harness.fail(again)
    await harness.advance(MINUTE)
    assert (await harness.stage()).runs == 0
    assert await harness.state(held.id) is BLOCKED
    await harness.advance(HOUR)
    assert (await harness.stage()).runs == 1


async def test_a_concurrency_and_a_rate_limit_apply_together(harness: Harness) -> None:
    limits = (a_limit(most=2), a_limit("rate", 3, HOUR))
    runs = [a_run(limits=limits) for _ in range(5)]
    await harness.submit(*runs)
    worker = await harness.worker()
    started = []
    while held := await harness.claim(worker):
        assert len(held) <= 2
        started += ids(held)
        await harness.succeed(*held)
    assert started == ids(runs[:3])
    await harness.advance(HOUR + MINUTE)
    await harness.stage()
    assert await harness.states(runs[3:]) == [QUEUED, QUEUED]


async def test_many_blocked_runs_start_period_by_period(harness: Harness) -> None:
    runs = limited(25, a_limit(most=10, per=MINUTE))
    await harness.submit(*runs)
    worker = await harness.worker()
    counts = []
    for _ in range(3):
        held = await harness.claim(worker)
        counts.append(len(held))
        await harness.succeed(*held)
        await harness.advance(61 * SECOND)
        await harness.stage()
    assert counts == [10, 10, 5]


# Combinations


async def test_a_lost_run_keeps_its_limit_until_its_loss_is_reported(harness: Harness) -> None:
    first, second = limited(2)
    await harness.submit(first, second)
    worker = await harness.worker(ttl=SHORT_LEASE)
    await harness.claim(worker)
    await harness.advance(SHORT_LEASE + SECOND)
    lost = await harness.store.lost_runs(10)
    assert await harness.state(second.id) is BLOCKED, "it may still run"
    await harness.complete(*(complete_loss(run, blamed=True) for run in lost))
    worker = await harness.worker()
    for run in (first, second):
        [held] = await harness.claim(worker)
        assert held.id == run.id
        await harness.succeed(held)


async def test_a_repeated_completion_frees_a_limit_only_once(harness: Harness) -> None:
    [held] = await harness.start(*limited(1))
    waiting = limited(2)
    await harness.submit(*waiting)
    completion = complete_success(held, None)
    assert await harness.complete(completion) == [CompletionAnswer.ACCEPTED]
    assert await harness.complete(completion) == [CompletionAnswer.DUPLICATE]
    assert await harness.complete(complete_cancel(held)) == [CompletionAnswer.STALE]
    assert await harness.states(waiting) == [QUEUED, BLOCKED]


async def test_lets_go_is_set_for_a_run_with_limits(harness: Harness) -> None:
    [limited_run, plain] = await harness.start(*limited(1), a_run())
    assert (limited_run.unblocks_others, plain.unblocks_others) == (True, False)


async def test_an_admitted_run_emits_run_queued(harness: Harness) -> None:
    await harness.store.attach_reader(READER)
    first, second = limited(2)
    await harness.submit(first, second)
    [held] = await harness.claim(await harness.worker())
    await harness.complete(complete_release(held))
    [held] = await harness.claim(await harness.worker())
    await harness.succeed(held)
    events = [(kind, run) for kind, runs in await harness.unread_events(READER) for run in runs]
    assert events == [
        ("run.submitted", first.id),
        ("run.submitted", second.id),
        ("run.started", first.id),
        ("run.released", first.id),
        ("run.started", first.id),
        ("run.succeeded", first.id),
        ("run.queued", second.id),
    ]


async def test_an_edited_run_keeps_its_limit(harness: Harness) -> None:
    first, second = limited(2)
    await harness.submit(first, second)
    due = (await harness.view(first.id)).due
    edited = a_run(id=first.id, limits=ONE, at=due, priority=1)
    answer = await harness.store.edit_run(edited, Author("ada"))
    assert answer is not None
    assert answer.state is QUEUED
    assert await harness.states([first, second]) == [QUEUED, BLOCKED]
    edited = a_run(id=second.id, limits=(a_limit(most=2),), at=(await harness.view(second.id)).due)
    answer = await harness.store.edit_run(edited, Author("ada"))
    assert answer is not None
    assert answer.state is QUEUED


async def test_the_history_of_a_limited_run_may_be_pruned(harness: Harness) -> None:
    [held] = await harness.start(*limited(1, a_limit(), a_limit("rate", per=HOUR)))
    await harness.succeed(held)
    await harness.advance(40 * DAY)
    await harness.store.tidy()
    while await harness.store.prune(Retention(), 1_000):
        pass
    # Due by the time of the store, which is far ahead of the time in the ids.
    late = a_run(limits=(a_limit(), a_limit("rate", per=HOUR)), at=await harness.now())
    [accepted] = await harness.submit(late)
    assert accepted.state is QUEUED


async def test_a_submit_concurrent_with_a_completion_is_not_left_blocked(harness: Harness) -> None:
    worker = await harness.worker()
    await harness.submit(*limited(1))
    for _ in range(50):
        [held] = await harness.claim(worker)
        [following] = limited(1)
        await asyncio.gather(harness.submit(following), harness.complete(complete_success(held, None)))
        assert await harness.state(following.id) is QUEUED


async def test_concurrent_workers_never_exceed_a_limit(harness: Harness) -> None:
    limits = [a_limit(f"customer-{number}", 2) for number in range(4)]
    inside: Counter[str] = Counter()
    done: list[RunId] = []
    number = 8 * 3 * 4

    async def submit(place: int) -> None:
        for turn in range(8):
            chosen = [limits[(place + turn) % 4]]
            if turn % 3 == 0:
                chosen.append(limits[(place + turn + 1) % 4])
            await harness.submit(*(a_run(limits=tuple(chosen)) for _ in range(3)))

    async def work() -> None:
        worker = await harness.worker()
        while len(done) < number:
            held = await harness.claim_from(worker, Demand("default", 3))
            keys = [limit.key for run in held for limit in run.policy.limits]
            inside.update(keys)
            assert max(inside.values(), default=0) <= 2
            await asyncio.sleep(0)
            inside.subtract(keys)
            await harness.succeed(*held)
            done.extend(ids(held))

    async with asyncio.timeout(DEADLINE_SECONDS):
        await asyncio.gather(*map(submit, range(4)), *(work() for _ in range(3)))


async def test_a_limiter_can_be_read(harness: Harness) -> None:
    limit, rate = a_limit(most=2), a_limit("rate", 5, HOUR)
    runs = limited(4, limit, rate)
    await harness.submit(*runs)
    [held] = await harness.claim(await harness.worker(), 1)
    gates = {gate.kind: gate.number for gate in build_limiters("default", "greet", (limit, rate), None)}
    state, inside = await harness.store.limiter(gates[1], 10)
    assert (state.used, inside) == (2, ids(runs[:2]))
    state, inside = await harness.store.limiter(gates[2], 1)
    assert (state.used, state.times, inside) == (1, (held.started_at,), ids(runs[:1]))
    state, inside = await harness.store.limiter(1, 10)
    assert (state.used, state.times, inside) == (0, (), [])


@pytest.mark.parametrize("key", ["", "key"], ids=["plain", "ordering key"])
async def test_a_tick_with_a_limit_queues_no_other_run_that_is_due(harness: Harness, key: str) -> None:
    minutely = every(MINUTE, start=await harness.now() + MINUTE)
    await harness.put(a_job(a_spec(schedule=minutely, policy=a_policy(key=key, limits=ONE))))
    other = a_run(delay=MINUTE)
    await harness.submit(other)
    await harness.move_clock(MINUTE)
    [fired] = await harness.fire_due()
    assert fired.runs == 1
    assert await harness.state(other.id) is SCHEDULED


@on_every_claim_path
async def test_every_claim_path_counts_the_starts_of_each_limit_per_period(harness: Harness, path: str) -> None:
    """Two runs of one limit and one of another start together, so each admits a different number afterwards."""
    way = await prepare_claim_path(harness, path)
    two, one = a_limit("two", 3, HOUR), a_limit("one", 3, 2 * HOUR)

    def a_run_with(limit: Limit) -> NewRun:
        run = way.adapt(a_run())
        return msgspec.structs.replace(run, policy=msgspec.structs.replace(run.policy, limits=(limit,)))

    started = [a_run_with(two), a_run_with(one), a_run_with(two)]
    await harness.submit(*started)
    worker = await way.worker(DAY)
    held = await way.claim(worker, started)
    assert len(held) == 3
    await harness.succeed(*held)
    later = [a_run_with(limit) for limit in (two, two, one, one, one)]
    await harness.submit(*later)
    assert await harness.states(later) == [QUEUED, BLOCKED, QUEUED, QUEUED, BLOCKED]
    await harness.move_clock(HOUR)
    await harness.stage()
    assert await harness.states(later) == [QUEUED, QUEUED, QUEUED, QUEUED, BLOCKED]
