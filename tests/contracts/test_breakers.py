"""Breakers: a task that keeps failing is blocked for a pause, then one probe decides."""

import pytest

from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND
from mainspring.core.model.limits.limits import Breaker, build_limiters
from mainspring.core.model.runs.completion import complete_cancel, complete_loss, complete_release
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import HeldRun, RunState
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


async def open_breaker(harness: Harness) -> None:
    """Open the breaker with two failures."""
    await harness.fail(*await harness.start(*calls(2)))


async def claim_probe(harness: Harness) -> HeldRun:
    """Let the pause end and claim the probe."""
    await harness.advance(11 * MINUTE)
    assert (await harness.stage()).runs == 1
    [held] = await harness.claim(await harness.worker())
    return held


async def test_a_closed_breaker_blocks_no_run(harness: Harness) -> None:
    accepted = await harness.submit(*calls(20))
    assert {answer.state for answer in accepted} == {QUEUED}


async def test_a_breaker_opens_after_its_number_of_failures_and_blocks_new_runs(harness: Harness) -> None:
    one, two = await harness.start(*calls(2))
    await harness.fail(one)
    [accepted] = await harness.submit(a_call(queue="other"))
    assert accepted.state is QUEUED
    await harness.fail(two)
    waiting = a_call()
    [accepted] = await harness.submit(waiting)
    assert accepted.state is BLOCKED
    [gate] = build_limiters("default", "call", (), BREAKER)
    assert (await harness.view(waiting.id)).limiter == gate.number


async def test_a_breaker_counts_failures_and_timeouts_only(harness: Harness) -> None:
    held = await harness.start(*calls(6))
    await harness.complete(complete_loss(held[0], blamed=False), complete_release(held[1]), complete_cancel(held[2]))
    await harness.succeed(held[3])
    await harness.fail(held[4])
    [accepted] = await harness.submit(a_call())
    assert accepted.state is QUEUED
    await harness.fail(held[5])
    [accepted] = await harness.submit(a_call())
    assert accepted.state is BLOCKED


async def test_a_breaker_counts_failed_attempts_that_are_retried(harness: Harness) -> None:
    held = await harness.start(a_call(retries=3), a_call(retries=3))
    await harness.fail(*held)
    assert await harness.states(held) == [SCHEDULED, SCHEDULED]
    [accepted] = await harness.submit(a_call())
    assert accepted.state is BLOCKED
    await harness.advance(2 * MINUTE)
    assert (await harness.stage()).runs == 0
    assert await harness.states(held) == [BLOCKED, BLOCKED]


async def test_failures_further_apart_than_the_period_do_not_open_a_breaker(harness: Harness) -> None:
    for held in await harness.start(*calls(3)):
        await harness.fail(held)
        await harness.advance(6 * MINUTE)
    [accepted] = await harness.submit(a_call())
    assert accepted.state is QUEUED


async def test_a_breaker_belongs_to_one_task_of_one_tenant(harness: Harness) -> None:
    await open_breaker(harness)
    accepted = await harness.submit(
        a_call(task="other"), a_call(tenant="acme"), a_run(task="call"), a_call(queue="other")
    )
    assert [answer.state for answer in accepted] == [QUEUED, QUEUED, QUEUED, BLOCKED]


async def test_an_opening_breaker_blocks_queued_runs_and_frees_their_limits(harness: Harness) -> None:
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


async def test_after_the_pause_one_blocked_run_is_queued_as_the_probe(harness: Harness) -> None:
    await open_breaker(harness)
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
    assert (await harness.stage()).runs == 0, "there is one probe at a time"


async def test_after_the_pause_a_new_run_is_the_probe_if_none_is_blocked(harness: Harness) -> None:
    await open_breaker(harness)
    await harness.advance(11 * MINUTE)
    accepted = await harness.submit(*calls(2))
    assert [answer.state for answer in accepted] == [QUEUED, BLOCKED]


async def test_a_successful_probe_closes_the_breaker(harness: Harness) -> None:
    await open_breaker(harness)
    runs = calls(4)
    await harness.submit(*runs)
    await harness.succeed(await claim_probe(harness))
    await harness.resolve()
    assert await harness.states(runs[1:]) == [QUEUED] * 3
    held = await harness.claim(await harness.worker())
    await harness.fail(held[0])
    [accepted] = await harness.submit(a_call())
    assert accepted.state is QUEUED, "earlier failures do not count"


async def test_a_failed_probe_starts_another_pause(harness: Harness) -> None:
    await open_breaker(harness)
    runs = calls(3)
    await harness.submit(*runs)
    await harness.fail(await claim_probe(harness))
    assert await harness.states(runs[1:]) == [BLOCKED, BLOCKED]
    await harness.advance(9 * MINUTE)
    assert (await harness.stage()).runs == 0
    await harness.advance(2 * MINUTE)
    assert (await harness.stage()).runs == 1
    assert await harness.states(runs[1:]) == [QUEUED, BLOCKED]


@pytest.mark.parametrize("way", ["lost", "released", "cancelled", "cancelled while queued", "expired"])
async def test_a_probe_without_an_outcome_is_followed_by_another_probe(harness: Harness, way: str) -> None:
    await open_breaker(harness)
    first = a_call(start_within=12 * MINUTE)
    runs = [first, *calls(2)]
    await harness.submit(*runs)
    if way in ("cancelled while queued", "expired"):
        await harness.advance(11 * MINUTE)
        assert (await harness.stage()).runs == 1
    match way:
        case "lost" | "released":
            held = await claim_probe(harness)
            end = complete_loss(held, blamed=False) if way == "lost" else complete_release(held)
            await harness.complete(end)
            assert await harness.states(runs) == [QUEUED, BLOCKED, BLOCKED], (
                "the same run is the probe again, because it is due first"
            )
            await harness.store.cancel([first.id])
        case "cancelled":
            held = await claim_probe(harness)
            await harness.store.cancel([held.id])
            await harness.complete(complete_cancel(held))
        case "cancelled while queued":
            await harness.store.cancel([first.id])
        case _:
            await harness.advance(2 * MINUTE)
            assert await harness.store.expire(10) == 1
    assert await harness.states(runs[1:]) == [QUEUED, BLOCKED]


async def test_runs_started_before_the_breaker_opened_do_not_change_it(harness: Harness) -> None:
    one, two, good, bad = await harness.start(*calls(4))
    await harness.fail(one, two)
    waiting = calls(2)
    await harness.submit(*waiting)
    await harness.advance(9 * MINUTE)
    await harness.succeed(good)
    assert await harness.states(waiting) == [BLOCKED, BLOCKED]
    await harness.fail(bad)
    probe = await claim_probe(harness)
    assert probe.id == waiting[0].id
    await harness.succeed(probe)
    await harness.resolve()
    assert await harness.state(waiting[1].id) is QUEUED


async def test_a_run_started_before_the_breaker_opened_admits_no_second_probe(harness: Harness) -> None:
    one, two, other = await harness.start(*calls(3))
    await harness.fail(one, two)
    waiting = calls(2)
    await harness.submit(*waiting)
    await claim_probe(harness)
    await harness.complete(complete_cancel(other))
    assert (await harness.stage()).runs == 0
    assert await harness.state(waiting[1].id) is BLOCKED


async def test_a_run_blocked_by_a_limit_is_not_the_probe(harness: Harness) -> None:
    await open_breaker(harness)
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


async def test_a_run_that_becomes_the_probe_emits_run_queued(harness: Harness) -> None:
    held = await harness.start(*calls(2))
    queued = a_call()
    await harness.submit(queued)
    await harness.store.attach_reader(READER)
    await harness.fail(*held)
    await harness.resolve()
    assert [kind for kind, _ in await harness.unread_events(READER)] == ["run.failed"]
    await harness.advance(11 * MINUTE)
    await harness.stage()
    assert (await harness.unread_events(READER))[-1] == ("run.queued", (queued.id,))


async def test_a_breaker_may_open_at_the_first_failure(harness: Harness) -> None:
    breaker = Breaker(failures=1, within=SECOND, pause=SECOND)
    [held] = await harness.start(a_call(breaker=breaker))
    await harness.fail(held)
    await harness.advance(MINUTE)
    first, second = a_call(breaker=breaker), a_call(breaker=breaker)
    await harness.submit(first, second)
    assert await harness.states([first, second]) == [QUEUED, BLOCKED]
