"""Unique runs: of one key there is one, and what a second one does."""

import asyncio

import pytest

from mainspring.domain.ids import RunId
from mainspring.domain.instant import HOUR, MINUTE
from mainspring.domain.run import REPLACED, Idempotency, NewRun, RunState
from mainspring.domain.unique import Unique
from mainspring.ports.access import Author
from mainspring.ports.store import Accepted
from tests.support.builders import a_limit, a_run
from tests.support.store_harness import Harness, ids

QUEUED, BLOCKED, SCHEDULED, SKIPPED = RunState.QUEUED, RunState.BLOCKED, RunState.SCHEDULED, RunState.SKIPPED
READER = "dashboard"


def one_of(otherwise: str = "existing", *, key: str = "report", period: int | None = None, **more: object) -> NewRun:
    return a_run(unique=Unique(key=key, period=period, otherwise=otherwise), **more)  # type: ignore[arg-type]


def told(answer: Accepted) -> tuple[RunId, bool, bool]:
    return answer.id, answer.new, answer.conflict


async def made(harness: Harness, *runs: NewRun) -> list[RunId]:
    """Those that are there."""
    return [view.id for view in await harness.store.runs(ids(runs)) if view is not None]


async def test_the_second_of_a_key_is_the_first_whatever_it_carries(harness: Harness) -> None:
    first, second = one_of(payload=b"1"), one_of(payload=b"2")
    [answer] = await harness.submit(first)
    assert told(answer) == (first.id, True, False)
    [answer] = await harness.submit(second)
    assert (*told(answer), answer.state) == (first.id, False, False, QUEUED)
    assert await made(harness, first, second) == [first.id]


async def test_reject_is_a_conflict(harness: Harness) -> None:
    first, second = one_of(), one_of("reject")
    await harness.submit(first)
    [answer] = await harness.submit(second)
    assert told(answer) == (first.id, False, True)
    assert await made(harness, second) == []


async def test_keys_belong_to_a_tenant_and_are_no_idempotency_keys(harness: Harness) -> None:
    runs = [one_of(), one_of(tenant="acme"), one_of(key="other"), a_run(idempotency=Idempotency("report", b"x"))]
    answers = await harness.submit(*runs)
    assert [told(answer) for answer in answers] == [(run.id, True, False) for run in runs]


async def test_a_key_is_taken_until_its_run_has_ended(harness: Harness) -> None:
    [held] = await harness.start(one_of())
    [answer] = await harness.submit(one_of())
    assert (*told(answer), answer.state) == (held.id, False, False, RunState.RUNNING)
    await harness.fail(held)
    [answer] = await harness.submit(one_of())
    assert (*told(answer), answer.state) == (held.id, False, False, SCHEDULED)
    await harness.store.cancel([held.id])
    free = one_of()
    [answer] = await harness.submit(free)
    assert told(answer) == (free.id, True, False)
    [answer] = await harness.submit(one_of())
    assert told(answer) == (free.id, False, False)


@pytest.mark.parametrize("how", ["success", "cancelled", "expired"])
async def test_however_it_ends_the_key_is_free(harness: Harness, how: str) -> None:
    first = one_of(start_within=MINUTE)
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
    [answer] = await harness.submit(one_of())
    assert answer.new


async def test_with_a_period_it_is_taken_for_so_long_from_when_it_was_made(harness: Harness) -> None:
    first = one_of(period=HOUR)
    await harness.succeed(*await harness.start(first))
    await harness.advance(50 * MINUTE)
    await harness.store.tidy()
    # The period is that of the run that has the key.
    [answer] = await harness.submit(one_of())
    assert (*told(answer), answer.state) == (first.id, False, False, RunState.SUCCEEDED)
    [answer] = await harness.submit(one_of("reject", period=MINUTE))
    assert told(answer) == (first.id, False, True)
    await harness.advance(11 * MINUTE)
    second = one_of(period=HOUR)
    [answer] = await harness.submit(second)
    assert told(answer) == (second.id, True, False), "whether or not somebody tidied"


async def test_after_its_period_a_key_is_free_though_its_run_has_not_ended(harness: Harness) -> None:
    first = one_of(period=MINUTE, delay=HOUR)
    await harness.submit(first)
    await harness.advance(2 * MINUTE)
    await harness.store.tidy()
    second = one_of(delay=HOUR)
    [answer] = await harness.submit(second)
    assert told(answer) == (second.id, True, False)
    await harness.store.cancel([first.id])
    [answer] = await harness.submit(one_of())
    assert told(answer) == (second.id, False, False), "the end of the first frees nothing any more"


async def test_a_key_whose_run_was_purged_is_free(harness: Harness) -> None:
    first = one_of(period=HOUR)
    await harness.succeed(*await harness.start(first))
    await harness.store.purge([first.id], Author("ada"))
    [answer] = await harness.submit(one_of())
    assert answer.new


async def test_replace_skips_the_first_and_makes_the_second(harness: Harness) -> None:
    first, second = one_of(delay=HOUR), one_of("replace")
    await harness.submit(first)
    [answer] = await harness.submit(second)
    assert (*told(answer), answer.state) == (second.id, True, False, QUEUED)
    view = await harness.view(first.id)
    assert (view.state, view.reason) == (SKIPPED, REPLACED)
    [answer] = await harness.submit(one_of())
    assert told(answer) == (second.id, False, False)


async def test_replace_gives_back_what_the_first_held(harness: Harness) -> None:
    limit = (a_limit(),)
    first = one_of(limits=limit)
    behind = a_run(key="video")
    await harness.submit(first, a_run(limits=limit))
    [answer] = await harness.submit(one_of("replace", limits=limit))
    assert answer.state is BLOCKED, "another one was waiting"
    keyed = one_of(key="ordered")
    await harness.submit(a_run(id=keyed.id, key="video", unique=keyed.unique), behind)
    await harness.submit(one_of("replace", key="ordered"))
    assert await harness.states([keyed, behind]) == [SKIPPED, QUEUED]


async def test_debounce_makes_the_first_what_the_second_asks_for(harness: Harness) -> None:
    first = one_of("debounce", delay=5 * MINUTE, payload=b"1")
    await harness.submit(first)
    await harness.advance(3 * MINUTE)
    before = await harness.now()
    second = one_of("debounce", delay=5 * MINUTE, payload=b"2", priority=1, deadline=HOUR)
    [answer] = await harness.submit(second)
    assert (*told(answer), answer.state) == (first.id, False, False, SCHEDULED)
    [view] = await harness.store.runs([first.id], payloads=True)
    assert view is not None
    assert (view.payload, view.priority) == (b"2", 1)
    assert before + 5 * MINUTE <= view.due <= await harness.now() + 5 * MINUTE
    assert view.deadline == view.due + HOUR
    assert await made(harness, second) == []
    await harness.advance(3 * MINUTE)
    assert (await harness.stage()).runs == 0, "each one puts it off"
    await harness.advance(3 * MINUTE)
    assert (await harness.stage()).runs == 1


async def test_debounce_may_make_it_due_or_put_it_off(harness: Harness) -> None:
    first = one_of("debounce", delay=HOUR)
    await harness.submit(first)
    [answer] = await harness.submit(one_of("debounce"))
    assert (answer.id, answer.state) == (first.id, QUEUED)
    [answer] = await harness.submit(one_of("debounce", delay=HOUR))
    assert (answer.id, answer.state) == (first.id, SCHEDULED)
    assert await harness.claim(await harness.worker()) == []


@pytest.mark.parametrize("otherwise", ["replace", "debounce"])
async def test_what_was_started_is_neither_replaced_nor_changed(harness: Harness, otherwise: str) -> None:
    [held] = await harness.start(one_of(payload=b"1"))
    second = one_of(otherwise, payload=b"2")
    [answer] = await harness.submit(second)
    assert (*told(answer), answer.state) == (held.id, False, False, RunState.RUNNING)
    await harness.fail(held)
    [answer] = await harness.submit(second)
    assert (*told(answer), answer.state) == (held.id, False, False, SCHEDULED), "it has been started once"
    [view] = await harness.store.runs([held.id], payloads=True)
    assert view is not None
    assert view.payload == b"1"


@pytest.mark.parametrize("otherwise", ["replace", "debounce"])
async def test_what_has_ended_is_neither_replaced_nor_changed(harness: Harness, otherwise: str) -> None:
    first = one_of(period=HOUR)
    await harness.submit(first)
    await harness.store.cancel([first.id])
    [answer] = await harness.submit(one_of(otherwise))
    assert (*told(answer), answer.state) == (first.id, False, False, RunState.CANCELLED)


async def test_of_several_in_one_batch_each_comes_after_the_one_before(harness: Harness) -> None:
    first, same, refused = one_of(), one_of(), one_of("reject")
    replaced, second = one_of(key="b"), one_of("replace", key="b")
    put_off, last = one_of(key="c", payload=b"1"), one_of("debounce", key="c", payload=b"2", delay=HOUR)
    answers = await harness.submit(first, same, refused, replaced, second, put_off, last)
    assert [told(answer) for answer in answers] == [
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


async def test_an_idempotency_key_is_looked_at_first_and_what_makes_nothing_uses_none(harness: Harness) -> None:
    key = Idempotency("order-1", b"x")
    first = one_of()
    await harness.submit(first)
    [answer] = await harness.submit(one_of(idempotency=key))
    assert told(answer) == (first.id, False, False)
    other = one_of(key="other", idempotency=key)
    [answer] = await harness.submit(other)
    assert told(answer) == (other.id, True, False), "the key was not used"
    [answer] = await harness.submit(one_of("replace", idempotency=key))
    assert told(answer) == (other.id, False, False)
    assert await harness.state(first.id) is QUEUED


async def test_the_very_same_run_again_is_no_conflict(harness: Harness) -> None:
    run = one_of("reject")
    await harness.submit(run)
    [again] = await harness.submit(run)
    assert told(again) == (run.id, False, False)
    second = one_of("replace")
    await harness.submit(second)
    [again] = await harness.submit(second)
    assert (*told(again), again.state) == (second.id, False, False, QUEUED)


async def test_what_is_not_made_is_no_event(harness: Harness) -> None:
    await harness.submit(one_of())
    await harness.store.attach_reader(READER)
    await harness.submit(one_of(), one_of("reject"))
    assert await harness.told(READER) == []


async def test_of_many_that_come_at_once_one_is_made(harness: Harness) -> None:
    runs = [one_of() for _ in range(8)]
    answers = [answer for [answer] in await asyncio.gather(*(harness.submit(run) for run in runs))]
    assert sum(answer.new for answer in answers) == 1
    assert len({answer.id for answer in answers}) == 1
    assert await made(harness, *runs) == [answers[0].id]


async def test_batches_with_keys_in_opposite_orders_do_not_wait_for_one_another(harness: Harness) -> None:
    for turn in range(10):
        forward = [one_of(key=f"{turn}-{number}") for number in range(10)]
        backward = [one_of(key=f"{turn}-{number}") for number in reversed(range(10))]
        answers = await asyncio.gather(harness.submit(*forward), harness.submit(*backward))
        assert sum(answer.new for batch in answers for answer in batch) == 10
        assert [told(answer)[0] for answer in answers[0]] == [told(answer)[0] for answer in reversed(answers[1])]


async def test_many_that_replace_one_another_leave_one(harness: Harness) -> None:
    runs = [one_of("replace", delay=HOUR) for _ in range(8)]
    answers = await asyncio.gather(*(harness.submit(run) for run in runs))
    assert all(answer.new for [answer] in answers)
    assert sorted(await harness.states(runs)) == sorted([SCHEDULED] + [SKIPPED] * 7)
