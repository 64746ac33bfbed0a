"""The publisher of events on the memory store, in virtual time."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from mainspring.core.dispatch.outbox import SINK
from mainspring.core.model.base.errors import BrokerUnavailable, Fenced
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, SECOND, Micros
from mainspring.core.model.events.events import Event, Topic
from mainspring.core.model.runs.completion import complete_cancel, complete_success
from mainspring.core.model.runs.new_run import About, JobRef, NewRun
from mainspring.core.ports.storage.outbox import EventBatch
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.store import Demand, NewSession
from mainspring.features.events.service import Publisher
from mainspring.stores.memory import MemoryStore
from mainspring.testing.virtual_time import VirtualClock
from tests.support.builders import a_job, a_policy, a_run, a_spec, a_worker, some_runs
from tests.support.memory_sink import MemorySink
from tests.support.virtual import in_virtual_time


class FlakySink(MemorySink):
    """A sink that can be down, and that can accept half of a batch without an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.accepts_half = False
        self.largest = 0

    async def publish(self, events: Sequence[Event], epoch: int) -> None:
        if self.away:
            raise BrokerUnavailable("it is away for the test")
        self.largest = max(self.largest, len(events))
        if self.accepts_half:
            await super().publish(events[: len(events) // 2], epoch)
            raise BrokerUnavailable("no answer")
        await super().publish(events, epoch)


class CountingStore(MemoryStore):
    reads = 0

    async def read_run_facts(self, runs: Sequence[RunId], since: int) -> Any:
        self.reads += 1
        return await super().read_run_facts(runs, since)


class World:
    def __init__(self, kept: Micros = DAY) -> None:
        self.clock = VirtualClock()
        self.store = CountingStore(self.clock, 4)
        self.sink = FlakySink()
        self.owned = {0: 1}
        self.kept = kept
        self.publisher = self.make_publisher()

    def make_publisher(self) -> Publisher:
        return Publisher(self.store, self.sink, LocalWakeups(), self.clock, lambda: self.owned, self.kept)

    async def run_all(self, runs: Sequence[NewRun]) -> None:
        """Submit, start and complete runs."""
        await self.store.submit(runs)
        session = await self.store.open_session(a_worker())
        held = await self.store.claim(session, 1, [Demand("default", len(runs))])
        await self.store.complete([complete_success(run, None) for run in held])

    def read(self, topic: Topic = Topic.JOBS) -> list[dict[str, Any]]:
        return [json.loads(event.body) for event in self.sink.topics[topic]]

    async def until_published(self, count: int, within: Micros = MINUTE) -> None:
        until = self.clock.monotonic() + within
        while len(self.sink.topics[Topic.JOBS]) < count:
            assert self.clock.monotonic() < until, len(self.sink.topics[Topic.JOBS])
            await self.clock.sleep(SECOND // 20)


@in_virtual_time
async def test_an_event_is_a_cloud_event_with_its_run_task_and_queue() -> None:
    world = World()
    async with world.publisher:
        await world.clock.sleep(SECOND)
        run = a_run(tenant='ac"me')
        await world.store.submit([run])
        await world.until_published(1)
        [event] = world.read()
        assert event == {
            "specversion": "1.0",
            "source": f"/mainspring/{await world.store.identity()}",
            "type": "job.submitted",
            "time": event["time"],
            "tenant": 'ac"me',
            "id": world.sink.topics[Topic.JOBS][0].id,
            "subject": run.id,
            "data": {"runId": run.id, "task": "greet", "queue": "default"},
        }
        assert event["time"].endswith("Z")
        assert world.sink.topics[Topic.JOBS][0].key == run.id


@in_virtual_time
async def test_an_event_has_the_name_that_another_program_gave_the_job() -> None:
    world = World()
    async with world.publisher:
        await world.clock.sleep(SECOND)
        job = a_job(a_spec(tags=("job:job_123",)))
        await world.store.put_jobs([job])
        other = a_job(a_spec(tags=("nightly",)))
        await world.store.put_jobs([other])
        runs = [
            a_run(about=About(tags=("job:e-1",))),
            a_run(job=JobRef(id=job.id, version=1)),
            a_run(job=JobRef(id=other.id, version=1)),
        ]
        await world.store.submit(runs)
        await world.until_published(3)
        names = {event["data"]["runId"]: event["data"].get("externalName") for event in world.read()}
        assert names == {runs[0].id: "e-1", runs[1].id: "job_123", runs[2].id: None}


@in_virtual_time
async def test_a_failed_run_is_published_with_its_reason_and_as_dead() -> None:
    world = World()
    async with world.publisher:
        await world.clock.sleep(SECOND)
        run = a_run(policy=a_policy(retries=0), deadline=MINUTE)
        await world.store.submit([run])
        await world.clock.sleep(2 * MINUTE)
        await world.store.expire(10)
        await world.until_published(3)
        submitted, failed, dead = world.read()
        assert [submitted["type"], failed["type"], dead["type"]] == ["job.submitted", "run.failed", "run.dead"]
        assert failed["data"] == {
            "runId": run.id,
            "task": "greet",
            "queue": "default",
            "attempt": 0,
            "reason": "deadline",
            "error": None,
        }
        assert failed["id"] != dead["id"]


@in_virtual_time
async def test_worker_events_have_their_own_topic() -> None:
    world = World()
    async with world.publisher:
        await world.clock.sleep(SECOND)
        session = await world.store.open_session(
            NewSession(name="w1", kind="worker", ttl=MINUTE, queues=("mail",), datacenter="eu")
        )
        await world.clock.sleep(10 * MINUTE)
        await world.store.lost_runs(10)
        await world.clock.sleep(2 * SECOND)
        joined, lost = world.read(Topic.WORKERS)
        assert (joined["type"], lost["type"]) == ("worker.joined", "worker.lost")
        about = {"workerId": str(session), "name": "w1", "version": "", "datacenter": "eu", "queues": ["mail"]}
        assert joined["data"] == lost["data"] == about
        assert "tenant" not in joined
        assert {event.key for event in world.sink.topics[Topic.WORKERS]} == {str(session)}


@in_virtual_time
async def test_many_events_are_published_in_order_with_few_reads() -> None:
    world = World()
    async with world.publisher:
        await world.clock.sleep(SECOND)
        for _ in range(10):
            await world.run_all(some_runs(700))
        await world.until_published(21_000)
        events = world.read()
        assert len({event["id"] for event in events}) == len(events) == 21_000
        by_run: dict[str, list[str]] = {}
        for event in events:
            by_run.setdefault(event["subject"], []).append(event["type"])
        assert set(map(tuple, by_run.values())) == {("job.submitted", "run.started", "run.succeeded")}
        assert world.store.reads < 30
        assert world.sink.largest <= 4_000
        assert world.publisher.sent == 21_010, "including one event for each of ten workers"


@pytest.mark.slow
@in_virtual_time
async def test_a_sink_catches_up_after_an_hour_without_delaying_another_sink() -> None:
    world = World()
    other = FlakySink()
    other.name = "other"
    beside = Publisher(world.store, other, LocalWakeups(), world.clock, lambda: world.owned, DAY)
    async with world.publisher, beside:
        await world.clock.sleep(SECOND)
        world.sink.away = True
        for _ in range(60):
            await world.run_all(some_runs(20))
            await world.store.tidy()
            await world.clock.sleep(MINUTE)
        assert world.publisher.is_unavailable
        assert world.read() == []
        assert len(other.topics[Topic.JOBS]) == 3_600
        world.sink.away = False
        await world.until_published(3_600, 10 * SECOND)
        assert [event.id for event in world.sink.topics[Topic.JOBS]] == [e.id for e in other.topics[Topic.JOBS]]
        assert not world.publisher.is_unavailable
        assert world.publisher.dropped == 0


async def let_events_expire(world: World) -> None:
    """The sink is down: 5 events are dropped, 2 carry the sign of that, and 3 are young enough."""
    await world.clock.sleep(SECOND)
    world.sink.away = True
    await world.store.submit(some_runs(5))
    await world.store.submit(some_runs(2))
    await world.clock.sleep(HOUR)
    await world.store.submit(some_runs(3))
    await world.clock.sleep(HOUR + MINUTE)


@in_virtual_time
async def test_events_past_their_retention_are_dropped_and_the_sink_receives_their_count() -> None:
    world = World(kept=2 * HOUR)
    async with world.publisher:
        await let_events_expire(world)
        world.sink.away = False
        await world.until_published(6)
        gap, *kept = world.read()
        assert (gap["type"], gap["data"]["count"]) == ("events.dropped", 5)
        assert gap["data"]["since"] == gap["data"]["until"]
        assert [event["type"] for event in kept] == ["job.submitted"] * 5
        assert world.publisher.dropped == 5


@pytest.mark.parametrize("back", [True, False], ids=["sink is back", "sink is still down"])
@in_virtual_time
async def test_dropped_events_are_published_by_the_successor_of_a_publisher_that_died(back: bool) -> None:
    world = World(kept=2 * HOUR)
    await world.publisher.start()
    await let_events_expire(world)
    await world.publisher.stop()
    world.sink.away = not back
    await world.make_publisher().start()
    await world.clock.sleep(HOUR)
    # All are too old by now. If the sink was down all the time, the 2 are dropped, and the 3 carry the sign.
    world.sink.away = False
    await world.until_published(6 if back else 4)
    gap, *kept = world.read()
    assert (gap["type"], gap["data"]["count"], gap["data"]["since"]) == ("events.dropped", None, None)
    assert [event["type"] for event in kept] == ["job.submitted"] * (5 if back else 3)


@in_virtual_time
async def test_a_new_publisher_reports_no_drop_if_nothing_was_dropped() -> None:
    world = World(kept=2 * HOUR)
    await world.publisher.start()
    await world.clock.sleep(SECOND)
    world.sink.away = True
    await world.store.submit(some_runs(5))
    await world.clock.sleep(HOUR)
    await world.publisher.stop()
    world.sink.away = False
    await world.make_publisher().start()
    await world.until_published(5)
    assert {event["type"] for event in world.read()} == {"job.submitted"}


@in_virtual_time
async def test_unacknowledged_events_are_published_again_under_the_same_ids() -> None:
    world = World()
    async with world.publisher:
        await world.clock.sleep(SECOND)
        world.sink.accepts_half = True
        await world.run_all(some_runs(100))
        await world.clock.sleep(3 * SECOND)
        world.sink.accepts_half = False
        await world.clock.sleep(10 * SECOND)
    events = world.sink.topics[Topic.JOBS]
    assert len(events) > 300
    bodies: dict[str, set[bytes]] = {}
    for event in events:
        bodies.setdefault(event.id, set()).add(event.body)
    assert len(bodies) == 300
    assert all(len(each) == 1 for each in bodies.values()), "one id has different bodies"


@in_virtual_time
async def test_a_new_publisher_continues_at_the_cursor_and_fences_off_the_frozen_one() -> None:
    world = World()
    await world.publisher.start()
    await world.clock.sleep(SECOND)
    await world.run_all(some_runs(10))
    await world.until_published(30)
    # This one freezes between read and publish, while another one gets the shard.
    stale: list[EventBatch] = []
    frozen = world.make_publisher()
    await world.store.submit(some_runs(5))
    stale += await world.store.events(SINK + world.sink.name, 10)
    await world.publisher.stop()
    world.owned = {0: 2}
    async with world.make_publisher():
        await world.until_published(35)
        events = len(world.read())
        with pytest.raises(Fenced):
            await frozen._publish(stale, 1)
        assert len(world.read()) == events


@in_virtual_time
async def test_a_publisher_without_shard_0_attaches_no_reader() -> None:
    world = World()
    world.owned = {1: 1}
    async with world.publisher:
        await world.clock.sleep(MINUTE)
        assert await world.store.readers() == []


@in_virtual_time
async def test_the_event_of_a_cancelled_run_has_a_reason() -> None:
    world = World()
    async with world.publisher:
        await world.clock.sleep(SECOND)
        await world.store.submit([a_run()])
        session = await world.store.open_session(a_worker())
        [held] = await world.store.claim(session, 1, [Demand("default", 1)])
        await world.store.complete([complete_cancel(held)])
        await world.until_published(3)
        assert world.read()[-1]["data"]["reason"] == "cancelled"
