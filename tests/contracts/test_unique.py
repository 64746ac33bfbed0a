"""Unique runs: one run per key, and the rules for a second one."""

import asyncio

import pytest

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import HOUR, MINUTE
from mainspring.core.model.limits.limits import Limit
from mainspring.core.model.runs.completion import REPLACED
from mainspring.core.model.runs.new_run import Idempotency, NewRun
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.unique import Unique
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.answers import SubmitResult
from tests.support.builders import a_limit, a_policy, a_run
from tests.support.store_harness import Harness, ids

QUEUED, BLOCKED, SCHEDULED, SKIPPED = RunState.QUEUED, RunState.BLOCKED, RunState.SCHEDULED, RunState.SKIPPED
READER = "dashboard"


def a_unique_run(
    otherwise: str = "existing", *, key: str = "report", period: int | None = None, **more: object
) -> NewRun:
    return a_run(unique=Unique(key=key, period=period, otherwise=otherwise), **more)  # type: ignore[arg-type]


def summarize(answer: SubmitResult) -> tuple[RunId, bool, bool]:
    return answer.id, answer.new, answer.conflict


async def existing_ids(harness: Harness, *runs: NewRun) -> list[RunId]:
    """Return the ids of the runs that exist."""
    return [view.id for view in await harness.store.runs(ids(runs)) if view is not None]


async def test_a_second_run_of_a_unique_key_returns_the_first(harness: Harness) -> None:
    first, second = a_unique_run(payload=b"1"), a_unique_run(payload=b"2")
    [answer] = await harness.submit(first)
    assert summarize(answer) == (first.id, True, False)
    [answer] = await harness.submit(second)
    assert (*summarize(answer), answer.state) == (first.id, False, False, QUEUED)
    assert await existing_ids(harness, first, second) == [first.id]


async def test_reject_returns_a_conflict(harness: Harness) -> None:
    first, second = a_unique_run(), a_unique_run("reject")
    await harness.submit(first)
    [answer] = await harness.submit(second)
    assert summarize(answer) == (first.id, False, True)
    assert await existing_ids(harness, second) == []


async def test_unique_keys_belong_to_a_tenant_and_are_not_idempotency_keys(harness: Harness) -> None:
    runs = [
        a_unique_run(),
        a_unique_run(tenant="acme"),
        a_unique_run(key="other"),
        a_run(idempotency=Idempotency("report", b"x")),
    ]
    answers = await harness.submit(*runs)
    assert [summarize(answer) for answer in answers] == [(run.id, True, False) for run in runs]


async def test_a_unique_key_is_held_until_its_run_has_ended(harness: Harness) -> None:
    [held] = await harness.start(a_unique_run())
    [answer] = await harness.submit(a_unique_run())
    assert (*summarize(answer), answer.state) == (held.id, False, False, RunState.RUNNING)
    await harness.fail(held)
    [answer] = await harness.submit(a_unique_run())
    assert (*summarize(answer), answer.state) == (held.id, False, False, SCHEDULED)
    await harness.store.cancel([held.id])
    free = a_unique_run()
    [answer] = await harness.submit(free)
    assert summarize(answer) == (free.id, True, False)
    [answer] = await harness.submit(a_unique_run())
    assert summarize(answer) == (free.id, False, False)


@pytest.mark.parametrize("how", ["success", "cancelled", "expired"])
async def test_every_outcome_frees_the_unique_key(harness: Harness, how: str) -> None:
    first = a_unique_run(start_within=MINUTE)
    match how:
        case "success":
            await harness.succeed(*await harness.start(first))
        case "cancelled":
            await harness.submit(first)
            await harness.store.cancel([first.id])
        case _:
            await harness.submit(first)
            await harness.advance(2 * MINUTE)
            assert await harness.store.expire(10) == 1
    [answer] = await harness.submit(a_unique_run())
    assert answer.new


async def test_a_unique_key_with_a_period_is_held_for_the_period(harness: Harness) -> None:
    first = a_unique_run(period=HOUR)
    await harness.succeed(*await harness.start(first))
    await harness.advance(50 * MINUTE)
    await harness.store.tidy()
    # The period of the run that holds the key counts.
    [answer] = await harness.submit(a_unique_run())
    assert (*summarize(answer), answer.state) == (first.id, False, False, RunState.SUCCEEDED)
    [answer] = await harness.submit(a_unique_run("reject", period=MINUTE))
    assert summarize(answer) == (first.id, False, True)
    await harness.advance(11 * MINUTE)
    second = a_unique_run(period=HOUR)
    [answer] = await harness.submit(second)
    assert summarize(answer) == (second.id, True, False), "even before tidying"


async def test_a_unique_key_is_free_after_its_period_even_if_its_run_has_not_ended(harness: Harness) -> None:
    first = a_unique_run(period=MINUTE, delay=HOUR)
    await harness.submit(first)
    await harness.advance(2 * MINUTE)
    await harness.store.tidy()
    second = a_unique_run(delay=HOUR)
    [answer] = await harness.submit(second)
    assert summarize(answer) == (second.id, True, False)
    await harness.store.cancel([first.id])
    [answer] = await harness.submit(a_unique_run())
    assert summarize(answer) == (second.id, False, False), "the end of the first run does not free the key"


async def test_purging_a_run_frees_its_unique_key(harness: Harness) -> None:
    first = a_unique_run(period=HOUR)
    await harness.succeed(*await harness.start(first))
    await harness.store.purge([first.id], Author("ada"))
    [answer] = await harness.submit(a_unique_run())
    assert answer.new


async def test_replace_skips_the_first_run_and_creates_the_second(harness: Harness) -> None:
    first, second = a_unique_run(delay=HOUR), a_unique_run("replace")
    await harness.submit(first)
    [answer] = await harness.submit(second)
    assert (*summarize(answer), answer.state) == (second.id, True, False, QUEUED)
    view = await harness.view(first.id)
    assert (view.state, view.reason) == (SKIPPED, REPLACED)
    [answer] = await harness.submit(a_unique_run())
    assert summarize(answer) == (second.id, False, False)


async def test_replace_releases_the_limits_and_the_ordering_key_of_the_first_run(harness: Harness) -> None:
    limit = (a_limit(),)
    first = a_unique_run(limits=limit)
    behind = a_run(key="video")
    await harness.submit(first, a_run(limits=limit))
    [answer] = await harness.submit(a_unique_run("replace", limits=limit))
    assert answer.state is BLOCKED, "another run was blocked before it"
    keyed = a_unique_run(key="ordered")
    await harness.submit(a_run(id=keyed.id, key="video", unique=keyed.unique), behind)
    await harness.submit(a_unique_run("replace", key="ordered"))
    assert await harness.states([keyed, behind]) == [SKIPPED, QUEUED]


async def test_debounce_updates_the_first_run_from_the_second(harness: Harness) -> None:
    first = a_unique_run("debounce", delay=5 * MINUTE, payload=b"1")
    await harness.submit(first)
    await harness.advance(3 * MINUTE)
    before = await harness.now()
    second = a_unique_run("debounce", delay=5 * MINUTE, payload=b"2", priority=1, deadline=HOUR)
    [answer] = await harness.submit(second)
    assert (*summarize(answer), answer.state) == (first.id, False, False, SCHEDULED)
    [view] = await harness.store.runs([first.id], payloads=True)
    assert view is not None
    assert (view.payload, view.priority) == (b"2", 1)
    assert before + 5 * MINUTE <= view.due <= await harness.now() + 5 * MINUTE
    assert view.deadline == view.due + HOUR
    assert await existing_ids(harness, second) == []
    await harness.advance(3 * MINUTE)
    assert (await harness.stage()).runs == 0, "each debounce delays the run"
    await harness.advance(3 * MINUTE)
    assert (await harness.stage()).runs == 1


async def test_debounce_may_make_a_run_due_or_delay_it(harness: Harness) -> None:
    first = a_unique_run("debounce", delay=HOUR)
    await harness.submit(first)
    [answer] = await harness.submit(a_unique_run("debounce"))
    assert (answer.id, answer.state) == (first.id, QUEUED)
    [answer] = await harness.submit(a_unique_run("debounce", delay=HOUR))
    assert (answer.id, answer.state) == (first.id, SCHEDULED)
    assert await harness.claim(await harness.worker()) == []


@pytest.mark.parametrize("otherwise", ["replace", "debounce"])
async def test_a_started_run_is_neither_replaced_nor_updated(harness: Harness, otherwise: str) -> None:
    [held] = await harness.start(a_unique_run(payload=b"1"))
    second = a_unique_run(otherwise, payload=b"2")
    [answer] = await harness.submit(second)
    assert (*summarize(answer), answer.state) == (held.id, False, False, RunState.RUNNING)
    await harness.fail(held)
    [answer] = await harness.submit(second)
    assert (*summarize(answer), answer.state) == (held.id, False, False, SCHEDULED), "the run has started before"
    [view] = await harness.store.runs([held.id], payloads=True)
    assert view is not None
    assert view.payload == b"1"


@pytest.mark.parametrize("otherwise", ["replace", "debounce"])
async def test_an_ended_run_is_neither_replaced_nor_updated(harness: Harness, otherwise: str) -> None:
    first = a_unique_run(period=HOUR)
    await harness.submit(first)
    await harness.store.cancel([first.id])
    [answer] = await harness.submit(a_unique_run(otherwise))
    assert (*summarize(answer), answer.state) == (first.id, False, False, RunState.CANCELLED)


async def test_runs_of_one_unique_key_in_a_batch_are_handled_in_order(harness: Harness) -> None:
    first, same, refused = a_unique_run(), a_unique_run(), a_unique_run("reject")
    replaced, second = a_unique_run(key="b"), a_unique_run("replace", key="b")
    put_off, last = a_unique_run(key="c", payload=b"1"), a_unique_run("debounce", key="c", payload=b"2", delay=HOUR)
    answers = await harness.submit(first, same, refused, replaced, second, put_off, last)
    assert [summarize(answer) for answer in answers] == [
        (first.id, True, False),
        (first.id, False, False),
        (first.id, False, True),
        (replaced.id, True, False),
        (second.id, True, False),
        (put_off.id, True, False),
        (put_off.id, False, False),
    ]
    assert await harness.states([first, replaced, second, put_off]) == [QUEUED, SKIPPED, QUEUED, SCHEDULED]
    [view] = await harness.store.runs([put_off.id], payloads=True)
    assert view is not None
    assert view.payload == b"2"


@pytest.mark.parametrize("limits", [(), (a_limit("one", 1),)], ids=["free", "limited"])
@pytest.mark.parametrize(
    ("delays", "requeued"),
    [((0, 0), 0), ((HOUR, 0), 1), ((0, HOUR, 0), 1), ((HOUR, 0, HOUR, 0), 2), ((HOUR, 0, 0), 1)],
)
async def test_debounces_of_one_batch_take_effect_one_after_the_other(
    harness: Harness, delays: tuple[int, ...], requeued: int, limits: tuple[Limit, ...]
) -> None:
    """A run that is delayed leaves its queue. Made due again, it is queued again, behind runs queued before."""
    policy = a_policy(limits=limits)
    first, other = a_unique_run("debounce", policy=policy), a_run()
    await harness.submit(first)
    await harness.advance(MINUTE)
    await harness.submit(other)
    await harness.advance(MINUTE)
    await harness.store.attach_reader(READER)
    await harness.submit(*[a_unique_run("debounce", delay=delay, policy=policy) for delay in delays])
    assert await harness.state(first.id) is QUEUED
    events = [(kind, run) for kind, runs in await harness.unread_events(READER) for run in runs]
    assert events == [("run.queued", first.id)] * requeued
    [held] = await harness.claim(await harness.worker(), 1)
    assert held.id == (other.id if requeued else first.id)


async def test_a_run_that_a_batch_makes_due_and_delays_again_holds_no_ordering_key(harness: Harness) -> None:
    policy = a_policy(key="video-1")
    first = a_unique_run("debounce", policy=policy, delay=HOUR)
    await harness.submit(first)
    await harness.submit(*[a_unique_run("debounce", policy=policy, delay=delay) for delay in (0, HOUR)])
    second = a_run(policy=policy)
    await harness.submit(second)
    assert await harness.states([first, second]) == [SCHEDULED, QUEUED]
    await harness.advance(HOUR)
    await harness.stage()
    assert await harness.states([first, second]) == [BLOCKED, QUEUED]
    [held] = await harness.claim(await harness.worker())
    assert held.id == second.id
    await harness.succeed(held)
    assert ids(await harness.claim(await harness.worker())) == [first.id]


async def test_a_debounce_frees_an_ordering_key_for_a_run_that_the_same_batch_made_due(harness: Harness) -> None:
    def build_run(name: str, delay: int) -> NewRun:
        return a_unique_run("debounce", key=name, policy=a_policy(key="video-1"), delay=delay)

    first, second = build_run("first", HOUR), build_run("second", HOUR)
    await harness.submit(first, second)
    await harness.submit(*[build_run(name, delay) for name, delay in (("first", 0), ("second", 0), ("first", HOUR))])
    assert await harness.states([first, second]) == [SCHEDULED, QUEUED]
    assert ids(await harness.claim(await harness.worker())) == [second.id]


@pytest.mark.parametrize("first", range(4))
async def test_debounces_of_different_keys_take_effect_in_the_order_of_the_batch(harness: Harness, first: int) -> None:
    def build_run(number: int, delay: int) -> NewRun:
        return a_unique_run("debounce", key=f"key-{number}", policy=a_policy(key="video-1"), delay=delay)

    runs = [build_run(number, HOUR) for number in range(4)]
    await harness.submit(*runs)
    await harness.submit(*[build_run((first + number) % 4, 0) for number in range(4)])
    assert await harness.states(runs) == [QUEUED if number == first else BLOCKED for number in range(4)]


async def test_the_idempotency_key_is_checked_first_and_used_only_by_a_new_run(harness: Harness) -> None:
    key = Idempotency("order-1", b"x")
    first = a_unique_run()
    await harness.submit(first)
    [answer] = await harness.submit(a_unique_run(idempotency=key))
    assert summarize(answer) == (first.id, False, False)
    other = a_unique_run(key="other", idempotency=key)
    [answer] = await harness.submit(other)
    assert summarize(answer) == (other.id, True, False), "the key was not used"
    [answer] = await harness.submit(a_unique_run("replace", idempotency=key))
    assert summarize(answer) == (other.id, False, False)
    assert await harness.state(first.id) is QUEUED


async def test_the_same_unique_run_submitted_again_is_no_conflict(harness: Harness) -> None:
    run = a_unique_run("reject")
    await harness.submit(run)
    [again] = await harness.submit(run)
    assert summarize(again) == (run.id, False, False)
    second = a_unique_run("replace")
    await harness.submit(second)
    [again] = await harness.submit(second)
    assert (*summarize(again), again.state) == (second.id, False, False, QUEUED)


async def test_a_duplicate_of_a_unique_run_emits_no_event(harness: Harness) -> None:
    await harness.submit(a_unique_run())
    await harness.store.attach_reader(READER)
    await harness.submit(a_unique_run(), a_unique_run("reject"))
    assert await harness.unread_events(READER) == []


async def test_of_concurrent_submits_of_a_unique_key_one_creates_a_run(harness: Harness) -> None:
    runs = [a_unique_run() for _ in range(8)]
    answers = [answer for [answer] in await asyncio.gather(*(harness.submit(run) for run in runs))]
    assert sum(answer.new for answer in answers) == 1
    assert len({answer.id for answer in answers}) == 1
    assert await existing_ids(harness, *runs) == [answers[0].id]


async def test_batches_with_unique_keys_in_opposite_orders_do_not_deadlock(harness: Harness) -> None:
    for turn in range(10):
        forward = [a_unique_run(key=f"{turn}-{number}") for number in range(10)]
        backward = [a_unique_run(key=f"{turn}-{number}") for number in reversed(range(10))]
        answers = await asyncio.gather(harness.submit(*forward), harness.submit(*backward))
        assert sum(answer.new for batch in answers for answer in batch) == 10
        assert [summarize(answer)[0] for answer in answers[0]] == [
            summarize(answer)[0] for answer in reversed(answers[1])
        ]


async def test_concurrent_replacements_leave_one_run(harness: Harness) -> None:
    runs = [a_unique_run("replace", delay=HOUR) for _ in range(8)]
    answers = await asyncio.gather(*(harness.submit(run) for run in runs))
    assert all(answer.new for [answer] in answers)
    assert sorted(await harness.states(runs)) == sorted([SCHEDULED] + [SKIPPED] * 7)
