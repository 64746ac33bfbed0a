"""Submitting jobs: shared batches, retries and notifications."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from random import Random

import msgspec
import pytest

from mainspring.core.model.base.errors import Invalid, NotFound, StoreDamaged, StoreUnavailable
from mainspring.core.model.base.ids import decode_shard, is_derived, shard_for
from mainspring.core.model.base.instant import DAY, HOUR, MILLISECOND, SECOND, Micros
from mainspring.core.model.cluster.placement import choose_placement_group, find_placement_group
from mainspring.core.model.runs.new_run import NewRun, made_once
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.job import JobState
from mainspring.core.ports.storage.answers import PutOutcome, SubmitResult
from mainspring.core.ports.wakeups import CANCELS, SCHEDULES, Wakeup, queue_topic
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.store import Demand
from mainspring.core.submit.jobs import Jobs
from mainspring.stores.memory import MemoryStore
from mainspring.testing.virtual_time import VirtualClock
from tests.support.builders import a_job, a_run, a_worker, an_id, some_runs
from tests.support.virtual import in_virtual_time

SHARDS = 16


class RemoteStore(MemoryStore):
    """A commit takes 5 ms. The first ``failures`` of them fail, before or after they were applied."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock, SHARDS)
        self.clock = clock
        self.batches: list[int] = []
        self.failures = 0
        self.failure: type[StoreUnavailable] = StoreUnavailable
        self.applied_all_the_same = False
        self.hangs = False

    async def submit(self, runs: Sequence[NewRun]) -> list[SubmitResult]:
        self.batches.append(len(runs))
        if self.hangs:
            await self.clock.sleep(HOUR)
        await self.clock.sleep(5 * MILLISECOND)
        if self.failures:
            self.failures -= 1
            if self.applied_all_the_same:
                await super().submit(runs)
            raise self.failure("no answer")
        return await super().submit(runs)


class World:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = RemoteStore(self.clock)
        self.wakeups = LocalWakeups()
        self.jobs = Jobs(self.store, self.wakeups, self.clock, Random(7), shards=SHARDS)

    def wakeup(self, *topics: str) -> Wakeup:
        return self.wakeups.listen(topics)


async def was_notified(wakeup: Wakeup) -> bool:
    return await wakeup.wait(1)


@in_virtual_time
async def test_an_immediate_run_is_queued_and_its_queue_is_notified() -> None:
    world = World()
    mail, other, schedules = (
        world.wakeup(queue_topic("mail")),
        world.wakeup(queue_topic("other")),
        world.wakeup(SCHEDULES),
    )
    accepted = await world.jobs.submit(a_run(queue="mail"))
    assert (accepted.state, accepted.new) == (RunState.QUEUED, True)
    assert [await was_notified(wakeup) for wakeup in (mail, other, schedules)] == [True, False, False]


@pytest.mark.parametrize(("delay", "soon"), [(SECOND, True), (HOUR, False)])
@in_virtual_time
async def test_schedulers_are_notified_of_runs_that_are_due_soon(delay: Micros, soon: bool) -> None:
    world = World()
    wakeup = world.wakeup(SCHEDULES)
    await world.jobs.submit(a_run(delay=delay))
    assert await was_notified(wakeup) is soon
    await world.jobs.submit(a_run(at=world.clock.now() + delay))
    assert await was_notified(wakeup) is soon


@in_virtual_time
async def test_concurrent_submits_share_commits_and_the_first_does_not_wait() -> None:
    world = World()
    accepted = await asyncio.gather(*(world.jobs.submit(run) for run in some_runs(500)))
    assert len({answer.id for answer in accepted}) == 500
    assert sum(world.store.batches) == 500
    assert len(world.store.batches) <= 2


@in_virtual_time
async def test_many_runs_are_submitted_in_batches_and_answered_in_order() -> None:
    world = World()
    runs = some_runs(2_500)
    accepted = await world.jobs.submit_many(runs)
    assert [answer.id for answer in accepted] == [run.id for run in runs]
    assert world.store.batches == [1_000, 1_000, 500]


@in_virtual_time
async def test_large_payloads_are_submitted_in_smaller_batches() -> None:
    world = World()
    large = b'"' + b"x" * (256 * 1024 - 2) + b'"'
    runs = [a_run(payload=large) for _ in range(70)] + some_runs(5)
    accepted = await world.jobs.submit_many(runs)
    assert [answer.id for answer in accepted] == [run.id for run in runs]
    assert world.store.batches == [32, 32, 11]
    # Concurrent submits share batches under the same limit.
    world.store.batches.clear()
    await asyncio.gather(*[world.jobs.submit(a_run(payload=large)) for _ in range(41)])
    assert world.store.batches == [32, 9]


@in_virtual_time
async def test_a_submit_to_a_store_that_hangs_fails_after_eight_seconds() -> None:
    world = World()
    world.store.hangs = True
    began = world.clock.monotonic()
    with pytest.raises(StoreUnavailable):
        await world.jobs.submit(a_run())
    assert world.clock.monotonic() - began == 8 * SECOND
    world.store.hangs = False
    assert (await world.jobs.submit(a_run())).new


@in_virtual_time
async def test_a_submit_cancelled_before_it_is_sent_submits_nothing() -> None:
    world = World()
    first = asyncio.create_task(world.jobs.submit(a_run()))
    await asyncio.sleep(0)
    second = asyncio.create_task(world.jobs.submit(a_run()))
    await asyncio.sleep(0)
    second.cancel()
    await first
    await asyncio.gather(second, return_exceptions=True)
    assert world.store.batches == [1]


@pytest.mark.parametrize("applied", [False, True])
@in_virtual_time
async def test_a_submit_without_an_answer_is_repeated_and_makes_one_run(applied: bool) -> None:
    world = World()
    world.store.failures = 3
    world.store.applied_all_the_same = applied
    wakeup = world.wakeup(queue_topic("default"))
    run = a_run()
    accepted = await world.jobs.submit(run)
    assert accepted.id == run.id
    assert world.store.batches == [1, 1, 1, 1]
    (depth,) = await world.store.depths()
    assert depth.queued == 1
    assert await was_notified(wakeup)


@in_virtual_time
async def test_a_submit_fails_after_seconds_without_a_store() -> None:
    world = World()
    world.store.failures = 1_000
    began = world.clock.monotonic()
    with pytest.raises(StoreUnavailable):
        await world.jobs.submit(a_run())
    assert 3 * SECOND <= world.clock.monotonic() - began <= 5 * SECOND
    world.store.failures = 0
    assert (await world.jobs.submit(a_run())).new


@in_virtual_time
async def test_a_submit_to_a_damaged_store_fails_at_once() -> None:
    """A repetition could not succeed, and would keep later submits waiting."""
    world = World()
    world.store.failures, world.store.failure = 100, StoreDamaged
    with pytest.raises(StoreDamaged):
        await world.jobs.submit(a_run())
    assert world.store.batches == [1]


@in_virtual_time
async def test_an_invalid_run_is_rejected_before_it_reaches_the_store() -> None:
    world = World()
    with pytest.raises(Invalid, match="priority"):
        await world.jobs.submit(a_run(priority=11))
    with pytest.raises(Invalid, match="queue"):
        await world.jobs.submit_many([a_run(), a_run(queue="")])
    assert world.store.batches == []


@in_virtual_time
async def test_a_run_that_the_store_rejects_does_not_fail_others_of_its_batch() -> None:
    world = World()
    bad = a_run(shard=SHARDS)
    answers = await asyncio.gather(
        *(world.jobs.submit(run) for run in [*some_runs(20), bad, *some_runs(20)]), return_exceptions=True
    )
    assert [index for index, answer in enumerate(answers) if isinstance(answer, Invalid)] == [20]
    assert sum(isinstance(answer, SubmitResult) for answer in answers) == 40


@in_virtual_time
async def test_ids_of_a_batch_share_a_shard_except_for_those_with_an_ordering_key() -> None:
    world = World()
    ids = world.jobs.new_run_ids(["", "video-1", "", "video-1", ""])
    assert sorted(ids) == ids
    assert len({decode_shard(ids[index]) for index in (0, 2, 4)}) == 1
    assert decode_shard(ids[1]) == decode_shard(ids[3]) == shard_for("video-1", SHARDS)
    assert len({decode_shard(world.jobs.new_run_id()) for _ in range(200)}) == SHARDS
    assert decode_shard(world.jobs.new_job_id("default", "report")) < SHARDS


@in_virtual_time
async def test_an_id_by_key_is_the_same_for_the_same_request_for_a_day() -> None:
    world = World()
    run, same, other = (made_once(a_run(payload=payload), "once") for payload in (b"1", b"1", b"2"))
    first = world.jobs.id_by_key(run)
    assert is_derived(first)
    assert decode_shard(first) < SHARDS
    assert first == world.jobs.id_by_key(same)
    assert first != world.jobs.id_by_key(made_once(a_run(payload=b"1"), "twice"))
    # Another request under the same key is a conflict and gets another id.
    assert first != world.jobs.id_by_key(other)
    ordered = made_once(a_run(policy=RunPolicy(ordering_key="video-1")), "once")
    assert decode_shard(world.jobs.id_by_key(ordered)) == shard_for("video-1", SHARDS)
    await world.clock.sleep(DAY)
    # By then the key has expired.
    assert first != world.jobs.id_by_key(run)


@in_virtual_time
async def test_an_id_in_a_sharded_store_lies_in_the_group_of_its_placement() -> None:
    world = World()
    jobs = Jobs(world.store, world.wakeups, world.clock, Random(1), shards=64, placement_groups=32)
    run = made_once(msgspec.structs.replace(a_run(), placement="eu"), "once")
    for identifier in (jobs.id_by_key(run), jobs.new_run_id(tenant=run.tenant, placement="eu")):
        assert find_placement_group(identifier, 32) == choose_placement_group(run.tenant, "eu", 32)
        assert jobs.placed(identifier, run.tenant, "eu") == identifier
        assert find_placement_group(jobs.placed(identifier, run.tenant), 32) == choose_placement_group(
            run.tenant, "", 32
        )


@in_virtual_time
async def test_jobs_are_declared_paused_resumed_and_cancelled() -> None:
    world = World()
    wakeup = world.wakeup(SCHEDULES)
    (put,) = await world.jobs.put_jobs([a_job()])
    job = put.job
    assert put.outcome is PutOutcome.CREATED
    assert await was_notified(wakeup)
    assert job.next_fire is not None
    assert await world.jobs.pause([job.id]) == {job.id: JobState.PAUSED}
    assert await world.jobs.resume([job.id]) == {job.id: JobState.SCHEDULED}
    assert await world.jobs.cancel_jobs([job.id]) == {job.id: JobState.CANCELLED}


@in_virtual_time
async def test_workers_are_notified_when_a_running_run_is_cancelled() -> None:
    world = World()
    wakeup = world.wakeup(CANCELS)
    waiting, running = a_run(delay=HOUR), a_run()
    await world.jobs.submit_many([waiting, running])
    assert await world.jobs.cancel_runs([waiting.id]) == {waiting.id: RunState.CANCELLED}
    assert not await was_notified(wakeup)
    session = await world.store.open_session(a_worker())
    await world.store.claim(session, 1, [Demand("default", 1)])
    assert await world.jobs.cancel_runs([running.id]) == {running.id: RunState.CANCELLING}
    assert await was_notified(wakeup)


@in_virtual_time
async def test_parents_are_submitted_before_their_children_in_any_order() -> None:
    world = World()
    parents = some_runs(700)
    children = [a_run(after=[parent]) for parent in parents]
    accepted = await world.jobs.submit_many([*reversed(children), *parents])
    assert len(world.store.batches) == 2
    assert [answer.id for answer in accepted] == [run.id for run in [*reversed(children), *parents]]
    assert [answer.state for answer in accepted] == [RunState.BLOCKED] * 700 + [RunState.QUEUED] * 700


@in_virtual_time
async def test_a_dependency_cycle_over_several_batches_is_rejected() -> None:
    world = World()
    ids = [an_id() for _ in range(1_500)]
    circle = [a_run(id=child, after=[a_run(id=parent)]) for child, parent in pairwise([*ids, ids[0]])]
    with pytest.raises(Invalid, match="circle"):
        await world.jobs.submit_many(circle)
    assert world.store.batches == []


@in_virtual_time
async def test_a_run_with_an_unknown_parent_does_not_fail_others_of_its_batch() -> None:
    world = World()
    orphan, others = a_run(after=[a_run()]), some_runs(5)
    answers = await asyncio.gather(
        *(world.jobs.submit(run) for run in [others[0], orphan, *others[1:]]), return_exceptions=True
    )
    assert isinstance(answers.pop(1), NotFound)
    assert [isinstance(answer, SubmitResult) for answer in answers] == [True] * 5
