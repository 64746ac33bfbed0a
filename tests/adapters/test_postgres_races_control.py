"""Races between claims and calls of operators: pauses, quotas, and edits of runs."""

import asyncio
import random

import msgspec
import pytest

from mainspring.core.model.access.access import Quotas, Tenant
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE
from mainspring.core.model.runs.completion import complete_failure, complete_success
from mainspring.core.model.runs.new_run import About
from mainspring.core.model.runs.run import RunState
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import Pause, RunFilter
from mainspring.core.ports.storage.upkeep import Retention
from mainspring.core.store import Demand
from tests.support.builders import a_policy, a_run
from tests.support.races import ALL_SHARDS, Races

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

ADA = Author("ada")


# Pauses and quotas


async def test_a_pause_waits_for_a_claim_that_is_under_way(races: Races) -> None:
    worker = await races.a_worker()
    await races.store.submit([a_run(), a_run()])
    async with races.paused(lambda store: store.claim(worker, 1, [Demand("default", 1)])) as claiming:
        pausing = races.retry(lambda: races.store.pause(Pause(tenant=None, queue="default"), ADA))
        await races.blocked(pausing)
        assert not pausing.done()
    assert len(claiming.result()) == 1
    await pausing
    assert await races.claim(worker, 2) == []
    await races.store.resume(None, "default", ADA)
    assert len(await races.claim(worker, 3)) == 1


async def test_a_pause_by_another_process_takes_effect_at_once(races: Races) -> None:
    worker, other = await races.a_worker(), await races.a_store()
    await races.store.submit([a_run()])
    await other.pause(Pause(tenant=None, queue=None), ADA)
    assert await races.claim(worker, 1) == []
    await other.resume(None, None, ADA)
    assert len(await races.claim(worker, 2)) == 1


async def test_a_new_quota_counts_a_claim_that_was_under_way(races: Races) -> None:
    worker = await races.a_worker()
    await races.store.submit([a_run(), a_run()])
    async with races.paused(lambda store: store.claim(worker, 1, [Demand("default", 1)])) as claiming:
        putting = races.retry(lambda: races.store.put_tenant(Tenant(name="default", quotas=Quotas(running=1)), ADA))
        await races.blocked(putting)
        assert not putting.done()
    assert len(claiming.result()) == 1
    await putting
    assert await races.claim(worker, 2) == []


async def test_the_second_of_two_concurrent_claims_gets_the_rest_of_a_quota(races: Races) -> None:
    worker, other = await races.a_worker(), await races.a_worker()
    await races.store.put_tenant(Tenant(name="default", quotas=Quotas(running=3)), ADA)
    await races.store.submit([a_run() for _ in range(5)])
    async with races.paused(lambda store: store.claim(worker, 1, [Demand("default", 2)])) as claiming:
        second = asyncio.create_task(races.claim(other))
        await races.blocked(second)
        assert not second.done()
    assert len(claiming.result()) == 2
    assert len(await second) == 1


# Edits


async def test_a_run_that_is_being_claimed_is_not_edited(races: Races) -> None:
    worker, run = await races.a_worker(), a_run()
    await races.store.submit([run])
    async with races.paused(lambda store: store.claim(worker, 1, [Demand("default", 1)])):
        editing = asyncio.create_task(races.store.edit_run(msgspec.structs.replace(run, priority=1), ADA))
        await races.blocked(editing)
    assert await editing is None


async def test_an_edit_finds_a_run_that_is_being_staged(races: Races) -> None:
    scheduler, run = await races.a_scheduler(), a_run(delay=MINUTE)
    await races.store.submit([run])
    await races.advance(2 * MINUTE)
    async with races.paused(lambda store: store.stage(scheduler, ALL_SHARDS, 10)):
        editing = asyncio.create_task(races.store.edit_run(msgspec.structs.replace(run, delay=HOUR), ADA))
        await races.blocked(editing)
    answer = await editing
    assert answer is not None
    assert answer.state is await races.state(run.id) is RunState.SCHEDULED


async def test_an_edited_run_keeps_its_body_and_is_recognized_when_it_is_submitted_again(races: Races) -> None:
    run = a_run(about=About(tags=("old",)))
    await races.store.submit([run])
    edited = msgspec.structs.replace(run, delay=20 * DAY, payload=b'"new"', about=About(tags=("new",)))
    await races.store.edit_run(edited, ADA)
    [again] = await races.store.submit([run])
    assert not again.new
    await races.advance(21 * DAY)
    while await races.store.prune(Retention(), 1_000):
        pass
    found = await races.store.list_runs(RunFilter(tenant="default", tag="new"), None, 10)
    assert [view.id for view in found.items] == [run.id]
    await races.store.stage(await races.a_scheduler(), ALL_SHARDS, 10)
    [held] = await races.claim(await races.a_worker())
    assert held.payload == b'"new"'


async def test_an_edited_run_that_is_purged_leaves_no_rows(races: Races) -> None:
    run = a_run(about=About(tags=("old",)), delay=DAY)
    await races.store.submit([run])
    await races.store.edit_run(msgspec.structs.replace(run, delay=2 * DAY), ADA)
    await races.store.cancel([run.id])
    assert await races.store.purge([run.id], ADA) == [run.id]
    for table in ("body", "label", "history"):
        assert await races.watch.fetchval(f"SELECT count(*) FROM {table}") == 0
    [again] = await races.store.submit([run])
    assert again.new


# Tags and metrics


async def test_the_tags_of_a_failed_run_are_kept_as_long_as_the_run(races: Races) -> None:
    run = a_run(about=About(name="n", tags=("x",)), policy=a_policy(retries=0))
    [held] = await races.start(run)
    await races.store.complete([complete_failure(held, "boom", random.Random(1), now=held.started_at)])
    await races.advance(10 * DAY)
    while await races.store.prune(Retention(), 1_000):
        pass
    [view] = (await races.store.list_runs(RunFilter(tenant="default", tag="x"), None, 10)).items
    assert (view.id, view.about) == (run.id, run.about)
    await races.advance(30 * DAY)
    while await races.store.prune(Retention(), 1_000):
        pass
    for table in ("label", "dead_letter", "body"):
        assert await races.watch.fetchval(f"SELECT count(*) FROM {table}") == 0


async def test_concurrent_upkeep_counts_each_completion_once(races: Races) -> None:
    other = await races.a_store()
    # The database is a copy of an older one, and there would be that much time to catch up on.
    await races.watch.execute("DELETE FROM rolled_up")
    await races.store.complete(
        [complete_success(held, None) for held in await races.start(*(a_run() for _ in range(5)))]
    )
    await races.advance(MINUTE)
    await asyncio.gather(*(store.tidy() for store in (races.store, other) for _ in range(4)))
    now = await races.store.now()
    minutes = await races.store.minutes(None, now - HOUR, now)
    assert sum(minute.succeeded for minute in minutes) == 5
