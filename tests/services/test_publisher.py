"""Telling a sink what happens, on the store in memory, in virtual time: in order, at least once, after an hour away."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from mainspring.adapters.events.memory import MemorySink
from mainspring.adapters.store.memory import MemoryStore
from mainspring.adapters.wakeups.local import LocalWakeups
from mainspring.control.publisher import SINK, Publisher
from mainspring.domain.errors import EngineUnavailable, Fenced
from mainspring.domain.events import Event, Topic
from mainspring.domain.ids import RunId
from mainspring.domain.instant import DAY, HOUR, MINUTE, SECOND, Micros
from mainspring.domain.run import NewRun, settle_cancel, settle_success
from mainspring.ports.store import EventBatch, NewSession, Want
from mainspring.testing.virtual_time import VirtualClock, run_virtual
from tests.support.builders import a_policy, a_run, a_worker, some_runs


class FlakySink(MemorySink):
    """One that can be away, and that can take a part and not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.takes_and_dies = False
        self.largest = 0

    async def publish(self, events: Sequence[Event], epoch: int) -> None:
        if self.away:
            raise EngineUnavailable("it is away for the test")
        self.largest = max(self.largest, len(events))
        if self.takes_and_dies:
            await super().publish(events[: len(events) // 2], epoch)
            raise EngineUnavailable("no answer")
        await super().publish(events, epoch)


class CountingStore(MemoryStore):
    questions = 0

    async def facts_of(self, runs: Sequence[RunId], since: int) -> Any:
        self.questions += 1
        return await super().facts_of(runs, since)


class World:
    def __init__(self, kept: Micros = DAY) -> None:
        self.clock = VirtualClock()
        self.store = CountingStore(self.clock, 4)
        self.sink = FlakySink()
        self.owned = {0: 1}
        self.kept = kept
        self.publisher = self.another()

    def another(self) -> Publisher:
        return Publisher(self.store, self.sink, LocalWakeups(), self.clock, lambda: self.owned, self.kept)

    async def lives(self, runs: Sequence[NewRun]) -> None:
        """Submitted, started, succeeded."""
        await self.store.submit(runs)
        session = await self.store.open_session(a_worker())
        held = await self.store.claim(session, 1, [Want("default", len(runs))])
        await self.store.settle([settle_success(run, None) for run in held])

    def told(self, topic: Topic = Topic.JOBS) -> list[dict[str, Any]]:
        return [json.loads(event.body) for event in self.sink.topics[topic]]

    async def until_told(self, count: int, within: Micros = MINUTE) -> None:
        until = self.clock.monotonic() + within
        while len(self.sink.topics[Topic.JOBS]) < count:
            assert self.clock.monotonic() < until, len(self.sink.topics[Topic.JOBS])
            await self.clock.sleep(SECOND // 20)


def test_an_event_is_a_cloud_event_that_says_what_it_is_about() -> None:
    async def scenario() -> None:
        world = World()
        async with world.publisher:
            await world.clock.sleep(SECOND)
            run = a_run(tenant='ac"me')
            await world.store.submit([run])
            await world.until_told(1)
            [event] = world.told()
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

    run_virtual(scenario())


def test_a_failure_is_told_with_its_reason_and_as_a_dead_letter() -> None:
    async def scenario() -> None:
        world = World()
        async with world.publisher:
            await world.clock.sleep(SECOND)
            run = a_run(policy=a_policy(retries=0), deadline=MINUTE)
            await world.store.submit([run])
            await world.clock.sleep(2 * MINUTE)
            await world.store.expire(10)
            await world.until_told(3)
            submitted, failed, dead = world.told()
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

    run_virtual(scenario())


def test_workers_have_a_topic_of_their_own() -> None:
    async def scenario() -> None:
        world = World()
        async with world.publisher:
            await world.clock.sleep(SECOND)
            session = await world.store.open_session(
                NewSession(name="w1", kind="worker", ttl=MINUTE, queues=("mail",), datacenter="eu")
            )
            await world.clock.sleep(10 * MINUTE)
            await world.store.lost_runs(10)
            await world.clock.sleep(2 * SECOND)
            joined, lost = world.told(Topic.WORKERS)
            assert (joined["type"], lost["type"]) == ("worker.joined", "worker.lost")
            about = {"workerId": str(session), "name": "w1", "version": "", "datacenter": "eu", "queues": ["mail"]}
            assert joined["data"] == lost["data"] == about
            assert "tenant" not in joined
            assert {event.key for event in world.sink.topics[Topic.WORKERS]} == {str(session)}

    run_virtual(scenario())


def test_all_of_many_are_told_in_order_in_few_questions() -> None:
    async def scenario() -> None:
        world = World()
        async with world.publisher:
            await world.clock.sleep(SECOND)
            for _ in range(10):
                await world.lives(some_runs(700))
            await world.until_told(21_000)
            told = world.told()
            assert len({event["id"] for event in told}) == len(told) == 21_000
            by_run: dict[str, list[str]] = {}
            for event in told:
                by_run.setdefault(event["subject"], []).append(event["type"])
            assert set(map(tuple, by_run.values())) == {("job.submitted", "run.started", "run.succeeded")}
            assert world.store.questions < 30
            assert world.sink.largest <= 4_000
            assert world.publisher.sent == 21_010, "with those of ten workers"

    run_virtual(scenario())


def test_a_sink_that_was_away_for_an_hour_catches_up_and_holds_up_nobody() -> None:
    async def scenario() -> None:
        world = World()
        other = FlakySink()
        other.name = "other"
        beside = Publisher(world.store, other, LocalWakeups(), world.clock, lambda: world.owned, DAY)
        async with world.publisher, beside:
            await world.clock.sleep(SECOND)
            world.sink.away = True
            for _ in range(60):
                await world.lives(some_runs(20))
                await world.store.tidy()
                await world.clock.sleep(MINUTE)
            assert world.publisher.away
            assert world.told() == []
            assert len(other.topics[Topic.JOBS]) == 3_600
            world.sink.away = False
            await world.until_told(3_600, 10 * SECOND)
            assert [event.id for event in world.sink.topics[Topic.JOBS]] == [e.id for e in other.topics[Topic.JOBS]]
            assert not world.publisher.away
            assert world.publisher.dropped == 0

    run_virtual(scenario())


async def away_for_too_long(world: World) -> None:
    """5 are given up, 2 are the sign that they were, and 3 are not too old."""
    await world.clock.sleep(SECOND)
    world.sink.away = True
    await world.store.submit(some_runs(5))
    await world.store.submit(some_runs(2))
    await world.clock.sleep(HOUR)
    await world.store.submit(some_runs(3))
    await world.clock.sleep(HOUR + MINUTE)


def test_what_is_older_than_it_is_kept_is_given_up_and_the_sink_is_told() -> None:
    async def scenario() -> None:
        world = World(kept=2 * HOUR)
        async with world.publisher:
            await away_for_too_long(world)
            world.sink.away = False
            await world.until_told(6)
            gap, *kept = world.told()
            assert (gap["type"], gap["data"]["count"]) == ("events.dropped", 5)
            assert gap["data"]["since"] == gap["data"]["until"]
            assert [event["type"] for event in kept] == ["job.submitted"] * 5
            assert world.publisher.dropped == 5

    run_virtual(scenario())


@pytest.mark.parametrize("back", [True, False])
def test_what_was_given_up_is_told_also_when_whoever_did_it_died(back: bool) -> None:
    """Whether the sink is back by then or not."""

    async def scenario() -> None:
        world = World(kept=2 * HOUR)
        await world.publisher.start()
        await away_for_too_long(world)
        await world.publisher.stop()
        world.sink.away = not back
        await world.another().start()
        await world.clock.sleep(HOUR)
        # 2 and 3 are too old by now: if it was away all the time, the 2 are gone, and the 3 are the sign.
        world.sink.away = False
        await world.until_told(6 if back else 4)
        gap, *kept = world.told()
        assert (gap["type"], gap["data"]["count"], gap["data"]["since"]) == ("events.dropped", None, None)
        assert [event["type"] for event in kept] == ["job.submitted"] * (5 if back else 3)

    run_virtual(scenario())


def test_who_takes_over_tells_of_no_gap_where_there_is_none() -> None:
    async def scenario() -> None:
        world = World(kept=2 * HOUR)
        await world.publisher.start()
        await world.clock.sleep(SECOND)
        world.sink.away = True
        await world.store.submit(some_runs(5))
        await world.clock.sleep(HOUR)
        await world.publisher.stop()
        world.sink.away = False
        await world.another().start()
        await world.until_told(5)
        assert {event["type"] for event in world.told()} == {"job.submitted"}

    run_virtual(scenario())


def test_what_was_told_and_not_acknowledged_is_told_again_under_the_same_ids() -> None:
    async def scenario() -> None:
        world = World()
        async with world.publisher:
            await world.clock.sleep(SECOND)
            world.sink.takes_and_dies = True
            await world.lives(some_runs(100))
            await world.clock.sleep(3 * SECOND)
            world.sink.takes_and_dies = False
            await world.clock.sleep(10 * SECOND)
        events = world.sink.topics[Topic.JOBS]
        assert len(events) > 300
        bodies: dict[str, set[bytes]] = {}
        for event in events:
            bodies.setdefault(event.id, set()).add(event.body)
        assert len(bodies) == 300
        assert all(len(each) == 1 for each in bodies.values()), "the same id, and something else was said"

    run_virtual(scenario())


def test_whoever_takes_over_goes_on_where_the_last_one_was_and_the_frozen_one_is_refused() -> None:
    async def scenario() -> None:
        world = World()
        await world.publisher.start()
        await world.clock.sleep(SECOND)
        await world.lives(some_runs(10))
        await world.until_told(30)
        # Frozen between reading and telling: another has the shard by now.
        stale: list[EventBatch] = []
        frozen = world.another()
        await world.store.submit(some_runs(5))
        stale += await world.store.events(SINK + world.sink.name, 10)
        await world.publisher.stop()
        world.owned = {0: 2}
        async with world.another():
            await world.until_told(35)
            events = len(world.told())
            with pytest.raises(Fenced):
                await frozen._publish(stale, 1)
            assert len(world.told()) == events

    run_virtual(scenario())


def test_who_does_not_own_the_shard_tells_nothing_and_reads_nothing() -> None:
    async def scenario() -> None:
        world = World()
        world.owned = {1: 1}
        async with world.publisher:
            await world.clock.sleep(MINUTE)
            assert await world.store.readers() == []

    run_virtual(scenario())


def test_a_cancel_is_explained() -> None:
    async def scenario() -> None:
        world = World()
        async with world.publisher:
            await world.clock.sleep(SECOND)
            await world.store.submit([a_run()])
            session = await world.store.open_session(a_worker())
            [held] = await world.store.claim(session, 1, [Want("default", 1)])
            await world.store.settle([settle_cancel(held)])
            await world.until_told(3)
            assert world.told()[-1]["data"]["reason"] == "cancelled"

    run_virtual(scenario())
