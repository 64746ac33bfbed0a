"""Queries for the explanation why a run has not started."""

import pytest

from mainspring.core.model.base.instant import DAY, HOUR, SECOND
from mainspring.core.model.runs.new_run import JobRef
from tests.support.builders import a_fire, a_job, a_run, a_skipped_tick, a_spec, every
from tests.support.store_harness import Harness

pytestmark = pytest.mark.api


async def test_the_holder_of_the_ordering_key_of_a_blocked_run_is_returned(harness: Harness) -> None:
    first, second = a_run(key="k"), a_run(key="k")
    held = await harness.start(first)
    await harness.submit(second, free := a_run())
    assert await harness.store.find_holder(second.id) == first.id
    assert await harness.store.find_holder(free.id) is None
    await harness.succeed(*held)
    assert await harness.store.find_holder(second.id) is None


async def test_the_owner_of_a_shard_is_returned(harness: Harness) -> None:
    assert await harness.store.find_shard_owner(3) is None
    member = await harness.store.join("node-1", 10 * SECOND)
    await harness.store.take(member, [3])
    owner = await harness.store.find_shard_owner(3)
    assert owner is not None
    assert (owner.id, owner.name, owner.shards) == (member, "node-1", 1)
    assert await harness.store.find_shard_owner(4) is None
    await harness.advance(11 * SECOND)
    assert await harness.store.find_shard_owner(3) is None


async def test_the_newest_tick_at_or_before_an_instant_is_returned(harness: Harness) -> None:
    job = await harness.put(a_job(a_spec(schedule=every(HOUR))))
    await harness.advance(3 * HOUR)
    now = await harness.now()
    ticks = [now - 2 * HOUR, now - HOUR]
    await harness.store.fire(await harness.owner(), [a_fire(job, *map(a_skipped_tick, ticks), next_fire=now + HOUR)])
    assert await harness.store.ledger_at(job.id, ticks[0] - 1) is None
    for at, tick in ((ticks[0], ticks[0]), (ticks[1] - 1, ticks[0]), (now, ticks[1])):
        entry = await harness.store.ledger_at(job.id, at)
        assert entry is not None
        assert (entry.scheduled_at, entry.reason) == (tick, "missed")


async def test_backfill_runs_are_found_by_their_tick_in_every_state(harness: Harness) -> None:
    job = await harness.put(a_job(a_spec(schedule=every(HOUR))))
    await harness.advance(HOUR)
    await harness.fire_due()
    now = await harness.now()
    refs = [JobRef(id=job.id, version=1, kind="backfill", scheduled_at=now - place * DAY) for place in (3, 2, 1)]
    ended, waiting, queued = a_run(job=refs[0], queue="now"), a_run(job=refs[1], delay=HOUR), a_run(job=refs[2])
    await harness.succeed(*await harness.start(ended))
    await harness.submit(waiting, queued, a_run(job=JobRef(id=job.id, version=1)))
    made = {now - 3 * DAY: ended.id, now - 2 * DAY: waiting.id, now - DAY: queued.id}
    assert await harness.store.backfilled(job.id, 0, now + DAY) == made
    assert await harness.store.backfilled(job.id, now - 2 * DAY, now - DAY) == {now - 2 * DAY: waiting.id}
