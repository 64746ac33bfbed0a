"""Replays of dead letters on the store in memory, step by step, and with drivers that die in between."""

from random import Random
from typing import Any

import msgspec

from mainspring.adapters.store.memory import MemoryStore
from mainspring.adapters.wakeups.local import LocalWakeups
from mainspring.control.dead_letters import Undertaker
from mainspring.control.jobs import Jobs
from mainspring.domain.access import Quotas, Tenant
from mainspring.domain.ids import RunId
from mainspring.domain.instant import SECOND
from mainspring.domain.replay import Replay
from mainspring.domain.run import HeldRun, RunState, RunView, settle_failure, settle_success
from mainspring.ports.access import Author
from mainspring.ports.catalog import RunFilter
from mainspring.ports.store import Want
from mainspring.testing.virtual_time import VirtualClock, run_virtual
from tests.support.builders import a_policy, a_run, a_worker, an_id


class World:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = MemoryStore(self.clock, 4)
        self.undertaker = self.an_undertaker()
        self._claims = 0

    def an_undertaker(self) -> Undertaker:
        wakeups = LocalWakeups()
        jobs = Jobs(self.store, wakeups, self.clock, Random(1), shards=4)
        return Undertaker(self.store, jobs, wakeups, self.clock)

    async def bury(self, count: int) -> list[RunId]:
        """So many dead letters, a second ago."""
        runs = [a_run(payload=b'{"n":%d}' % number, policy=a_policy(retries=0)) for number in range(count)]
        await self.store.submit(runs)
        await self.end(await self.claim(), "boom")
        await self.clock.sleep(SECOND)
        return [run.id for run in runs]

    async def claim(self) -> list[HeldRun]:
        session = await self.store.open_session(a_worker(ttl=3_600 * SECOND))
        return await self.store.claim(session, 1, [Want("default", 10_000)])

    async def end(self, held: list[HeldRun], error: str = "") -> None:
        now = await self.store.now()
        ends = [settle_failure(run, error, Random(0), now=now) if error else settle_success(run, None) for run in held]
        await self.store.settle(ends)

    async def limit(self, **quotas: Any) -> None:
        await self.store.put_tenant(Tenant(name="default", quotas=Quotas(**quotas)), Author("ada"))

    async def start(self, **fields: object) -> str:
        replay = Replay(id=an_id(), author="ada", tenant="default", made_at=await self.store.now())
        await self.store.put_replay(msgspec.structs.replace(replay, **fields))
        return replay.id

    async def seen(self, replay: str) -> Replay:
        found = await self.store.replay(replay)
        assert found is not None
        return found

    async def drive(self, steps: int = 4) -> None:
        for _ in range(steps):
            await self.undertaker.tick()

    async def made(self) -> list[RunView]:
        """The runs that name an old one."""
        runs = await self.store.list_runs(RunFilter(tenant=None), None, 10_000)
        return [run for run in runs.items if run.replay_of is not None]


def test_canaries_first_then_the_rest_and_nothing_twice() -> None:
    async def scenario() -> None:
        world = World()
        dead = await world.bury(20)
        replay = await world.start(canaries=3)
        await world.drive()
        canaries = await world.claim()
        assert len(canaries) == 3
        assert ((await world.seen(replay)).state, len(await world.made())) == ("canary", 3)
        await world.end(canaries)
        await world.drive()
        assert (await world.seen(replay)).state == "done"
        made = await world.made()
        assert sorted(run.replay_of or "" for run in made) == sorted(dead)
        assert (await world.seen(replay)).replayed == 20

    run_virtual(scenario())


def test_a_canary_that_fails_stops_it_and_the_rest_stays() -> None:
    async def scenario() -> None:
        world = World()
        await world.bury(20)
        replay = await world.start(canaries=3)
        await world.drive()
        good, *bad = await world.claim()
        await world.end([good])
        await world.end(bad[:1], "still boom")
        await world.drive()
        seen = await world.seen(replay)
        assert (seen.state, seen.replayed) == ("stopped", 3)
        assert seen.why == f"canary {bad[0].id} failed (error)"
        dead = await world.store.list_runs(RunFilter(tenant=None, dead=True), None, 100)
        assert len(dead.items) == 18, "17 that were not touched, and the canary"

    run_virtual(scenario())


def test_what_fails_again_is_not_replayed_again() -> None:
    async def scenario() -> None:
        world = World()
        await world.bury(5)
        replay = await world.start()
        await world.drive()
        await world.end(await world.claim(), "boom")
        await world.drive()
        assert ((await world.seen(replay)).state, len(await world.made())) == ("done", 5)

    run_virtual(scenario())


def test_the_rest_goes_at_its_pace() -> None:
    async def scenario() -> None:
        world = World()
        await world.bury(50)
        await world.start(per_second=10.0)
        began = world.clock.monotonic()
        async with world.undertaker:
            counts = []
            for _ in range(4):
                await world.clock.sleep(SECOND)
                counts.append(len(await world.made()))
                assert counts[-1] <= (world.clock.monotonic() - began) * 10 / SECOND + 1
        assert counts[-1] >= 35
        assert counts[0] >= 5

    run_virtual(scenario())


def test_drivers_that_die_anywhere_lose_and_double_nothing() -> None:
    async def scenario() -> None:
        for dies_at in range(1, 12):
            world = World()
            dead = await world.bury(10)
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
                    await world.an_undertaker().tick()
                except RuntimeError:
                    calls += 1
                finally:
                    world.store.submit, world.store.move_replay = submit, move  # type: ignore[method-assign]

            for _ in range(12):
                await step()
                await world.end(await world.claim())
            made = await world.made()
            assert sorted(run.replay_of or "" for run in made) == sorted(dead), dies_at
            assert {run.state for run in made} == {RunState.SUCCEEDED}
            assert ((await world.seen(replay)).state, (await world.seen(replay)).replayed) == ("done", 10)

    run_virtual(scenario())


def test_two_drivers_at_once_make_nothing_twice() -> None:
    async def scenario() -> None:
        world = World()
        dead = await world.bury(600)
        replay = await world.start()
        others = [world.an_undertaker() for _ in range(3)]
        for _ in range(4):
            for one in others:
                await one.tick()
        assert sorted(run.replay_of or "" for run in await world.made()) == sorted(dead)
        assert (await world.seen(replay)).state == "done"

    run_virtual(scenario())


def test_payloads_are_changed_by_a_patch_and_what_cannot_be_is_passed_over() -> None:
    async def scenario() -> None:
        world = World()
        dead = await world.bury(3)
        replay = await world.start(patch=b'{"n": null, "mail": "x"}')
        await world.drive(2)
        views = await world.store.runs([run.id for run in await world.made()], payloads=True)
        assert {view.payload for view in views if view is not None} == {b'{"mail":"x"}'}
        assert (await world.seen(replay)).passed_over == 0
        huge = await world.start(patch=msgspec.json.encode({"x": "y" * 300_000}), made_at=world.clock.now() + SECOND)
        await world.end(await world.claim(), "boom")
        await world.drive()
        assert ((await world.seen(huge)).passed_over, (await world.seen(huge)).state) == (3, "done")
        assert len(dead) == 3
        assert await world.store.discard(dead, Author("ada")) == 0

    run_virtual(scenario())


def test_a_replay_waits_for_room_in_the_quota_of_queued_runs() -> None:
    async def scenario() -> None:
        world = World()
        dead = await world.bury(20)
        await world.limit(queued=8)
        replay, other = await world.start(canaries=10), await world.start(queue="elsewhere")
        await world.drive()
        assert (await world.seen(other)).state == "done"
        canaries = await world.claim()
        assert ((await world.seen(replay)).state, len(canaries)) == ("canary", 8)
        await world.end(canaries)
        await world.drive()
        canaries = await world.claim()
        assert ((await world.seen(replay)).state, len(canaries)) == ("canary", 2), "the others are still to come"
        await world.end(canaries)
        for _ in range(3):
            await world.drive()
            held = await world.claim()
            assert len(held) <= 8
            await world.end(held)
        await world.drive()
        assert (await world.seen(replay)).state == "done"
        assert sorted(run.replay_of or "" for run in await world.made()) == sorted(dead)

    run_virtual(scenario())


def test_two_replays_of_a_tenant_share_its_quota() -> None:
    async def scenario() -> None:
        world = World()
        await world.bury(20)
        await world.limit(queued=5)
        await world.start()
        await world.start()
        await world.drive()
        assert len(await world.made()) == 5

    run_virtual(scenario())


def test_a_replay_submits_no_more_a_minute_than_its_tenant_may() -> None:
    async def scenario() -> None:
        world = World()
        await world.bury(20)
        await world.store.put_tenant(
            Tenant(name="default", quotas=Quotas(submits_per_minute=6)), Author("ada", "default")
        )
        replay = await world.start()
        await world.drive()
        assert len(await world.made()) == 6
        await world.clock.sleep(30 * SECOND)
        await world.drive()
        assert (len(await world.made()), (await world.seen(replay)).state) == (9, "going")

    run_virtual(scenario())


def test_a_payload_that_is_larger_than_the_quota_is_passed_over() -> None:
    async def scenario() -> None:
        world = World()
        await world.bury(12)
        await world.limit(payload_bytes=7)
        replay = await world.start()
        await world.drive()
        seen = await world.seen(replay)
        assert (seen.state, seen.passed_over, len(await world.made())) == ("done", 2, 10)

    run_virtual(scenario())
