"""Metrics by the minute, of ended runs."""

from collections import Counter

import pytest

from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND, Instant
from mainspring.core.model.runs.completion import complete_cancel, complete_loss, complete_release
from mainspring.core.model.runs.run import RunState
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import Minute
from mainspring.core.ports.storage.upkeep import Retention, UnattemptedRuns
from tests.support.boundaries import around_the_boundary
from tests.support.builders import a_policy, a_run, some_runs
from tests.support.store_harness import Harness

pytestmark = pytest.mark.api


async def roll_up(harness: Harness, tenant: str | None = "default") -> list[Minute]:
    """Roll the metrics up and return those of the last day."""
    await harness.advance(2 * MINUTE)
    await harness.store.tidy()
    now = await harness.now()
    return await harness.store.minutes(tenant, now - 24 * HOUR, now)


def total(minutes: list[Minute], field: str) -> int:
    return sum(getattr(minute, field) for minute in minutes)


async def current_minute(harness: Harness) -> Instant:
    return await harness.now() // MINUTE * MINUTE


async def test_without_ended_runs_there_are_no_metrics(harness: Harness) -> None:
    await harness.start(a_run())
    assert await roll_up(harness) == []


async def test_completions_are_counted_by_outcome(harness: Harness) -> None:
    succeeded, other, failed, cancelled = await harness.start(
        a_run(), a_run(), a_run(policy=a_policy(retries=0)), a_run()
    )
    waiting, expired = a_run(delay=HOUR), a_run(start_within=SECOND)
    await harness.submit(waiting, expired)
    await harness.succeed(succeeded, other)
    await harness.fail(failed)
    await harness.complete(complete_cancel(cancelled))
    await harness.store.cancel([waiting.id])
    await harness.advance(MINUTE)
    await harness.store.expire(10)
    minutes = await roll_up(harness)
    assert {minute.queue for minute in minutes} == {"default"}
    assert all(minute.at % MINUTE == 0 for minute in minutes)
    assert [total(minutes, field) for field in ("succeeded", "failed", "cancelled", "skipped", "started")] == [
        2,
        1,
        2,
        1,
        4,
    ]


async def test_runs_ended_without_an_attempt_are_reported_once_by_task_and_state(harness: Harness) -> None:
    parent, tried = a_run(policy=a_policy(retries=0)), a_run(task="mail")
    [of_family, between_attempts] = await harness.start(parent, tried)
    stopped = await harness.start(a_run(task="mail"), a_run(task="mail", policy=a_policy(retries=0)))
    waiting, queued, blocked = a_run(task="mail", delay=HOUR), a_run(task="mail", key="k"), a_run(task="mail", key="k")
    expired, late = a_run(task="report", start_within=SECOND), a_run(task="report", deadline=SECOND)
    await harness.submit(waiting, queued, blocked, expired, late, a_run(task="child", after=[parent]))
    await harness.complete(complete_cancel(stopped[0]))
    await harness.fail(stopped[1])
    await harness.fail(between_attempts)
    await harness.store.cancel([run.id for run in (waiting, queued, blocked, tried)])
    # The parent fails, so its child is skipped.
    await harness.fail(of_family)
    while await harness.store.resolve(100):
        pass
    await harness.advance(MINUTE)
    await harness.store.expire(10)
    assert await harness.store.expire(10) == 0
    await harness.advance(MINUTE)
    ended = await harness.store.tidy()
    counts = Counter({(one.task, one.state): one.runs for one in ended})
    assert counts == {
        ("mail", RunState.CANCELLED): 4,
        ("report", RunState.SKIPPED): 1,
        ("report", RunState.FAILED): 1,
        ("child", RunState.SKIPPED): 1,
    }
    assert await harness.store.tidy() == []


async def test_runs_ended_without_an_attempt_are_reported_after_a_prune(harness: Harness) -> None:
    for _ in range(2):
        run = a_run(task="mail")
        await harness.submit(run)
        await harness.store.cancel([run.id])
        await harness.move_clock(SECOND)
        await harness.store.prune(Retention(), 10)
    await harness.move_clock(MINUTE)
    assert await harness.store.tidy() == [UnattemptedRuns(task="mail", state=RunState.CANCELLED, runs=2)]


async def test_failed_attempts_are_counted_also_if_they_are_retried(harness: Harness) -> None:
    retried, lost, released, failed = await harness.start(
        a_run(policy=a_policy(pause=HOUR)), a_run(), a_run(), a_run(policy=a_policy(retries=0))
    )
    await harness.fail(retried, failed)
    await harness.complete(complete_loss(lost, blamed=False), complete_release(released))
    minutes = await roll_up(harness)
    assert [total(minutes, field) for field in ("retried", "failed", "started")] == [3, 1, 1]


async def test_failed_attempts_of_one_minute_are_counted_by_queue(harness: Harness) -> None:
    later = a_policy(pause=HOUR)
    runs = [a_run(policy=later), a_run(queue="mail", policy=later), a_run(queue="mail", policy=later)]
    await harness.fail(*await harness.start(*runs))
    minutes = await roll_up(harness)
    assert sorted((minute.queue, minute.retried) for minute in minutes) == [("default", 1), ("mail", 2)]


async def test_durations_have_a_sum_and_a_maximum(harness: Harness) -> None:
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
    [minute] = await roll_up(harness)
    assert (minute.late_total, minute.late_most) == (sum(late), max(late))
    assert (minute.took_total, minute.took_most) == (sum(took), max(took))
    assert minute.started == 2
    assert late[1] >= 30 * SECOND
    assert took[0] >= 25 * SECOND


async def test_a_run_that_never_started_has_no_duration(harness: Harness) -> None:
    [held] = await harness.start(a_run(policy=a_policy(pause=HOUR)))
    await harness.fail(held)
    await harness.advance(MINUTE)
    await harness.store.cancel([held.id])
    minutes = await roll_up(harness)
    assert [total(minutes, field) for field in ("cancelled", "started", "late_total", "took_total")] == [1, 0, 0, 0]


async def test_metrics_are_ordered_by_minute_and_queue(harness: Harness) -> None:
    for queue in ("b", "a", "c"):
        [held] = await harness.start(a_run(queue=queue))
        await harness.succeed(held)
    first = await current_minute(harness)
    await harness.advance(3 * MINUTE)
    [held] = await harness.start(a_run(queue="b"))
    await harness.succeed(held)
    minutes = await roll_up(harness)
    keys = [(minute.at, minute.queue) for minute in minutes]
    assert keys == sorted(set(keys))
    assert [minute.queue for minute in minutes if minute.at > first] == ["b"]
    assert sorted(minute.queue for minute in minutes if minute.at <= first) == ["a", "b", "c"]


async def test_metrics_of_several_minutes_are_added_up(harness: Harness) -> None:
    await harness.advance(HOUR - await harness.now() % HOUR)
    for pause in (MINUTE, MINUTE, 57 * MINUTE, MINUTE):
        await harness.advance(pause)
        held = await harness.start(a_run())
        await harness.succeed(*held)
    by_minute = await roll_up(harness)
    now = await harness.now()
    by_hour = await harness.store.minutes("default", now - 24 * HOUR, now, HOUR)
    first = by_minute[0].at
    assert first % HOUR == MINUTE
    assert [(minute.at, minute.succeeded) for minute in by_hour] == [(first - MINUTE, 3), (first - MINUTE + HOUR, 1)]
    for name in ("started", "late_total", "took_total"):
        assert total(by_hour, name) == total(by_minute, name)
    assert max(minute.took_most for minute in by_hour) == max(minute.took_most for minute in by_minute)


@around_the_boundary
async def test_each_attempt_and_run_is_counted_once(harness: Harness, offset: int) -> None:
    """Metrics are rolled up to 15 s ago: a later roll-up counts the rest."""
    retried, failed, succeeded = await harness.start(a_run(), a_run(policy=a_policy(retries=0)), a_run())
    await harness.fail(retried, failed)
    await harness.succeed(succeeded)
    await harness.move_clock(15 * SECOND + offset)
    await harness.store.tidy()
    minutes = await roll_up(harness)
    fields = ("retried", "failed", "succeeded", "started")
    assert [total(minutes, field) for field in fields] == [2, 1, 1, 2]


async def test_an_attempt_that_ended_after_a_roll_up_is_counted_by_the_next(harness: Harness) -> None:
    earlier, later = await harness.start(*some_runs(2))
    await harness.fail(earlier)
    await harness.advance(MINUTE)
    await harness.fail(later)
    await harness.store.tidy()
    assert total(await roll_up(harness), "retried") == 2


async def test_only_the_requested_minutes_have_metrics(harness: Harness) -> None:
    at: list[Instant] = []
    for _ in range(3):
        [held] = await harness.start(a_run())
        await harness.succeed(held)
        finished = (await harness.view(held.id)).finished_at
        assert finished is not None
        at.append(finished // MINUTE * MINUTE)
        await harness.advance(2 * MINUTE)
    await roll_up(harness)

    async def list_minutes(since: Instant, until: Instant) -> list[Instant]:
        return [minute.at for minute in await harness.store.minutes("default", since, until)]

    assert await list_minutes(at[0], at[2] + 1) == at
    assert await list_minutes(at[0], at[2]) == at[:2]
    assert await list_minutes(at[0] + 1, at[2]) == [at[1]]


async def test_metrics_are_kept_per_tenant_and_added_up_without_one(harness: Harness) -> None:
    acmes, mine = await harness.start(a_run(tenant="acme"), a_run())
    await harness.advance(30 * SECOND)
    await harness.succeed(acmes, mine)
    [own] = await roll_up(harness, "default")
    [other] = await roll_up(harness, "acme")
    [both] = await roll_up(harness, None)
    assert (own.succeeded, other.succeeded, both.succeeded) == (1, 1, 2)
    assert both.took_total == own.took_total + other.took_total
    assert both.took_most == max(own.took_most, other.took_most)
    assert await roll_up(harness, "beta") == []


async def test_metrics_survive_a_purge_of_their_runs(harness: Harness) -> None:
    held = await harness.start(*some_runs(3))
    await harness.succeed(*held)
    before = await roll_up(harness)
    assert total(before, "succeeded") == 3
    await harness.store.purge([held[0].id], Author("ops"))
    assert await roll_up(harness) == before
