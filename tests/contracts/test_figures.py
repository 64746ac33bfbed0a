"""Figures by the minute, of what has ended."""

from collections import Counter

import pytest

from mainspring.domain.instant import HOUR, MINUTE, SECOND, Instant
from mainspring.domain.run import RunState, settle_cancel, settle_loss, settle_release
from mainspring.ports.access import Author
from mainspring.ports.catalog import Minute
from tests.support.builders import a_policy, a_run, some_runs
from tests.support.store_harness import Harness

pytestmark = pytest.mark.api


async def figures(harness: Harness, tenant: str | None = "default") -> list[Minute]:
    """All there are, when they have been rolled up."""
    await harness.advance(2 * MINUTE)
    await harness.store.tidy()
    now = await harness.now()
    return await harness.store.minutes(tenant, now - 24 * HOUR, now)


def total(minutes: list[Minute], field: str) -> int:
    return sum(getattr(minute, field) for minute in minutes)


async def the_minute(harness: Harness) -> Instant:
    return await harness.now() // MINUTE * MINUTE


async def test_where_nothing_has_ended_there_are_none(harness: Harness) -> None:
    await harness.start(a_run())
    assert await figures(harness) == []


async def test_ends_are_counted_by_how_they_came_about(harness: Harness) -> None:
    succeeded, other, failed, cancelled = await harness.start(
        a_run(), a_run(), a_run(policy=a_policy(retries=0)), a_run()
    )
    waiting, expired = a_run(delay=HOUR), a_run(start_within=SECOND)
    await harness.submit(waiting, expired)
    await harness.succeed(succeeded, other)
    await harness.fail(failed)
    await harness.settle(settle_cancel(cancelled))
    await harness.store.cancel([waiting.id])
    await harness.advance(MINUTE)
    await harness.store.expire(10)
    minutes = await figures(harness)
    assert {minute.queue for minute in minutes} == {"default"}
    assert all(minute.at % MINUTE == 0 for minute in minutes)
    assert [total(minutes, field) for field in ("succeeded", "failed", "cancelled", "skipped", "started")] == [
        2,
        1,
        2,
        1,
        4,
    ]


async def test_what_ended_without_an_attempt_is_told_once_by_task_and_state(harness: Harness) -> None:
    parent, tried = a_run(policy=a_policy(retries=0)), a_run(task="mail")
    [of_family, between_attempts] = await harness.start(parent, tried)
    stopped = await harness.start(a_run(task="mail"), a_run(task="mail", policy=a_policy(retries=0)))
    waiting, queued, blocked = a_run(task="mail", delay=HOUR), a_run(task="mail", key="k"), a_run(task="mail", key="k")
    expired, late = a_run(task="report", start_within=SECOND), a_run(task="report", deadline=SECOND)
    await harness.submit(waiting, queued, blocked, expired, late, a_run(task="child", after=[parent]))
    await harness.settle(settle_cancel(stopped[0]))
    await harness.fail(stopped[1])
    await harness.fail(between_attempts)
    await harness.store.cancel([run.id for run in (waiting, queued, blocked, tried)])
    # It fails, and its child is skipped.
    await harness.fail(of_family)
    while await harness.store.resolve(100):
        pass
    await harness.advance(MINUTE)
    await harness.store.expire(10)
    assert await harness.store.expire(10) == 0
    await harness.advance(MINUTE)
    told = await harness.store.tidy()
    counts = Counter({(one.task, one.state): one.runs for one in told})
    assert counts == {
        ("mail", RunState.CANCELLED): 4,
        ("report", RunState.SKIPPED): 1,
        ("report", RunState.FAILED): 1,
        ("child", RunState.SKIPPED): 1,
    }
    assert await harness.store.tidy() == []


async def test_failed_attempts_are_counted_whatever_came_after_them(harness: Harness) -> None:
    retried, lost, released, failed = await harness.start(
        a_run(policy=a_policy(pause=HOUR)), a_run(), a_run(), a_run(policy=a_policy(retries=0))
    )
    await harness.fail(retried, failed)
    await harness.settle(settle_loss(lost, blamed=False), settle_release(released))
    minutes = await figures(harness)
    assert [total(minutes, field) for field in ("retried", "failed", "started")] == [3, 1, 1]


async def test_times_are_added_up_and_the_worst_is_kept(harness: Harness) -> None:
    await harness.submit(*some_runs(2))
    await harness.advance(10 * SECOND)
    worker = await harness.worker()
    [first] = await harness.claim(worker, 1)
    await harness.advance(20 * SECOND)
    [second] = await harness.claim(worker, 1)
    await harness.advance(5 * SECOND)
    await harness.succeed(first, second)
    views = [await harness.view(run.id) for run in (first, second)]
    late = [view.started_at - view.due for view in views if view.started_at is not None]
    took = [view.finished_at - view.started_at for view in views if view.finished_at and view.started_at]
    [minute] = await figures(harness)
    assert (minute.late_total, minute.late_most) == (sum(late), max(late))
    assert (minute.took_total, minute.took_most) == (sum(took), max(took))
    assert minute.started == 2
    assert late[1] >= 30 * SECOND
    assert took[0] >= 25 * SECOND


async def test_what_ended_without_running_has_no_times(harness: Harness) -> None:
    [held] = await harness.start(a_run(policy=a_policy(pause=HOUR)))
    await harness.fail(held)
    await harness.advance(MINUTE)
    await harness.store.cancel([held.id])
    minutes = await figures(harness)
    assert [total(minutes, field) for field in ("cancelled", "started", "late_total", "took_total")] == [1, 0, 0, 0]


async def test_figures_are_told_by_minute_and_queue_in_order(harness: Harness) -> None:
    for queue in ("b", "a", "c"):
        [held] = await harness.start(a_run(queue=queue))
        await harness.succeed(held)
    first = await the_minute(harness)
    await harness.advance(3 * MINUTE)
    [held] = await harness.start(a_run(queue="b"))
    await harness.succeed(held)
    minutes = await figures(harness)
    keys = [(minute.at, minute.queue) for minute in minutes]
    assert keys == sorted(set(keys))
    assert [minute.queue for minute in minutes if minute.at > first] == ["b"]
    assert sorted(minute.queue for minute in minutes if minute.at <= first) == ["a", "b", "c"]


async def test_figures_of_several_minutes_are_added_up(harness: Harness) -> None:
    await harness.advance(HOUR - await harness.now() % HOUR)
    for pause in (MINUTE, MINUTE, 57 * MINUTE, MINUTE):
        await harness.advance(pause)
        held = await harness.start(a_run())
        await harness.succeed(*held)
    by_minute = await figures(harness)
    now = await harness.now()
    by_hour = await harness.store.minutes("default", now - 24 * HOUR, now, HOUR)
    first = by_minute[0].at
    assert first % HOUR == MINUTE
    assert [(minute.at, minute.succeeded) for minute in by_hour] == [(first - MINUTE, 3), (first - MINUTE + HOUR, 1)]
    for name in ("started", "late_total", "took_total"):
        assert total(by_hour, name) == total(by_minute, name)
    assert max(minute.took_most for minute in by_hour) == max(minute.took_most for minute in by_minute)


async def test_only_the_minutes_that_were_asked_for_are_told(harness: Harness) -> None:
    at: list[Instant] = []
    for _ in range(3):
        [held] = await harness.start(a_run())
        await harness.succeed(held)
        finished = (await harness.view(held.id)).finished_at
        assert finished is not None
        at.append(finished // MINUTE * MINUTE)
        await harness.advance(2 * MINUTE)
    await figures(harness)

    async def told(since: Instant, until: Instant) -> list[Instant]:
        return [minute.at for minute in await harness.store.minutes("default", since, until)]

    assert await told(at[0], at[2] + 1) == at
    assert await told(at[0], at[2]) == at[:2]
    assert await told(at[0] + 1, at[2]) == [at[1]]


async def test_each_tenant_has_its_own_and_all_are_added_up(harness: Harness) -> None:
    acmes, mine = await harness.start(a_run(tenant="acme"), a_run())
    await harness.advance(30 * SECOND)
    await harness.succeed(acmes, mine)
    [own] = await figures(harness, "default")
    [other] = await figures(harness, "acme")
    [both] = await figures(harness, None)
    assert (own.succeeded, other.succeeded, both.succeeded) == (1, 1, 2)
    assert both.took_total == own.took_total + other.took_total
    assert both.took_most == max(own.took_most, other.took_most)
    assert await figures(harness, "beta") == []


async def test_figures_stay_when_their_runs_are_purged_and_are_not_counted_twice(harness: Harness) -> None:
    held = await harness.start(*some_runs(3))
    await harness.succeed(*held)
    before = await figures(harness)
    assert total(before, "succeeded") == 3
    await harness.store.purge([held[0].id], Author("ops"))
    assert await figures(harness) == before
