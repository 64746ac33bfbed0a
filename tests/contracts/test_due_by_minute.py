"""Counts of scheduled runs by the minute they are due."""

import pytest

from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND
from tests.support.builders import a_run, an_id
from tests.support.store_harness import Harness

pytestmark = pytest.mark.api


async def test_queued_runs_are_not_counted_by_minute(harness: Harness) -> None:
    now = await harness.now()
    await harness.submit(a_run())
    assert await harness.store.due_by_minute(None, now, now + HOUR) == []


async def test_scheduled_runs_are_counted_by_their_due_minute_on_every_shard(harness: Harness) -> None:
    now = await harness.now()
    first = now - now % MINUTE + 10 * MINUTE
    due = [first, first + 59 * SECOND, first + MINUTE, first + 5 * MINUTE - 1, first + 5 * MINUTE]
    await harness.submit(*(a_run(at=at, id=an_id(shard=number % 4)) for number, at in enumerate(due)))
    assert await harness.store.due_by_minute(None, first, first + 5 * MINUTE) == [
        (first, 2),
        (first + MINUTE, 1),
        (first + 4 * MINUTE, 1),
    ]
    assert await harness.store.due_by_minute(None, first + 1, first + MINUTE) == [(first, 1)]


async def test_scheduled_runs_are_counted_by_tenant(harness: Harness) -> None:
    now = await harness.now()
    minute = now - now % MINUTE + 10 * MINUTE
    await harness.submit(*(a_run(at=minute, tenant=tenant) for tenant in ("acme", "acme", "default")))
    until = minute + HOUR
    assert await harness.store.due_by_minute("acme", now, until) == [(minute, 2)]
    assert await harness.store.due_by_minute("default", now, until) == [(minute, 1)]
    assert await harness.store.due_by_minute("nobody", now, until) == []
    assert await harness.store.due_by_minute(None, now, until) == [(minute, 3)]


async def test_a_waiting_retry_is_counted_and_a_cancelled_run_is_not(harness: Harness) -> None:
    now = await harness.now()
    minute = now - now % MINUTE + 10 * MINUTE
    kept, cancelled = a_run(at=minute), a_run(at=minute)
    await harness.submit(kept, cancelled)
    await harness.store.cancel([cancelled.id])
    assert await harness.store.due_by_minute(None, now, minute + 1) == [(minute, 1)]
    [held] = await harness.start(a_run())
    await harness.fail(held)
    retries = await harness.store.due_by_minute(None, now, now + HOUR)
    assert sum(runs for _, runs in retries) == 2
