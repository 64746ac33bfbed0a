"""Breakers: a task that keeps failing is left alone for a while, then one run goes ahead to see."""

import pytest

from mainspring.domain.instant import HOUR, MINUTE, SECOND
from mainspring.domain.limits import Breaker, gates_of
from mainspring.domain.run import HeldRun, NewRun, RunState, settle_cancel, settle_loss, settle_release
from tests.support.builders import a_limit, a_policy, a_run
from tests.support.store_harness import Harness, ids

QUEUED, BLOCKED, SCHEDULED = RunState.QUEUED, RunState.BLOCKED, RunState.SCHEDULED

BREAKER = Breaker(failures=2, within=5 * MINUTE, pause=10 * MINUTE)
READER = "dashboard"


def a_call(
    *, task: str = "call", retries: int = 0, breaker: Breaker = BREAKER, key: str = "", **more: object
) -> NewRun:
    policy = a_policy(retries=retries, pause=MINUTE, breaker=breaker, key=key, limits=more.pop("limits", ()))  # type: ignore[arg-type]
    return a_run(task=task, policy=policy, **more)  # type: ignore[arg-type]


def calls(number: int) -> list[NewRun]:
    return [a_call() for _ in range(number)]


async def open_it(harness: Harness) -> None:
    """Two fail, and it is open."""
    await harness.fail(*await harness.start(*calls(2)))


async def the_probe(harness: Harness) -> HeldRun:
    """The pause is over; the one that goes ahead is running."""
    await harness.advance(11 * MINUTE)
    assert (await harness.stage()).runs == 1
    [held] = await harness.claim(await harness.worker())
    return held


async def test_while_it_is_closed_nothing_waits(harness: Harness) -> None:
    accepted = await harness.submit(*calls(20))
    assert {answer.state for answer in accepted} == {QUEUED}


async def test_it_opens_after_so_many_failures_and_then_new_ones_wait(harness: Harness) -> None:
    one, two = await harness.start(*calls(2))
    await harness.fail(one)
    [accepted] = await harness.submit(a_call(queue="other"))
    assert accepted.state is QUEUED
    await harness.fail(two)
    waiting = a_call()
    [accepted] = await harness.submit(waiting)
    assert accepted.state is BLOCKED
    [gate] = gates_of("default", "call", (), BREAKER)
    assert (await harness.view(waiting.id)).gate == gate.number


async def test_failures_and_timeouts_of_attempts_count_and_nothing_else_does(harness: Harness) -> None:
    held = await harness.start(*calls(6))
    await harness.settle(settle_loss(held[0], blamed=False), settle_release(held[1]), settle_cancel(held[2]))
    await harness.succeed(held[3])
    await harness.fail(held[4])
    [accepted] = await harness.submit(a_call())
    assert accepted.state is QUEUED
    await harness.fail(held[5])
    [accepted] = await harness.submit(a_call())
    assert accepted.state is BLOCKED


async def test_attempts_that_are_tried_again_count_too(harness: Harness) -> None:
    held = await harness.start(a_call(retries=3), a_call(retries=3))
    await harness.fail(*held)
    assert await harness.states(held) == [SCHEDULED, SCHEDULED]
    [accepted] = await harness.submit(a_call())
    assert accepted.state is BLOCKED
    await harness.advance(2 * MINUTE)
    assert (await harness.stage()).runs == 0
    assert await harness.states(held) == [BLOCKED, BLOCKED]


async def test_failures_further_apart_than_its_period_do_not_open_it(harness: Harness) -> None:
    for held in await harness.start(*calls(3)):
        await harness.fail(held)
        await harness.advance(6 * MINUTE)
    [accepted] = await harness.submit(a_call())
    assert accepted.state is QUEUED


async def test_it_belongs_to_a_task_of_a_tenant(harness: Harness) -> None:
    await open_it(harness)
    accepted = await harness.submit(
        a_call(task="other"), a_call(tenant="acme"), a_run(task="call"), a_call(queue="other")
    )
    assert [answer.state for answer in accepted] == [QUEUED, QUEUED, QUEUED, BLOCKED]


async def test_what_is_queued_when_it_opens_waits_again_and_gives_its_limits_back(harness: Harness) -> None:
    held = await harness.start(*calls(2))
    limit = a_limit("api")
    queued = [a_call(limits=(limit,)), a_call(), a_call(key="video")]
    elsewhere, line = a_run(limits=(limit,)), a_run(key="video")
    await harness.submit(*queued, elsewhere, line)
    assert await harness.states([*queued, elsewhere, line]) == [QUEUED] * 3 + [BLOCKED] * 2
    await harness.fail(*held)
    await harness.resolve()
    assert await harness.states([*queued, elsewhere, line]) == [BLOCKED] * 3 + [QUEUED, BLOCKED]
    assert ids(await harness.claim(await harness.worker())) == [elsewhere.id]


async def test_after_the_pause_one_goes_ahead(harness: Harness) -> None:
    await open_it(harness)
    runs = calls(3)
    await harness.submit(*runs)
    await harness.advance(9 * MINUTE)
    assert (await harness.stage()).runs == 0
    await harness.advance(2 * MINUTE)
    staged = await harness.stage()
    assert (staged.runs, staged.queues) == (1, ("default",))
    assert await harness.states(runs) == [QUEUED, BLOCKED, BLOCKED]
    [accepted] = await harness.submit(a_call())
    assert accepted.state is BLOCKED
    await harness.advance(HOUR)
    assert (await harness.stage()).runs == 0, "one at a time"


async def test_after_the_pause_a_new_one_goes_ahead_if_nobody_waits(harness: Harness) -> None:
    await open_it(harness)
    await harness.advance(11 * MINUTE)
    accepted = await harness.submit(*calls(2))
    assert [answer.state for answer in accepted] == [QUEUED, BLOCKED]


async def test_if_that_one_succeeds_all_go_on(harness: Harness) -> None:
    await open_it(harness)
    runs = calls(4)
    await harness.submit(*runs)
    await harness.succeed(await the_probe(harness))
    await harness.resolve()
    assert await harness.states(runs[1:]) == [QUEUED] * 3
    held = await harness.claim(await harness.worker())
    await harness.fail(held[0])
    [accepted] = await harness.submit(a_call())
    assert accepted.state is QUEUED, "what failed before does not count any more"


async def test_if_that_one_fails_they_wait_for_another_pause(harness: Harness) -> None:
    await open_it(harness)
    runs = calls(3)
    await harness.submit(*runs)
    await harness.fail(await the_probe(harness))
    assert await harness.states(runs[1:]) == [BLOCKED, BLOCKED]
    await harness.advance(9 * MINUTE)
    assert (await harness.stage()).runs == 0
    await harness.advance(2 * MINUTE)
    assert (await harness.stage()).runs == 1
    assert await harness.states(runs[1:]) == [QUEUED, BLOCKED]


@pytest.mark.parametrize("way", ["lost", "released", "cancelled", "cancelled while queued", "expired"])
async def test_if_that_one_says_nothing_the_next_goes_ahead(harness: Harness, way: str) -> None:
    await open_it(harness)
    first = a_call(start_within=12 * MINUTE)
    runs = [first, *calls(2)]
    await harness.submit(*runs)
    if way in ("cancelled while queued", "expired"):
        await harness.advance(11 * MINUTE)
        assert (await harness.stage()).runs == 1
    match way:
        case "lost" | "released":
            held = await the_probe(harness)
            end = settle_loss(held, blamed=False) if way == "lost" else settle_release(held)
            await harness.settle(end)
            assert await harness.states(runs) == [QUEUED, BLOCKED, BLOCKED], "itself, being the first in line"
            await harness.store.cancel([first.id])
        case "cancelled":
            held = await the_probe(harness)
            await harness.store.cancel([held.id])
            await harness.settle(settle_cancel(held))
        case "cancelled while queued":
            await harness.store.cancel([first.id])
        case _:
            await harness.advance(2 * MINUTE)
            assert await harness.store.expire(10) == 1
    assert await harness.states(runs[1:]) == [QUEUED, BLOCKED]


async def test_what_started_before_it_opened_neither_closes_it_nor_prolongs_the_pause(harness: Harness) -> None:
    one, two, good, bad = await harness.start(*calls(4))
    await harness.fail(one, two)
    waiting = calls(2)
    await harness.submit(*waiting)
    await harness.advance(9 * MINUTE)
    await harness.succeed(good)
    assert await harness.states(waiting) == [BLOCKED, BLOCKED]
    await harness.fail(bad)
    probe = await the_probe(harness)
    assert probe.id == waiting[0].id
    await harness.succeed(probe)
    await harness.resolve()
    assert await harness.state(waiting[1].id) is QUEUED


async def test_what_started_before_it_opened_does_not_let_a_second_one_ahead(harness: Harness) -> None:
    one, two, other = await harness.start(*calls(3))
    await harness.fail(one, two)
    waiting = calls(2)
    await harness.submit(*waiting)
    await the_probe(harness)
    await harness.settle(settle_cancel(other))
    assert (await harness.stage()).runs == 0
    assert await harness.state(waiting[1].id) is BLOCKED


async def test_the_one_that_goes_ahead_needs_room_at_its_limits_as_well(harness: Harness) -> None:
    await open_it(harness)
    limit = a_limit("api")
    [holder] = await harness.start(a_run(limits=(limit,)))
    held_up, free = a_call(limits=(limit,)), a_call()
    await harness.submit(held_up)
    await harness.submit(free)
    await harness.advance(11 * MINUTE)
    assert (await harness.stage()).runs == 1
    assert await harness.states([held_up, free]) == [BLOCKED, QUEUED]
    [probe] = await harness.claim(await harness.worker())
    await harness.succeed(probe)
    await harness.succeed(holder)
    await harness.resolve()
    assert await harness.state(held_up.id) is QUEUED


async def test_events_tell_that_what_waited_again_was_queued_again(harness: Harness) -> None:
    held = await harness.start(*calls(2))
    queued = a_call()
    await harness.submit(queued)
    await harness.store.attach_reader(READER)
    await harness.fail(*held)
    await harness.resolve()
    assert [kind for kind, _ in await harness.told(READER)] == ["run.failed"]
    await harness.advance(11 * MINUTE)
    await harness.stage()
    assert (await harness.told(READER))[-1] == ("run.queued", (queued.id,))


async def test_a_breaker_that_opens_at_the_first_failure(harness: Harness) -> None:
    breaker = Breaker(failures=1, within=SECOND, pause=SECOND)
    [held] = await harness.start(a_call(breaker=breaker))
    await harness.fail(held)
    await harness.advance(MINUTE)
    first, second = a_call(breaker=breaker), a_call(breaker=breaker)
    await harness.submit(first, second)
    assert await harness.states([first, second]) == [QUEUED, BLOCKED]
