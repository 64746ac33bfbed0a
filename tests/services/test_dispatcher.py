"""Workers that an engine feeds, and who tells it, on the store in memory, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from random import Random

from mainspring.adapters.dispatch.memory import MemoryDispatch
from mainspring.adapters.store.memory import MemoryStore
from mainspring.adapters.wakeups.local import LocalWakeups
from mainspring.control.dispatcher import READER, Dispatcher
from mainspring.control.engine_watch import EngineWatch
from mainspring.domain.dead_letters import DeadRun
from mainspring.domain.errors import EngineUnavailable
from mainspring.domain.hints import Hint, Sealer
from mainspring.domain.instant import MILLISECOND, MINUTE, SECOND, Micros
from mainspring.domain.retry import RetryPolicy
from mainspring.domain.run import HeldRun, NewRun, RunPolicy, RunState
from mainspring.ports.access import Author
from mainspring.ports.catalog import Pause
from mainspring.ports.dispatch import Delivery
from mainspring.ports.wakeups import queue_topic
from mainspring.runtime.engines import Engines, GuardedEngine
from mainspring.testing.virtual_time import VirtualClock, run_virtual
from mainspring.worker.settings import WorkerSettings
from mainspring.worker.worker import Worker
from tests.support.builders import a_run, some_runs
from tests.support.worker_kit import FaultyStore, Tasks


class FlakyEngine(MemoryDispatch):
    """One that can be away, and that can lose, repeat and delay what it is given."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock, Sealer(b"key"))
        self.away = False
        self.times = 1
        self.asked = 0
        #: How many hints came at once.
        self.sizes: list[int] = []
        self.asked_to_publish: Callable[[], None] = lambda: None

    def _here(self) -> None:
        self.asked += 1
        if self.away:
            raise EngineUnavailable("it is away for the test")

    async def publish(self, hints: Sequence[Hint]) -> None:
        self._here()
        self.sizes.append(len(hints))
        self.asked_to_publish()
        for _ in range(self.times):
            await super().publish(hints)

    async def take(self, queue: str, limit: int, wait: Micros) -> list[Delivery]:
        self._here()
        found = await super().take(queue, limit, wait)
        self._here()
        return found

    async def depth(self, queue: str) -> int:
        self._here()
        return await super().depth(queue)


class BuryingEngine(FlakyEngine):
    """One that has a place for dead letters."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.dead: list[DeadRun] = []

    async def bury(self, dead: Sequence[DeadRun]) -> None:
        self._here()
        self.dead += dead


class World:
    def __init__(self, queues: Collection[str] = ("*",)) -> None:
        self.clock = VirtualClock()
        self.store = MemoryStore(self.clock, 4)
        self.faulty = FaultyStore(self.store)
        self.wakeups = LocalWakeups()
        self.engine = FlakyEngine(self.clock)
        self.owned = {0: 1}
        self.started: list[HeldRun] = []
        self.took: dict[str, Micros] = {}
        self.use(self.engine, queues)

    def use(self, engine: FlakyEngine, queues: Collection[str] = ("*",)) -> None:
        guarded = GuardedEngine(engine, self.clock)
        self.engines = Engines([guarded], dict.fromkeys(queues, guarded), "test")

    def a_dispatcher(self) -> Dispatcher:
        return Dispatcher(self.store, self.engines, self.wakeups, self.clock, lambda: self.owned)

    @asynccontextmanager
    async def working(self, slots: int = 10, poll: Micros = SECOND) -> AsyncIterator[Worker]:
        async def note(run: HeldRun) -> None:
            if run.payload == b'"fail"':
                raise KeyError("hush")
            self.started.append(run)
            self.took[run.id] = self.clock.monotonic()
            await self.clock.sleep(10 * MILLISECOND)

        settings = WorkerSettings(queues={"default": slots}, poll_interval=poll, capture_logs=False)
        guarded = self.engines.of("default")
        worker = Worker(
            self.faulty,
            LocalWakeups(),
            self.clock,
            Tasks(greet=note),
            settings,
            jitter=Random(1),
            engines={} if guarded is None else {"default": guarded},
        )
        await worker.start()
        try:
            yield worker
        finally:
            await worker.stop(0)

    async def submit(self, *runs: NewRun) -> None:
        await self.store.submit(runs)
        self.wakeups.ring([queue_topic(queue) for queue in {run.queue for run in runs}])

    async def until_ended(self, runs: Sequence[NewRun], within: Micros) -> None:
        until = self.clock.monotonic() + within
        while self.clock.monotonic() < until:
            begun = len(self.started) >= len(runs)
            views = await self.store.runs([run.id for run in runs]) if begun else []
            if begun and all(view is not None and view.state is RunState.SUCCEEDED for view in views):
                assert len(self.started) == len({run.id for run in self.started}), "one was started twice"
                return
            await self.clock.sleep(5 * MILLISECOND)
        raise AssertionError(f"{len(self.started)} of {len(runs)} were started")


def test_a_run_is_brought_by_a_hint_in_a_moment() -> None:
    async def scenario() -> None:
        world = World()
        # Nobody looks at the store by itself.
        async with world.a_dispatcher() as dispatcher, world.working(poll=MINUTE):
            await world.clock.sleep(3 * SECOND)
            run = a_run()
            await world.submit(run)
            began = world.clock.monotonic()
            await world.until_ended([run], SECOND)
            assert world.took[run.id] - began <= 20 * MILLISECOND
            assert (dispatcher.published, dispatcher.republished) == (1, 0)
        hinted = [want for wants, _ in world.faulty.claims for want in wants if want.runs is not None]
        assert [want.runs for want in hinted] == [(run.id,)]
        assert world.engine._queues["default"].taken == {}

    run_virtual(scenario())


def test_more_than_there_are_slots_for_is_brought_in_batches() -> None:
    async def scenario() -> None:
        world = World()
        async with world.a_dispatcher(), world.working(poll=MINUTE):
            await world.clock.sleep(SECOND)
            runs = some_runs(500)
            await world.submit(*runs)
            # Ten at a time, ten milliseconds each.
            await world.until_ended(runs, 2 * SECOND)
            assert len(world.faulty.claims) < 200

    run_virtual(scenario())


def test_what_comes_three_times_is_started_once() -> None:
    async def scenario() -> None:
        world = World()
        world.engine.times = 3
        async with world.a_dispatcher(), world.working(poll=MINUTE), world.working(poll=MINUTE):
            await world.clock.sleep(SECOND)
            runs = some_runs(100)
            await world.submit(*runs)
            await world.until_ended(runs, 5 * SECOND)

    run_virtual(scenario())


def test_what_the_engine_lost_is_published_again_in_seconds() -> None:
    async def scenario() -> None:
        world = World()
        async with world.a_dispatcher() as dispatcher:
            await world.clock.sleep(SECOND)
            await world.submit(*some_runs(50))
            await world.clock.sleep(SECOND)
            assert await world.engine.depth("default") == 50
            world.engine.flush()
            await world.clock.sleep(6 * SECOND)
            assert await world.engine.depth("default") == 50
            # Nobody comes for it: that it is there is enough.
            await world.clock.sleep(20 * SECOND)
            assert dispatcher.republished == 50

    run_virtual(scenario())


def test_a_large_backlog_that_was_lost_is_brought_quickly() -> None:
    async def scenario() -> None:
        world = World()
        async with world.a_dispatcher():
            await world.clock.sleep(SECOND)
            runs = some_runs(2_500)
            await world.submit(*runs)
            await world.clock.sleep(SECOND)
            world.engine.flush()
            async with world.working(slots=100, poll=MINUTE):
                await world.until_ended(runs, 12 * SECOND)

    run_virtual(scenario())


def test_a_backlog_is_published_in_parts_and_each_is_acknowledged() -> None:
    async def scenario() -> None:
        world = World()
        await world.store.attach_reader(READER)
        runs = some_runs(12_000)
        for start in range(0, 9_000, 900):
            await world.store.submit(runs[start : start + 900])
        # What is committed together is one row, however large.
        await world.store.submit(runs[9_000:])
        places: list[str] = []
        world.engine.asked_to_publish = lambda: places.append(world.store._tables.readers[READER])
        async with world.a_dispatcher() as dispatcher:
            await world.clock.sleep(SECOND)
            assert dispatcher.published == 12_000
            assert await world.engine.depth("default") == 12_000
        assert max(world.engine.sizes) <= 2_000
        # Whoever takes over in between does not begin with the first row again.
        assert len(set(places)) >= 4

    run_virtual(scenario())


def test_whoever_does_not_own_the_shard_any_more_publishes_no_further_part() -> None:
    async def scenario() -> None:
        world = World()
        await world.store.attach_reader(READER)
        for _ in range(10):
            await world.store.submit(some_runs(1_000))
        world.engine.asked_to_publish = lambda: world.owned.clear()
        async with world.a_dispatcher():
            await world.clock.sleep(SECOND)
            assert 0 < await world.engine.depth("default") < 10_000

    run_virtual(scenario())


def test_what_came_before_anybody_published_is_found() -> None:
    async def scenario() -> None:
        world = World()
        await world.submit(*some_runs(5))
        async with world.a_dispatcher():
            await world.clock.sleep(7 * SECOND)
            assert await world.engine.depth("default") == 5

    run_virtual(scenario())


def test_while_the_engine_is_away_the_store_feeds_and_it_is_used_again_when_it_is_back() -> None:
    async def scenario() -> None:
        world = World()
        async with world.a_dispatcher(), world.working():
            await world.clock.sleep(SECOND)
            world.engine.away = True
            first = some_runs(20)
            await world.submit(*first)
            await world.until_ended(first, 4 * SECOND)
            asked = world.engine.asked
            await world.clock.sleep(MINUTE)
            # It is left alone but for a probe now and then.
            assert world.engine.asked - asked < 60
            assert world.engines.health()["memory"] == {"state": "away", "outages": 1, "refused": 0}
            world.engine.away = False
            await world.clock.sleep(6 * SECOND)
            assert not world.engines.all[0].away
            second = some_runs(5)
            await world.submit(*second)
            began = world.clock.monotonic()
            await world.until_ended(second, SECOND)
            assert max(world.took[run.id] for run in second) - began <= 20 * MILLISECOND

    run_virtual(scenario())


def test_an_engine_may_be_away_for_ten_minutes() -> None:
    async def scenario() -> None:
        world = World()
        async with world.a_dispatcher(), world.working():
            await world.clock.sleep(SECOND)
            [guarded] = world.engines.all
            world.engine.away = True
            submitted: dict[str, Micros] = {}
            opened: Micros | None = None
            began = world.clock.monotonic()
            while world.clock.monotonic() - began < 10 * MINUTE:
                runs = some_runs(5)
                submitted |= dict.fromkeys((run.id for run in runs), world.clock.monotonic())
                await world.submit(*runs)
                await world.clock.sleep(5 * SECOND)
                if guarded.away and opened is None:
                    opened = world.clock.monotonic() - began
            assert opened is not None
            assert opened <= 5 * SECOND
            assert guarded.outages == 1
            world.engine.away = False
            back = world.clock.monotonic()
            while guarded.away:
                await world.clock.sleep(100 * MILLISECOND)
            assert world.clock.monotonic() - back <= 6 * SECOND
            claimed = guarded.claimed
            last = some_runs(5)
            submitted |= dict.fromkeys((run.id for run in last), world.clock.monotonic())
            await world.submit(*last)
            await world.clock.sleep(10 * SECOND)
            assert guarded.claimed > claimed
            # Each was started once, and none of them late: a worker asks the store once a second.
            assert sorted(run.id for run in world.started) == sorted(submitted)
            assert max(world.took[run] - at for run, at in submitted.items()) <= 2 * SECOND

    run_virtual(scenario())


class HalfEngine(FlakyEngine):
    """One queue of it is broken."""

    broken = True

    async def take(self, queue: str, limit: int, wait: Micros) -> list[Delivery]:
        if queue == "broken" and self.broken:
            raise EngineUnavailable("it is broken for the test")
        return await super().take(queue, limit, wait)


def test_a_queue_that_fails_beside_one_that_works_does_not_make_the_breaker_flap() -> None:
    async def scenario() -> None:
        clock = VirtualClock()
        engine = HalfEngine(clock)
        guarded = GuardedEngine(engine, clock)

        async def serve(queue: str) -> None:
            while True:
                if await guarded.take(queue, 1, SECOND) is None:
                    await clock.sleep(50 * MILLISECOND)

        serving = [asyncio.create_task(serve(queue)) for queue in ("good", "broken")]
        await clock.sleep(MINUTE)
        assert 2 <= guarded.outages <= 20
        engine.broken = False
        await clock.sleep(MINUTE)
        assert not guarded.away
        for task in serving:
            task.cancel()
        # It has worked for a while: the pause is short again.
        engine.broken = True
        assert await guarded.take("broken", 1, SECOND) is None
        await clock.sleep(300 * MILLISECOND)
        assert guarded.away
        assert guarded.may_ask

    run_virtual(scenario())


def test_what_only_makes_a_note_closes_no_breaker() -> None:
    async def scenario() -> None:
        clock = VirtualClock()
        engine = FlakyEngine(clock)
        guarded = GuardedEngine(engine, clock)
        engine.away = True
        assert await guarded.depth("default") is None
        await clock.sleep(MINUTE)
        await guarded.done([])
        assert guarded.away

    run_virtual(scenario())


def test_what_an_engine_has_done_is_counted() -> None:
    async def scenario() -> None:
        world = World()
        [guarded] = world.engines.all
        async with world.a_dispatcher():
            await world.clock.sleep(SECOND)
            await world.submit(*some_runs(20))
            await world.clock.sleep(SECOND)
            assert (guarded.published, guarded.republished, guarded.taken, guarded.claimed) == (20, 0, 0, 0)
            world.engine.flush()
            await world.clock.sleep(7 * SECOND)
            assert (guarded.published, guarded.republished) == (20, 20)
            async with world.working(poll=MINUTE):
                more = some_runs(5)
                await world.clock.sleep(SECOND)
                await world.submit(*more)
                await world.clock.sleep(SECOND)
                assert len(world.started) == 25
                assert guarded.claimed >= 5
                assert guarded.taken >= guarded.claimed
            assert guarded.calls > 0
            assert guarded.busy >= 0

    run_virtual(scenario())


def test_a_look_at_the_store_that_failed_is_made_again() -> None:
    async def scenario() -> None:
        world = World()
        # Nobody publishes, so that hints bring nothing; and looks are far between.
        async with world.working(poll=MINUTE):
            await world.clock.sleep(SECOND)
            await world.store.submit([run := a_run()])
            world.faulty.fail("claim", times=1)
            await world.clock.sleep(2 * MINUTE)
            assert [held.id for held in world.started] == [run.id]
            failed = [wants for wants, _ in world.faulty.claims]
            assert all(want.runs is None for wants in failed for want in wants)

    run_virtual(scenario())


def test_what_is_wrong_with_an_engine_is_told_once_and_shown_while_it_lasts() -> None:
    async def scenario() -> None:
        world = World()
        said = ["it forgets"]

        async def warnings() -> list[str]:
            return list(said)

        world.engine.warnings = warnings  # type: ignore[method-assign]
        [guarded] = world.engines.all
        async with EngineWatch(world.engines, world.wakeups, world.clock):
            await world.clock.sleep(SECOND)
            assert guarded.warned == said
            assert await guarded.look() == []
            assert world.engines.health()["memory"] == {
                "state": "ok",
                "outages": 0,
                "refused": 0,
                "warnings": ["it forgets"],
            }
            said.clear()
            await world.clock.sleep(2 * MINUTE)
            assert world.engines.health()["memory"] == {"state": "ok", "outages": 0, "refused": 0}

    run_virtual(scenario())


def test_only_the_owner_of_the_first_shard_publishes() -> None:
    async def scenario() -> None:
        world = World()
        world.owned = {1: 1}
        async with world.a_dispatcher():
            await world.submit(*some_runs(5))
            await world.clock.sleep(10 * SECOND)
            assert world.engine.asked == 0
            assert READER not in world.store._tables.readers
            world.owned = {0: 1}
            await world.clock.sleep(7 * SECOND)
            assert await world.engine.depth("default") == 5

    run_virtual(scenario())


def test_queues_without_an_engine_are_not_told_of() -> None:
    async def scenario() -> None:
        world = World(queues=["mail"])
        async with world.a_dispatcher():
            await world.submit(a_run(), a_run(queue="mail"))
            await world.clock.sleep(8 * SECOND)
            assert (await world.engine.depth("default"), await world.engine.depth("mail")) == (0, 1)

    run_virtual(scenario())


def test_another_engine_can_be_used_on_a_running_system() -> None:
    async def scenario() -> None:
        world = World()
        runs = some_runs(30)
        async with world.a_dispatcher():
            await world.clock.sleep(SECOND)
            await world.submit(*runs)
            await world.clock.sleep(SECOND)
        other = FlakyEngine(world.clock)
        world.use(other)
        async with world.a_dispatcher(), world.working(poll=MINUTE):
            await world.until_ended(runs, 8 * SECOND)
        assert await world.engine.depth("default") == 30

    run_virtual(scenario())


def test_a_dispatcher_that_died_is_followed_where_it_stopped() -> None:
    async def scenario() -> None:
        world = World()
        async with world.a_dispatcher() as first:
            await world.clock.sleep(SECOND)
            await world.submit(*some_runs(5))
            await world.clock.sleep(SECOND)
            assert first.published == 5
        await world.submit(*some_runs(7))
        async with world.a_dispatcher() as second:
            await world.clock.sleep(SECOND)
            assert (second.published, second.republished) == (7, 0)
        assert await world.engine.depth("default") == 12

    run_virtual(scenario())


def test_a_pause_does_not_make_hints_go_round_in_circles() -> None:
    async def scenario() -> None:
        world = World()
        await world.store.pause(Pause(tenant=None, queue="default"), Author("ada"))
        async with world.a_dispatcher() as dispatcher, world.working():
            await world.submit(*some_runs(10))
            await asyncio.sleep(60)
            assert dispatcher.republished <= 10 * 12

    run_virtual(scenario())


def test_what_fails_for_good_is_told_to_an_engine_that_has_a_place_for_it() -> None:
    async def scenario() -> None:
        world = World()
        engine = BuryingEngine(world.clock)
        world.use(engine)
        runs = [a_run(payload=b'"fail"', policy=RunPolicy(retry=RetryPolicy(max_retries=0))) for _ in range(3)]
        async with world.a_dispatcher(), world.working():
            await world.clock.sleep(SECOND)
            await world.submit(*runs[:2], a_run())
            await world.clock.sleep(SECOND)
            assert sorted(dead.id for dead in engine.dead) == sorted(run.id for run in runs[:2])
            assert {(dead.task, dead.queue, dead.reason, dead.error) for dead in engine.dead} == {
                ("greet", "default", "error", "KeyError")
            }
            assert b"hush" not in engine.dead[0].message()
            # One that is away is told when it is back.
            engine.away = True
            await world.submit(runs[2])
            await world.clock.sleep(10 * SECOND)
            engine.away = False
            await world.clock.sleep(10 * SECOND)
            assert [dead.id for dead in engine.dead[2:]] == [runs[2].id]

    run_virtual(scenario())
