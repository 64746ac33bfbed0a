"""Claims with hints: a hinted run starts if it is queued, and every rule of a claim still applies."""

import pytest

from mainspring.core.model.base.ids import RunId, SessionId
from mainspring.core.model.base.instant import MINUTE
from mainspring.core.model.cluster.hints import Hint
from mainspring.core.model.limits.queues import QueuePolicy
from mainspring.core.model.runs.completion import complete_release, complete_success
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import Pause
from mainspring.core.store import Demand
from tests.support.builders import a_run, some_runs
from tests.support.sharded_harness import ShardedHarness
from tests.support.store_harness import Harness, SqliteHarness, ids

ADA = Author("ada", why="because")


async def claim(harness: Harness, worker: SessionId, *runs: NewRun, queue: str = "default") -> list[HeldRun]:
    return await harness.claim_from(worker, Demand(queue, len(runs), runs=tuple(run.id for run in runs)))


def hinted(found: list[Hint]) -> set[RunId]:
    return {hint.run for hint in found}


async def test_a_claim_starts_the_hinted_runs(harness: Harness) -> None:
    runs = some_runs(6)
    await harness.submit(*runs)
    worker = await harness.worker()
    if isinstance(harness, SqliteHarness):
        # SQLite ignores hints and takes the best runs, because no other server competes for them.
        assert len(await claim(harness, worker, runs[4], runs[2])) == 2
        return
    assert sorted(ids(await claim(harness, worker, runs[4], runs[2]))) == sorted(ids([runs[2], runs[4]]))
    assert len(await harness.claim(worker)) == 4


async def test_a_claim_starts_no_more_runs_than_hints(harness: Harness) -> None:
    runs = some_runs(6)
    await harness.submit(*runs)
    assert len(await claim(harness, await harness.worker(), *runs[:3])) == 3


async def test_a_duplicate_hint_starts_no_run_twice(harness: Harness) -> None:
    [run] = some_runs(1)
    await harness.submit(run)
    worker, other = await harness.worker(), await harness.worker()
    [held] = await claim(harness, worker, run, run, run)
    assert held.attempt == 1
    assert await claim(harness, worker, run) == []
    assert await claim(harness, other, run) == []


async def test_stale_and_unknown_hints_start_nothing(harness: Harness) -> None:
    [ended] = await harness.start(a_run())
    await harness.complete(complete_success(ended, None))
    cancelled, later, unknown = a_run(), a_run(delay=MINUTE), a_run()
    await harness.submit(cancelled, later)
    await harness.store.cancel([cancelled.id])
    worker = await harness.worker()
    wanted = (ended.id, cancelled.id, later.id, unknown.id)
    assert await harness.claim_from(worker, Demand("default", 4, runs=wanted)) == []


async def test_a_hint_for_another_queue_starts_nothing(harness: Harness) -> None:
    run = a_run(queue="mail")
    await harness.submit(run)
    assert await claim(harness, await harness.worker(), run, queue="default") == []
    assert ids(await claim(harness, await harness.worker(), run, queue="mail")) == [run.id]


async def test_a_hinted_claim_for_a_pool_starts_only_runs_of_its_priority(harness: Harness) -> None:
    urgent, slow, other = (a_run(priority=priority) for priority in (1, 3, 3))
    await harness.submit(urgent, slow, other)
    worker = await harness.worker()
    wanted = Demand("default", 3, priority=3, runs=(urgent.id, slow.id, other.id))
    assert sorted(ids(await harness.claim_from(worker, wanted))) == sorted([slow.id, other.id])
    assert await harness.claim_from(worker, Demand("default", 1, priority=3, runs=(urgent.id,))) == []
    pools = Demand("default", 1, priority=1, runs=(urgent.id,)), Demand("default", 1, priority=3)
    assert ids(await harness.claim_from(worker, *pools)) == [urgent.id]


async def test_runs_in_pools_have_hints(harness: Harness) -> None:
    worker = await harness.worker()
    # The first claim for a priority makes the store keep the queue's runs apart by it.
    assert await harness.claim_from(worker, Demand("default", 1, priority=3)) == []
    await harness.advance(MINUTE)
    runs = [a_run(priority=priority) for priority in (1, 3, 10)]
    await harness.submit(*runs)
    expected = {(run.id, run.priority) for run in runs}
    assert {(hint.run, hint.priority) for hint in await harness.store.find_hints(ids(runs))} == expected
    assert {(hint.run, hint.priority) for hint in await harness.store.find_ready_hints(["default"], 10)} == expected


async def test_a_claim_may_mix_demands_with_and_without_hints(harness: Harness) -> None:
    mail, other = a_run(queue="mail"), a_run()
    await harness.submit(mail, other)
    demands = Demand("mail", 1, runs=(mail.id,)), Demand("default", 5)
    assert sorted(ids(await harness.claim_from(await harness.worker(), *demands))) == sorted([mail.id, other.id])


async def test_a_closed_session_starts_no_hinted_run(harness: Harness) -> None:
    [run] = some_runs(1)
    await harness.submit(run)
    worker = await harness.worker()
    await harness.store.close_session(worker)
    assert await claim(harness, worker, run) == []


async def test_a_hinted_run_past_its_start_by_time_is_not_started(harness: Harness) -> None:
    run = a_run(start_within=MINUTE)
    await harness.submit(run)
    await harness.advance(2 * MINUTE)
    assert await claim(harness, await harness.worker(), run) == []


async def test_a_hinted_run_of_a_paused_queue_is_not_started(harness: Harness) -> None:
    run = a_run()
    await harness.submit(run)
    await harness.store.pause(Pause(tenant=None, queue="default"), ADA)
    worker = await harness.worker()
    assert await claim(harness, worker, run) == []
    await harness.store.resume(None, "default", ADA)
    assert ids(await claim(harness, worker, run)) == [run.id]


async def test_a_hinted_run_needs_its_labels(harness: Harness) -> None:
    run = a_run(requires=("gpu=a100",))
    await harness.submit(run)
    assert await claim(harness, await harness.worker(), run) == []


async def test_hinted_claims_respect_the_concurrency_of_a_queue(harness: Harness) -> None:
    if isinstance(harness, ShardedHarness):
        pytest.skip("it is refused on several servers")
    await harness.store.put_queue_policy("default", QueuePolicy(concurrency=2), ADA)
    runs = some_runs(5)
    await harness.submit(*runs)
    assert len(await claim(harness, await harness.worker(), *runs)) == 2
    assert await claim(harness, await harness.worker(), *runs) == []


async def test_hinted_claims_respect_fairness_between_tenants(harness: Harness) -> None:
    await harness.store.put_queue_policy("default", QueuePolicy(fair=True), ADA)
    many = [a_run(tenant="many") for _ in range(10)]
    alone = a_run(tenant="alone")
    await harness.submit(*many)
    await harness.submit(alone)
    started = [run.tenant for run in await claim(harness, await harness.worker(), *many[:4])]
    assert "alone" in started


async def test_a_store_has_a_stable_secret_to_sign_hints(harness: Harness) -> None:
    key = await harness.store.hint_key()
    assert len(key) >= 32
    assert await harness.store.hint_key() == key
    # The identity is part of queue names and therefore not secret.
    assert key.replace("-", "") != (await harness.store.identity()).replace("-", "")


async def test_only_queued_runs_without_labels_or_target_have_hints(harness: Harness) -> None:
    plain, urgent, keyed = a_run(), a_run(priority=1, queue="mail"), a_run(key="k")
    behind = a_run(key="k")
    later, labelled = a_run(delay=MINUTE), a_run(requires=("gpu=a100",))
    placed = a_run(requires=("datacenter=eu",))
    labelled_there, ordered = a_run(requires=("datacenter=eu", "gpu=a100")), a_run(requires=("datacenter=us>eu>30s",))
    everything = [plain, urgent, keyed, behind, later, labelled, placed, labelled_there, ordered]
    for run in everything:
        await harness.submit(run)
    found = await harness.store.find_hints([*(run.id for run in everything), a_run().id])
    assert hinted(found) == {plain.id, urgent.id, keyed.id, placed.id}
    by_run = {hint.run: hint for hint in found}
    assert (by_run[placed.id].datacenter, by_run[plain.id].datacenter) == ("eu", "")
    assert {hint.attempt for hint in found} == {1}
    assert (by_run[urgent.id].queue, by_run[urgent.id].priority) == ("mail", 1)
    assert by_run[urgent.id].rank < by_run[plain.id].rank
    assert by_run[keyed.id].key != by_run[plain.id].key == ""
    [held] = await claim(harness, await harness.worker(), urgent, queue="mail")
    assert await harness.store.find_hints([urgent.id]) == []
    await harness.complete(complete_release(held))
    assert await harness.store.find_hints([urgent.id]) == [by_run[urgent.id]]


async def test_hints_of_one_ordering_key_share_a_partition_key(harness: Harness) -> None:
    first, second, other = a_run(key="video-1"), a_run(key="video-1"), a_run(key="video-2")
    elsewhere = a_run(key="video-1", tenant="acme")
    for run in (first, second, other, elsewhere):
        await harness.submit(run)
    worker = await harness.worker()
    keys = {hint.run: hint.key for hint in await harness.store.find_hints([first.id, other.id, elsewhere.id])}
    assert len(set(keys.values()) - {""}) == 3
    for held in await claim(harness, worker, first, other, elsewhere):
        await harness.complete(complete_success(held, None))
    [hint] = await harness.store.find_hints([second.id])
    assert hint.key == keys[first.id]


@pytest.mark.parametrize("queues", [None, ("default", "mail"), ("mail", "nowhere")])
async def test_ready_hints_are_the_best_runs_of_each_queue(harness: Harness, queues: tuple[str, ...] | None) -> None:
    runs = [a_run(queue=queue, priority=priority) for queue in ("default", "mail") for priority in (5, 1, 3)]
    await harness.submit(*runs)
    placed = [a_run(queue="mail", requires=("datacenter=eu",)) for _ in range(3)]
    await harness.submit(*placed)
    found = await harness.store.find_ready_hints(queues, 2)
    best = {run.id for run in runs if run.priority < 5 and (queues is None or run.queue in queues)}
    there = {hint.run for hint in found if hint.datacenter == "eu"}
    assert hinted(found) - there == best
    assert len(there) == 2
    assert there < {run.id for run in placed}
