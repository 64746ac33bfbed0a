"""Taking work in: what is shared, what is asked again, and who is told."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from random import Random

import msgspec
import pytest

from mainspring.adapters.store.memory import MemoryStore
from mainspring.adapters.wakeups.local import LocalWakeups
from mainspring.control.jobs import Jobs
from mainspring.domain.errors import Invalid, NotFound, StoreUnavailable
from mainspring.domain.ids import is_derived, shard_for, shard_of
from mainspring.domain.instant import DAY, HOUR, MILLISECOND, SECOND, Micros
from mainspring.domain.job import JobState
from mainspring.domain.placement import place_for, place_of
from mainspring.domain.run import NewRun, RunPolicy, RunState, made_once
from mainspring.ports.store import Accepted, PutOutcome, Want
from mainspring.ports.wakeups import CANCELS, SCHEDULES, Bell, queue_topic
from mainspring.testing.virtual_time import VirtualClock, run_virtual
from tests.support.builders import a_job, a_run, a_worker, an_id, some_runs

SHARDS = 16


class RemoteStore(MemoryStore):
    """A commit takes 5 ms. The first ``failures`` of them fail, before or after they were applied."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock, SHARDS)
        self.clock = clock
        self.batches: list[int] = []
        self.failures = 0
        self.applied_all_the_same = False
        self.hangs = False

    async def submit(self, runs: Sequence[NewRun]) -> list[Accepted]:
        self.batches.append(len(runs))
        if self.hangs:
            await self.clock.sleep(HOUR)
        await self.clock.sleep(5 * MILLISECOND)
        if self.failures:
            self.failures -= 1
            if self.applied_all_the_same:
                await super().submit(runs)
            raise StoreUnavailable("no answer")
        return await super().submit(runs)


class World:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = RemoteStore(self.clock)
        self.wakeups = LocalWakeups()
        self.jobs = Jobs(self.store, self.wakeups, self.clock, Random(7), shards=SHARDS)

    def bell(self, *topics: str) -> Bell:
        return self.wakeups.listen(topics)


async def rang(bell: Bell) -> bool:
    return await bell.wait(1)


def test_an_immediate_run_is_queued_and_its_queue_is_told() -> None:
    async def scenario() -> None:
        world = World()
        mail, other, schedules = (
            world.bell(queue_topic("mail")),
            world.bell(queue_topic("other")),
            world.bell(SCHEDULES),
        )
        accepted = await world.jobs.submit(a_run(queue="mail"))
        assert (accepted.state, accepted.new) == (RunState.QUEUED, True)
        assert [await rang(bell) for bell in (mail, other, schedules)] == [True, False, False]

    run_virtual(scenario())


@pytest.mark.parametrize(("delay", "soon"), [(SECOND, True), (HOUR, False)])
def test_schedulers_are_told_of_runs_that_are_due_soon(delay: Micros, soon: bool) -> None:
    async def scenario() -> None:
        world = World()
        bell = world.bell(SCHEDULES)
        await world.jobs.submit(a_run(delay=delay))
        assert await rang(bell) is soon
        await world.jobs.submit(a_run(at=world.clock.now() + delay))
        assert await rang(bell) is soon

    run_virtual(scenario())


def test_submits_at_the_same_time_share_commits_and_the_first_does_not_wait() -> None:
    async def scenario() -> None:
        world = World()
        accepted = await asyncio.gather(*(world.jobs.submit(run) for run in some_runs(500)))
        assert len({answer.id for answer in accepted}) == 500
        assert sum(world.store.batches) == 500
        assert len(world.store.batches) <= 2

    run_virtual(scenario())


def test_many_runs_go_in_batches_and_are_answered_in_order() -> None:
    async def scenario() -> None:
        world = World()
        runs = some_runs(2_500)
        accepted = await world.jobs.submit_many(runs)
        assert [answer.id for answer in accepted] == [run.id for run in runs]
        assert world.store.batches == [1_000, 1_000, 500]

    run_virtual(scenario())


def test_large_payloads_go_in_smaller_batches() -> None:
    async def scenario() -> None:
        world = World()
        large = b'"' + b"x" * (256 * 1024 - 2) + b'"'
        runs = [a_run(payload=large) for _ in range(70)] + some_runs(5)
        accepted = await world.jobs.submit_many(runs)
        assert [answer.id for answer in accepted] == [run.id for run in runs]
        assert world.store.batches == [32, 32, 11]
        # The same for those that only happen to come together.
        world.store.batches.clear()
        await asyncio.gather(*[world.jobs.submit(a_run(payload=large)) for _ in range(41)])
        assert world.store.batches == [32, 9]

    run_virtual(scenario())


def test_a_store_that_hangs_is_given_up_after_eight_seconds() -> None:
    async def scenario() -> None:
        world = World()
        world.store.hangs = True
        began = world.clock.monotonic()
        with pytest.raises(StoreUnavailable):
            await world.jobs.submit(a_run())
        assert world.clock.monotonic() - began == 8 * SECOND
        world.store.hangs = False
        assert (await world.jobs.submit(a_run())).new

    run_virtual(scenario())


def test_who_has_given_up_waiting_submits_nothing() -> None:
    async def scenario() -> None:
        world = World()
        first = asyncio.create_task(world.jobs.submit(a_run()))
        await asyncio.sleep(0)
        second = asyncio.create_task(world.jobs.submit(a_run()))
        await asyncio.sleep(0)
        second.cancel()
        await first
        await asyncio.gather(second, return_exceptions=True)
        assert world.store.batches == [1]

    run_virtual(scenario())


@pytest.mark.parametrize("applied", [False, True])
def test_a_store_that_does_not_answer_is_asked_again_and_nothing_is_made_twice(applied: bool) -> None:
    async def scenario() -> None:
        world = World()
        world.store.failures = 3
        world.store.applied_all_the_same = applied
        bell = world.bell(queue_topic("default"))
        run = a_run()
        accepted = await world.jobs.submit(run)
        assert accepted.id == run.id
        assert world.store.batches == [1, 1, 1, 1]
        (depth,) = await world.store.depths()
        assert depth.queued == 1
        assert await rang(bell)

    run_virtual(scenario())


def test_patience_has_an_end() -> None:
    async def scenario() -> None:
        world = World()
        world.store.failures = 1_000
        began = world.clock.monotonic()
        with pytest.raises(StoreUnavailable):
            await world.jobs.submit(a_run())
        assert 3 * SECOND <= world.clock.monotonic() - began <= 5 * SECOND
        world.store.failures = 0
        assert (await world.jobs.submit(a_run())).new

    run_virtual(scenario())


def test_what_is_invalid_is_refused_before_the_store_sees_it() -> None:
    async def scenario() -> None:
        world = World()
        with pytest.raises(Invalid, match="priority"):
            await world.jobs.submit(a_run(priority=11))
        with pytest.raises(Invalid, match="queue"):
            await world.jobs.submit_many([a_run(), a_run(queue="")])
        assert world.store.batches == []

    run_virtual(scenario())


def test_one_that_the_store_refuses_does_not_fail_the_strangers_in_its_batch() -> None:
    async def scenario() -> None:
        world = World()
        bad = a_run(shard=SHARDS)
        answers = await asyncio.gather(
            *(world.jobs.submit(run) for run in [*some_runs(20), bad, *some_runs(20)]), return_exceptions=True
        )
        assert [index for index, answer in enumerate(answers) if isinstance(answer, Invalid)] == [20]
        assert sum(isinstance(answer, Accepted) for answer in answers) == 40

    run_virtual(scenario())


def test_ids_of_a_batch_share_a_shard_except_for_those_with_an_ordering_key() -> None:
    async def scenario() -> None:
        world = World()
        ids = world.jobs.new_run_ids(["", "video-1", "", "video-1", ""])
        assert sorted(ids) == ids
        assert len({shard_of(ids[index]) for index in (0, 2, 4)}) == 1
        assert shard_of(ids[1]) == shard_of(ids[3]) == shard_for("video-1", SHARDS)
        assert len({shard_of(world.jobs.new_run_id()) for _ in range(200)}) == SHARDS
        assert shard_of(world.jobs.new_job_id("default", "report")) < SHARDS

    run_virtual(scenario())


def test_an_id_by_key_is_the_same_for_the_same_request_for_a_day() -> None:
    async def scenario() -> None:
        world = World()
        run, same, other = (made_once(a_run(payload=payload), "once") for payload in (b"1", b"1", b"2"))
        first = world.jobs.id_by_key(run)
        assert is_derived(first)
        assert shard_of(first) < SHARDS
        assert first == world.jobs.id_by_key(same)
        assert first != world.jobs.id_by_key(made_once(a_run(payload=b"1"), "twice"))
        # The key says that there is a conflict, and what was told before is not this one's id.
        assert first != world.jobs.id_by_key(other)
        ordered = made_once(a_run(policy=RunPolicy(ordering_key="video-1")), "once")
        assert shard_of(world.jobs.id_by_key(ordered)) == shard_for("video-1", SHARDS)
        await world.clock.sleep(DAY)
        # By then the key may be used for a new one.
        assert first != world.jobs.id_by_key(run)

    run_virtual(scenario())


def test_over_several_servers_an_id_lies_where_its_placement_says() -> None:
    async def scenario() -> None:
        world = World()
        jobs = Jobs(world.store, world.wakeups, world.clock, Random(1), shards=64, places=32)
        run = made_once(msgspec.structs.replace(a_run(), placement="eu"), "once")
        for identifier in (jobs.id_by_key(run), jobs.new_run_id(tenant=run.tenant, placement="eu")):
            assert place_of(identifier, 32) == place_for(run.tenant, "eu", 32)
            assert jobs.placed(identifier, run.tenant, "eu") == identifier
            assert place_of(jobs.placed(identifier, run.tenant), 32) == place_for(run.tenant, "", 32)

    run_virtual(scenario())


def test_jobs_are_declared_paused_resumed_and_cancelled() -> None:
    async def scenario() -> None:
        world = World()
        bell = world.bell(SCHEDULES)
        (put,) = await world.jobs.put_jobs([a_job()])
        job = put.job
        assert put.outcome is PutOutcome.CREATED
        assert await rang(bell)
        assert job.next_fire is not None
        assert await world.jobs.pause([job.id]) == {job.id: JobState.PAUSED}
        assert await world.jobs.resume([job.id]) == {job.id: JobState.SCHEDULED}
        assert await world.jobs.cancel_jobs([job.id]) == {job.id: JobState.CANCELLED}

    run_virtual(scenario())


def test_workers_are_told_when_something_that_runs_must_stop() -> None:
    async def scenario() -> None:
        world = World()
        bell = world.bell(CANCELS)
        waiting, running = a_run(delay=HOUR), a_run()
        await world.jobs.submit_many([waiting, running])
        assert await world.jobs.cancel_runs([waiting.id]) == {waiting.id: RunState.CANCELLED}
        assert not await rang(bell)
        session = await world.store.open_session(a_worker())
        await world.store.claim(session, 1, [Want("default", 1)])
        assert await world.jobs.cancel_runs([running.id]) == {running.id: RunState.CANCELLING}
        assert await rang(bell)

    run_virtual(scenario())


def test_parents_go_before_their_children_whatever_the_order_and_the_parts() -> None:
    async def scenario() -> None:
        world = World()
        parents = some_runs(700)
        children = [a_run(after=[parent]) for parent in parents]
        accepted = await world.jobs.submit_many([*reversed(children), *parents])
        assert len(world.store.batches) == 2
        assert [answer.id for answer in accepted] == [run.id for run in [*reversed(children), *parents]]
        assert [answer.state for answer in accepted] == [RunState.BLOCKED] * 700 + [RunState.QUEUED] * 700

    run_virtual(scenario())


def test_a_circle_over_several_parts_is_refused_and_nothing_is_made() -> None:
    async def scenario() -> None:
        world = World()
        ids = [an_id() for _ in range(1_500)]
        circle = [a_run(id=child, after=[a_run(id=parent)]) for child, parent in pairwise([*ids, ids[0]])]
        with pytest.raises(Invalid, match="circle"):
            await world.jobs.submit_many(circle)
        assert world.store.batches == []

    run_virtual(scenario())


def test_one_whose_parent_is_not_there_does_not_take_its_neighbours_along() -> None:
    async def scenario() -> None:
        world = World()
        orphan, others = a_run(after=[a_run()]), some_runs(5)
        answers = await asyncio.gather(
            *(world.jobs.submit(run) for run in [others[0], orphan, *others[1:]]), return_exceptions=True
        )
        assert isinstance(answers.pop(1), NotFound)
        assert [isinstance(answer, Accepted) for answer in answers] == [True] * 5

    run_virtual(scenario())
