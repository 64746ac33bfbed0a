"""Replays of dead runs on the memory store, step by step, with drivers that die at any point."""

from random import Random
from typing import Any

import msgspec

from mainspring.core.model.access.access import Quotas, Tenant
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import SECOND
from mainspring.core.model.runs.completion import complete_failure, complete_success
from mainspring.core.model.runs.replay import Replay
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import RunFilter
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.store import Demand
from mainspring.core.submit.jobs import Jobs
from mainspring.features.dead_letters.service import DeadLetterService
from mainspring.stores.memory import MemoryStore
from mainspring.testing.virtual_time import VirtualClock
from tests.support.builders import a_policy, a_run, a_worker, an_id
from tests.support.virtual import in_virtual_time


class World:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = MemoryStore(self.clock, 4)
        self.service = self.make_service()
        self._claims = 0

    def make_service(self) -> DeadLetterService:
        wakeups = LocalWakeups()
        jobs = Jobs(self.store, wakeups, self.clock, Random(1), shards=4)
        return DeadLetterService(self.store, jobs, wakeups, self.clock)

    async def make_dead_runs(self, count: int) -> list[RunId]:
        """Let runs fail for good, a second ago."""
        runs = [a_run(payload=b'{"n":%d}' % number, policy=a_policy(retries=0)) for number in range(count)]
        await self.store.submit(runs)
        await self.complete(await self.claim(), "boom")
        await self.clock.sleep(SECOND)
        return [run.id for run in runs]

    async def claim(self) -> list[HeldRun]:
        session = await self.store.open_session(a_worker(ttl=3_600 * SECOND))
        return await self.store.claim(session, 1, [Demand("default", 10_000)])

    async def complete(self, held: list[HeldRun], error: str = "") -> None:
        now = await self.store.now()
        ends = [
            complete_failure(run, error, Random(0), now=now) if error else complete_success(run, None) for run in held
        ]
        await self.store.complete(ends)

    async def limit(self, **quotas: Any) -> None:
        await self.store.put_tenant(Tenant(name="default", quotas=Quotas(**quotas)), Author("ada"))

    async def start(self, **fields: object) -> str:
        replay = Replay(id=an_id(), author="ada", tenant="default", made_at=await self.store.now())
        await self.store.put_replay(msgspec.structs.replace(replay, **fields))
        return replay.id

    async def read(self, replay: str) -> Replay:
        found = await self.store.replay(replay)
        assert found is not None
        return found

    async def drive(self, steps: int = 4) -> None:
        for _ in range(steps):
            await self.service.tick()

    async def list_replayed(self) -> list[RunView]:
        """The runs that a replay has made."""
        runs = await self.store.list_runs(RunFilter(tenant=None), None, 10_000)
        return [run for run in runs.items if run.replay_of is not None]


@in_virtual_time
async def test_a_replay_runs_its_canaries_first_and_every_dead_run_once() -> None:
    world = World()
    dead = await world.make_dead_runs(20)
    replay = await world.start(canaries=3)
    await world.drive()
    canaries = await world.claim()
    assert len(canaries) == 3
    assert ((await world.read(replay)).state, len(await world.list_replayed())) == ("canary", 3)
    await world.complete(canaries)
    await world.drive()
    assert (await world.read(replay)).state == "done"
    made = await world.list_replayed()
    assert sorted(run.replay_of or "" for run in made) == sorted(dead)
    assert (await world.read(replay)).replayed == 20


@in_virtual_time
async def test_a_failed_canary_stops_the_replay_and_leaves_the_rest_dead() -> None:
    world = World()
    await world.make_dead_runs(20)
    replay = await world.start(canaries=3)
    await world.drive()
    good, *bad = await world.claim()
    await world.complete([good])
    await world.complete(bad[:1], "still boom")
    await world.drive()
    seen = await world.read(replay)
    assert (seen.state, seen.replayed) == ("stopped", 3)
    assert seen.why == f"canary {bad[0].id} failed (error)"
    dead = await world.store.list_runs(RunFilter(tenant=None, dead=True), None, 100)
    assert len(dead.items) == 18, "17 that were not touched, and the canary"


@in_virtual_time
async def test_a_run_that_fails_again_is_not_replayed_again() -> None:
    world = World()
    await world.make_dead_runs(5)
    replay = await world.start()
    await world.drive()
    await world.complete(await world.claim(), "boom")
    await world.drive()
    assert ((await world.read(replay)).state, len(await world.list_replayed())) == ("done", 5)


@in_virtual_time
async def test_a_replay_keeps_to_its_rate() -> None:
    world = World()
    await world.make_dead_runs(50)
    await world.start(per_second=10.0)
    began = world.clock.monotonic()
    async with world.service:
        counts = []
        for _ in range(4):
            await world.clock.sleep(SECOND)
            counts.append(len(await world.list_replayed()))
            assert counts[-1] <= (world.clock.monotonic() - began) * 10 / SECOND + 1
    assert counts[-1] >= 35
    assert counts[0] >= 5


@in_virtual_time
async def test_a_replay_survives_the_death_of_its_driver_at_any_step() -> None:
    for dies_at in range(1, 12):
        world = World()
        dead = await world.make_dead_runs(10)
        replay = await world.start(canaries=2)
        calls = 0

        async def step(world: World = world, dies_at: int = dies_at) -> None:
            nonlocal calls
            submit, move = world.store.submit, world.store.move_replay

            async def dying_submit(*args: object) -> object:
                nonlocal calls
                calls += 1
                answer = await submit(*args)  # type: ignore[arg-type]
                if calls == dies_at:
                    raise RuntimeError("died after it")
                return answer

            async def dying_move(*args: object) -> object:
                nonlocal calls
                calls += 1
                if calls == dies_at:
                    raise RuntimeError("died before it")
                return await move(*args)  # type: ignore[arg-type]

            world.store.submit, world.store.move_replay = dying_submit, dying_move  # type: ignore[assignment, method-assign]
            try:
                await world.make_service().tick()
            except RuntimeError:
                calls += 1
            finally:
                world.store.submit, world.store.move_replay = submit, move  # type: ignore[method-assign]

        for _ in range(12):
            await step()
            await world.complete(await world.claim())
        made = await world.list_replayed()
        assert sorted(run.replay_of or "" for run in made) == sorted(dead), dies_at
        assert {run.state for run in made} == {RunState.SUCCEEDED}
        assert ((await world.read(replay)).state, (await world.read(replay)).replayed) == ("done", 10)


@in_virtual_time
async def test_concurrent_drivers_replay_each_dead_run_once() -> None:
    world = World()
    dead = await world.make_dead_runs(600)
    replay = await world.start()
    drivers = [world.make_service() for _ in range(3)]
    for _ in range(4):
        for driver in drivers:
            await driver.tick()
    assert sorted(run.replay_of or "" for run in await world.list_replayed()) == sorted(dead)
    assert (await world.read(replay)).state == "done"


@in_virtual_time
async def test_a_patch_changes_payloads_and_skips_those_it_makes_too_large() -> None:
    world = World()
    dead = await world.make_dead_runs(3)
    replay = await world.start(patch=b'{"n": null, "mail": "x"}')
    await world.drive(2)
    views = await world.store.runs([run.id for run in await world.list_replayed()], payloads=True)
    assert {view.payload for view in views if view is not None} == {b'{"mail":"x"}'}
    assert (await world.read(replay)).passed_over == 0
    huge = await world.start(patch=msgspec.json.encode({"x": "y" * 300_000}), made_at=world.clock.now() + SECOND)
    await world.complete(await world.claim(), "boom")
    await world.drive()
    assert ((await world.read(huge)).passed_over, (await world.read(huge)).state) == (3, "done")
    assert len(dead) == 3
    assert await world.store.discard(dead, Author("ada")) == 0


@in_virtual_time
async def test_a_replay_waits_for_room_in_the_quota_of_queued_runs() -> None:
    world = World()
    dead = await world.make_dead_runs(20)
    await world.limit(queued=8)
    replay, other = await world.start(canaries=10), await world.start(queue="elsewhere")
    await world.drive()
    assert (await world.read(other)).state == "done"
    canaries = await world.claim()
    assert ((await world.read(replay)).state, len(canaries)) == ("canary", 8)
    await world.complete(canaries)
    await world.drive()
    canaries = await world.claim()
    assert ((await world.read(replay)).state, len(canaries)) == ("canary", 2), "the others are still to come"
    await world.complete(canaries)
    for _ in range(3):
        await world.drive()
        held = await world.claim()
        assert len(held) <= 8
        await world.complete(held)
    await world.drive()
    assert (await world.read(replay)).state == "done"
    assert sorted(run.replay_of or "" for run in await world.list_replayed()) == sorted(dead)


@in_virtual_time
async def test_two_replays_of_a_tenant_share_its_quota() -> None:
    world = World()
    await world.make_dead_runs(20)
    await world.limit(queued=5)
    await world.start()
    await world.start()
    await world.drive()
    assert len(await world.list_replayed()) == 5


@in_virtual_time
async def test_a_replay_submits_no_more_a_minute_than_its_tenant_may() -> None:
    world = World()
    await world.make_dead_runs(20)
    await world.store.put_tenant(Tenant(name="default", quotas=Quotas(submits_per_minute=6)), Author("ada", "default"))
    replay = await world.start()
    await world.drive()
    assert len(await world.list_replayed()) == 6
    await world.clock.sleep(30 * SECOND)
    await world.drive()
    assert (len(await world.list_replayed()), (await world.read(replay)).state) == (9, "going")


@in_virtual_time
async def test_a_payload_larger_than_the_quota_is_skipped() -> None:
    world = World()
    await world.make_dead_runs(12)
    await world.limit(payload_bytes=7)
    replay = await world.start()
    await world.drive()
    seen = await world.read(replay)
    assert (seen.state, seen.passed_over, len(await world.list_replayed())) == ("done", 2, 10)
