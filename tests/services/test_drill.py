"""Drills in virtual time: one of two schedulers loses its lease or dies."""

import asyncio

import pytest

from mainspring.core.model.base.errors import Conflict, Invalid, NotFound
from mainspring.core.model.base.instant import MILLISECOND, SECOND
from mainspring.core.ports.storage.access import Author
from mainspring.features.drill.service import Drill
from mainspring.testing.virtual_time import VirtualClock
from tests.support.builders import a_job, a_spec
from tests.support.scheduler_node import SHARDS, Node, RemoteStore, declared, every_second
from tests.support.virtual import in_virtual_time

ADA = Author("ada", why="a drill")


async def make_store(jobs: int = 6) -> RemoteStore:
    store = RemoteStore(VirtualClock())
    specs = [a_spec(name=f"job-{number}", schedule=every_second()) for number in range(jobs)]
    await declared(store, [a_job(spec, shard=number % SHARDS) for number, spec in enumerate(specs)])
    return store


@in_virtual_time
async def test_a_revoked_scheduler_is_replaced_without_a_missed_tick() -> None:
    store = await make_store()
    async with Node(store), Node(store):
        await store.clock.sleep(2 * SECOND)
        before = {session.id for session in await store.sessions("scheduler")}
        report = await Drill(store, store.clock).run(None, 8 * SECOND, ADA)
        after = {session.id for session in await store.sessions("scheduler")}
    assert report.passed
    assert (report.schedulers, report.jobs) == (2, 6)
    assert report.taken_over_by == ("scheduler",)
    assert report.without_owner is not None
    assert 0 < report.without_owner < SECOND
    assert report.ticks.ticks >= 6 * 6
    assert (report.ticks.late, report.ticks.missed, report.ticks.doubled) == (0, 0, 0)
    # The revoked scheduler has joined again as a new member.
    assert len(after) == 2
    assert len(after - before) == 1
    (entry,) = await store.audit(None)
    assert (entry.action, entry.target) == ("schedulers.revoke", str(report.scheduler.id))


@in_virtual_time
async def test_the_shards_of_a_killed_scheduler_lack_an_owner_until_its_lease_expires() -> None:
    store = await make_store()
    async with Node(store) as victim, Node(store):
        await store.clock.sleep(2 * SECOND)
        name = str(victim.keeper.member)
        watching = asyncio.create_task(Drill(store, store.clock).run(name, 8 * SECOND, ADA, revoke=False))
        await store.clock.sleep(SECOND)
        victim.kill()
        report = await watching
    assert report.passed
    assert report.without_owner is not None
    assert 1_500 * MILLISECOND <= report.without_owner < 2 * SECOND
    assert report.ticks.late > 0
    assert await store.audit(None) == []


@in_virtual_time
async def test_a_drill_fails_if_no_scheduler_is_left() -> None:
    store = await make_store()
    async with Node(store) as only:
        await store.clock.sleep(2 * SECOND)
        watching = asyncio.create_task(Drill(store, store.clock).run(None, 5 * SECOND, ADA, revoke=False))
        await store.clock.sleep(SECOND // 2)
        only.kill()
        report = await watching
    assert not report.passed
    assert report.without_owner is None
    assert report.ticks.missed > 0


@in_virtual_time
async def test_a_drill_fails_if_only_the_same_scheduler_takes_its_shards_back() -> None:
    store = await make_store()
    async with Node(store):
        await store.clock.sleep(2 * SECOND)
        report = await Drill(store, store.clock).run(None, 8 * SECOND, ADA)
    assert report.without_owner is not None
    assert report.taken_over_by == ()
    assert not report.passed


@in_virtual_time
async def test_a_drill_rejects_bad_targets_and_times() -> None:
    store = await make_store()
    drill = Drill(store, store.clock)
    with pytest.raises(Conflict, match="no scheduler is alive"):
        await drill.run(None, 5 * SECOND, ADA)
    async with Node(store), Node(store):
        await store.clock.sleep(SECOND)
        with pytest.raises(NotFound):
            await drill.run("nobody", 5 * SECOND, ADA)
        with pytest.raises(Invalid, match="several"):
            await drill.run("scheduler", 5 * SECOND, ADA)
        with pytest.raises(Invalid, match="watch"):
            await drill.run(None, SECOND, ADA)
        assert sum(session.shards for session in await store.sessions("scheduler")) == SHARDS
