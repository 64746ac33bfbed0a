"""Dispatchers and workers with a broker, on the memory store, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from random import Random

from mainspring.core.dispatch.broker_watch import BrokerWatch
from mainspring.core.dispatch.dispatcher import READER, Dispatcher
from mainspring.core.model.base.errors import BrokerUnavailable
from mainspring.core.model.base.instant import MILLISECOND, MINUTE, SECOND, Micros
from mainspring.core.model.cluster.hints import Hint, HintCodec
from mainspring.core.model.runs.dead_letters import DeadRun
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.retry import RetryPolicy
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.ports.dispatch import HintDelivery
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import Pause
from mainspring.core.ports.wakeups import queue_topic
from mainspring.core.runtime.brokers import Brokers, GuardedBroker
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.worker.runtime import WorkerRuntime
from mainspring.core.worker.settings import WorkerSettings
from mainspring.core.worker.worker import Worker
from mainspring.stores.memory import MemoryStore
from mainspring.testing.virtual_time import VirtualClock
from tests.support.builders import a_run, some_runs
from tests.support.memory_dispatch import MemoryDispatch
from tests.support.virtual import in_virtual_time
from tests.support.worker_kit import FaultyStore, Tasks


class FlakyBroker(MemoryDispatch):
    """A broker that can be down, and that can lose and repeat hints."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock, HintCodec(b"key"))
        self.away = False
        self.times = 1
        self.asked = 0
        #: The number of hints of each publish.
        self.sizes: list[int] = []
        self.asked_to_publish: Callable[[], None] = lambda: None

    def _here(self) -> None:
        self.asked += 1
        if self.away:
            raise BrokerUnavailable("it is away for the test")

    async def publish(self, hints: Sequence[Hint]) -> None:
        self._here()
        self.sizes.append(len(hints))
        self.asked_to_publish()
        for _ in range(self.times):
            await super().publish(hints)

    async def take(self, queue: str, limit: int, wait: Micros) -> list[HintDelivery]:
        self._here()
        found = await super().take(queue, limit, wait)
        self._here()
        return found

    async def depth(self, queue: str) -> int:
        self._here()
        return await super().depth(queue)


class DeadLetterBroker(FlakyBroker):
    """A broker with a dead letter queue."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.dead: list[DeadRun] = []

    async def publish_dead(self, dead: Sequence[DeadRun]) -> None:
        self._here()
        self.dead += dead


class World:
    def __init__(self, queues: Collection[str] = ("*",)) -> None:
        self.clock = VirtualClock()
        self.store = MemoryStore(self.clock, 4)
        self.faulty = FaultyStore(self.store)
        self.wakeups = LocalWakeups()
        self.broker = FlakyBroker(self.clock)
        self.owned = {0: 1}
        self.started: list[HeldRun] = []
        self.took: dict[str, Micros] = {}
        self.use(self.broker, queues)

    def use(self, broker: FlakyBroker, queues: Collection[str] = ("*",)) -> None:
        guarded = GuardedBroker(broker, self.clock)
        self.brokers = Brokers([guarded], dict.fromkeys(queues, guarded), "test")

    def make_dispatcher(self) -> Dispatcher:
        return Dispatcher(self.store, self.brokers, self.wakeups, self.clock, lambda: self.owned)

    @asynccontextmanager
    async def working(self, slots: int = 10, poll: Micros = SECOND) -> AsyncIterator[Worker]:
        async def note(run: HeldRun) -> None:
            if run.payload == b'"fail"':
                raise KeyError("hush")
            self.started.append(run)
            self.took[run.id] = self.clock.monotonic()
            await self.clock.sleep(10 * MILLISECOND)

        settings = WorkerSettings(queues={"default": slots}, poll_interval=poll, capture_logs=False)
        guarded = self.brokers.of("default")
        worker = Worker(
            WorkerRuntime(self.faulty, LocalWakeups(), self.clock, settings, Random(1)),
            Tasks(greet=note),
            brokers={} if guarded is None else {"default": guarded},
        )
        await worker.start()
        try:
            yield worker
        finally:
            await worker.stop(0)

    async def submit(self, *runs: NewRun) -> None:
        await self.store.submit(runs)
        self.wakeups.notify([queue_topic(queue) for queue in {run.queue for run in runs}])

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


@in_virtual_time
async def test_a_hint_starts_a_run_within_milliseconds() -> None:
    world = World()
    # Workers do not poll the store.
    async with world.make_dispatcher() as dispatcher, world.working(poll=MINUTE):
        await world.clock.sleep(3 * SECOND)
        run = a_run()
        await world.submit(run)
        began = world.clock.monotonic()
        await world.until_ended([run], SECOND)
        assert world.took[run.id] - began <= 20 * MILLISECOND
        assert (dispatcher.published, dispatcher.republished) == (1, 0)
    hinted = [demand for demands, _ in world.faulty.claims for demand in demands if demand.runs is not None]
    assert [demand.runs for demand in hinted] == [(run.id,)]
    assert world.broker._queues["default"].taken == {}


@in_virtual_time
async def test_hints_beyond_the_free_slots_are_claimed_in_batches() -> None:
    world = World()
    async with world.make_dispatcher(), world.working(poll=MINUTE):
        await world.clock.sleep(SECOND)
        runs = some_runs(500)
        await world.submit(*runs)
        # Ten runs at a time take ten milliseconds.
        await world.until_ended(runs, 2 * SECOND)
        assert len(world.faulty.claims) < 200


@in_virtual_time
async def test_a_run_whose_hint_is_delivered_three_times_starts_once() -> None:
    world = World()
    world.broker.times = 3
    async with world.make_dispatcher(), world.working(poll=MINUTE), world.working(poll=MINUTE):
        await world.clock.sleep(SECOND)
        runs = some_runs(100)
        await world.submit(*runs)
        await world.until_ended(runs, 5 * SECOND)


@in_virtual_time
async def test_hints_that_the_broker_lost_are_published_again_within_seconds() -> None:
    world = World()
    async with world.make_dispatcher() as dispatcher:
        await world.clock.sleep(SECOND)
        await world.submit(*some_runs(50))
        await world.clock.sleep(SECOND)
        assert await world.broker.depth("default") == 50
        world.broker.flush()
        await world.clock.sleep(6 * SECOND)
        assert await world.broker.depth("default") == 50
        # Hints that no worker takes are not published again.
        await world.clock.sleep(20 * SECOND)
        assert dispatcher.republished == 50


@in_virtual_time
async def test_a_large_backlog_that_the_broker_lost_is_published_again_quickly() -> None:
    world = World()
    async with world.make_dispatcher():
        await world.clock.sleep(SECOND)
        runs = some_runs(2_500)
        await world.submit(*runs)
        await world.clock.sleep(SECOND)
        world.broker.flush()
        async with world.working(slots=100, poll=MINUTE):
            await world.until_ended(runs, 12 * SECOND)


@in_virtual_time
async def test_a_backlog_is_published_in_batches_that_are_acknowledged_one_by_one() -> None:
    world = World()
    await world.store.attach_reader(READER)
    runs = some_runs(12_000)
    for start in range(0, 9_000, 900):
        await world.store.submit(runs[start : start + 900])
    # Runs of one commit are one event, however many.
    await world.store.submit(runs[9_000:])
    cursors: list[str] = []
    world.broker.asked_to_publish = lambda: cursors.append(world.store._tables.readers[READER])
    async with world.make_dispatcher() as dispatcher:
        await world.clock.sleep(SECOND)
        assert dispatcher.published == 12_000
        assert await world.broker.depth("default") == 12_000
    assert max(world.broker.sizes) <= 2_000
    # The cursor moves between batches, so that a successor does not start at the first event.
    assert len(set(cursors)) >= 4


@in_virtual_time
async def test_a_dispatcher_that_loses_its_shard_publishes_no_further_batch() -> None:
    world = World()
    await world.store.attach_reader(READER)
    for _ in range(10):
        await world.store.submit(some_runs(1_000))
    world.broker.asked_to_publish = lambda: world.owned.clear()
    async with world.make_dispatcher():
        await world.clock.sleep(SECOND)
        assert 0 < await world.broker.depth("default") < 10_000


@in_virtual_time
async def test_runs_submitted_before_the_first_dispatcher_started_are_published() -> None:
    world = World()
    await world.submit(*some_runs(5))
    async with world.make_dispatcher():
        await world.clock.sleep(7 * SECOND)
        assert await world.broker.depth("default") == 5


@in_virtual_time
async def test_workers_poll_the_store_while_the_broker_is_down_and_use_it_again_afterwards() -> None:
    world = World()
    async with world.make_dispatcher(), world.working():
        await world.clock.sleep(SECOND)
        world.broker.away = True
        first = some_runs(20)
        await world.submit(*first)
        await world.until_ended(first, 4 * SECOND)
        asked = world.broker.asked
        await world.clock.sleep(MINUTE)
        # The broker gets only a probe now and then.
        assert world.broker.asked - asked < 60
        assert world.brokers.health()["memory"] == {"state": "away", "outages": 1, "refused": 0}
        world.broker.away = False
        await world.clock.sleep(6 * SECOND)
        assert not world.brokers.all[0].away
        second = some_runs(5)
        await world.submit(*second)
        began = world.clock.monotonic()
        await world.until_ended(second, SECOND)
        assert max(world.took[run.id] for run in second) - began <= 20 * MILLISECOND


@in_virtual_time
async def test_an_outage_of_the_broker_for_ten_minutes_delays_no_run() -> None:
    world = World()
    async with world.make_dispatcher(), world.working():
        await world.clock.sleep(SECOND)
        [guarded] = world.brokers.all
        world.broker.away = True
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
        world.broker.away = False
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
        # Each run started once and on time, because a worker polls the store once a second.
        assert sorted(run.id for run in world.started) == sorted(submitted)
        assert max(world.took[run] - at for run, at in submitted.items()) <= 2 * SECOND


class HalfBroker(FlakyBroker):
    """A broker with one broken queue."""

    broken = True

    async def take(self, queue: str, limit: int, wait: Micros) -> list[HintDelivery]:
        if queue == "broken" and self.broken:
            raise BrokerUnavailable("it is broken for the test")
        return await super().take(queue, limit, wait)


@in_virtual_time
async def test_a_queue_that_fails_beside_one_that_works_does_not_make_the_breaker_flap() -> None:
    clock = VirtualClock()
    broker = HalfBroker(clock)
    guarded = GuardedBroker(broker, clock)

    async def serve(queue: str) -> None:
        while True:
            if await guarded.take(queue, 1, SECOND) is None:
                await clock.sleep(50 * MILLISECOND)

    serving = [asyncio.create_task(serve(queue)) for queue in ("good", "broken")]
    await clock.sleep(MINUTE)
    assert 2 <= guarded.outages <= 20
    broker.broken = False
    await clock.sleep(MINUTE)
    assert not guarded.away
    for task in serving:
        task.cancel()
    # After it has worked for a while, the breaker starts with a short pause again.
    broker.broken = True
    assert await guarded.take("broken", 1, SECOND) is None
    await clock.sleep(300 * MILLISECOND)
    assert guarded.away
    assert guarded.may_ask


@in_virtual_time
async def test_a_call_that_does_not_reach_the_broker_does_not_close_the_breaker() -> None:
    clock = VirtualClock()
    broker = FlakyBroker(clock)
    guarded = GuardedBroker(broker, clock)
    broker.away = True
    assert await guarded.depth("default") is None
    await clock.sleep(MINUTE)
    await guarded.done([])
    assert guarded.away


@in_virtual_time
async def test_published_republished_taken_and_claimed_hints_are_counted() -> None:
    world = World()
    [guarded] = world.brokers.all
    async with world.make_dispatcher():
        await world.clock.sleep(SECOND)
        await world.submit(*some_runs(20))
        await world.clock.sleep(SECOND)
        assert (guarded.published, guarded.republished, guarded.taken, guarded.claimed) == (20, 0, 0, 0)
        world.broker.flush()
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


@in_virtual_time
async def test_a_poll_of_the_store_that_failed_is_repeated() -> None:
    world = World()
    # Without a dispatcher there are no hints, and polls are rare.
    async with world.working(poll=MINUTE):
        await world.clock.sleep(SECOND)
        await world.store.submit([run := a_run()])
        world.faulty.fail("claim", times=1)
        await world.clock.sleep(2 * MINUTE)
        assert [held.id for held in world.started] == [run.id]
        failed = [demands for demands, _ in world.faulty.claims]
        assert all(demand.runs is None for demands in failed for demand in demands)


@in_virtual_time
async def test_a_warning_of_a_broker_is_logged_once_and_shown_while_it_lasts() -> None:
    world = World()
    found = ["it forgets"]

    async def warnings() -> list[str]:
        return list(found)

    world.broker.warnings = warnings  # type: ignore[method-assign]
    [guarded] = world.brokers.all
    async with BrokerWatch(world.brokers, world.wakeups, world.clock):
        await world.clock.sleep(SECOND)
        assert guarded.warned == found
        assert await guarded.look() == []
        assert world.brokers.health()["memory"] == {
            "state": "ok",
            "outages": 0,
            "refused": 0,
            "warnings": ["it forgets"],
        }
        found.clear()
        await world.clock.sleep(2 * MINUTE)
        assert world.brokers.health()["memory"] == {"state": "ok", "outages": 0, "refused": 0}


@in_virtual_time
async def test_only_the_owner_of_shard_0_publishes_hints() -> None:
    world = World()
    world.owned = {1: 1}
    async with world.make_dispatcher():
        await world.submit(*some_runs(5))
        await world.clock.sleep(10 * SECOND)
        assert world.broker.asked == 0
        assert READER not in world.store._tables.readers
        world.owned = {0: 1}
        await world.clock.sleep(7 * SECOND)
        assert await world.broker.depth("default") == 5


@in_virtual_time
async def test_no_hints_are_published_for_queues_without_a_broker() -> None:
    world = World(queues=["mail"])
    async with world.make_dispatcher():
        await world.submit(a_run(), a_run(queue="mail"))
        await world.clock.sleep(8 * SECOND)
        assert (await world.broker.depth("default"), await world.broker.depth("mail")) == (0, 1)


@in_virtual_time
async def test_the_broker_can_be_replaced_while_runs_are_queued() -> None:
    world = World()
    runs = some_runs(30)
    async with world.make_dispatcher():
        await world.clock.sleep(SECOND)
        await world.submit(*runs)
        await world.clock.sleep(SECOND)
    other = FlakyBroker(world.clock)
    world.use(other)
    async with world.make_dispatcher(), world.working(poll=MINUTE):
        await world.until_ended(runs, 8 * SECOND)
    assert await world.broker.depth("default") == 30


@in_virtual_time
async def test_a_new_dispatcher_continues_at_the_cursor_of_the_last_one() -> None:
    world = World()
    async with world.make_dispatcher() as first:
        await world.clock.sleep(SECOND)
        await world.submit(*some_runs(5))
        await world.clock.sleep(SECOND)
        assert first.published == 5
    await world.submit(*some_runs(7))
    async with world.make_dispatcher() as second:
        await world.clock.sleep(SECOND)
        assert (second.published, second.republished) == (7, 0)
    assert await world.broker.depth("default") == 12


@in_virtual_time
async def test_hints_of_a_paused_queue_are_republished_at_a_bounded_rate() -> None:
    world = World()
    await world.store.pause(Pause(tenant=None, queue="default"), Author("ada"))
    async with world.make_dispatcher() as dispatcher, world.working():
        await world.submit(*some_runs(10))
        await asyncio.sleep(60)
        assert dispatcher.republished <= 10 * 12


@in_virtual_time
async def test_dead_runs_are_sent_to_a_broker_that_has_a_dead_letter_queue() -> None:
    world = World()
    broker = DeadLetterBroker(world.clock)
    world.use(broker)
    runs = [a_run(payload=b'"fail"', policy=RunPolicy(retry=RetryPolicy(max_retries=0))) for _ in range(3)]
    async with world.make_dispatcher(), world.working():
        await world.clock.sleep(SECOND)
        await world.submit(*runs[:2], a_run())
        await world.clock.sleep(SECOND)
        assert sorted(dead.id for dead in broker.dead) == sorted(run.id for run in runs[:2])
        assert {(dead.task, dead.queue, dead.reason, dead.error) for dead in broker.dead} == {
            ("greet", "default", "error", "KeyError")
        }
        assert b"hush" not in broker.dead[0].message()
        # A broker that is down receives its dead runs when it is back.
        broker.away = True
        await world.submit(runs[2])
        await world.clock.sleep(10 * SECOND)
        broker.away = False
        await world.clock.sleep(10 * SECOND)
        assert [dead.id for dead in broker.dead[2:]] == [runs[2].id]
