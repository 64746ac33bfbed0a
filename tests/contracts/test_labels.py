"""Labels: a run is claimed only by workers with all its labels, and does not block other runs."""

import pytest

from mainspring.core.model.base.instant import DAY, MINUTE
from mainspring.core.model.runs.completion import complete_loss, complete_release
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.job import Overlap
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import Pause
from mainspring.core.store import Demand
from tests.support.builders import a_fire, a_job, a_policy, a_run, a_spec, a_tick, an_id, every, some_runs
from tests.support.store_harness import Harness, ids

GPU = ("gpu=a100",)
EUROPE = ("region=eu",)
BOTH = ("gpu=a100", "region=eu")
ANNE = Author("anne")


async def test_a_run_is_claimed_only_by_a_worker_with_all_required_labels(harness: Harness) -> None:
    plain, gpu, both = [await harness.worker(labels=labels) for labels in ((), GPU, BOTH)]
    runs = [a_run(requires=requires) for requires in ((), GPU, EUROPE, BOTH)]
    await harness.submit(*runs)
    assert ids(await harness.claim(plain)) == [runs[0].id]
    assert ids(await harness.claim(gpu)) == [runs[1].id]
    assert sorted(ids(await harness.claim(both))) == sorted(ids(runs[2:]))


async def test_a_label_with_another_value_does_not_match(harness: Harness) -> None:
    await harness.submit(a_run(requires=("gpu=h100",)))
    assert await harness.claim(await harness.worker(labels=GPU)) == []


async def test_an_earlier_worker_claims_a_run_with_a_label_set_used_later(harness: Harness) -> None:
    label = (f"batch={an_id()}",)
    worker = await harness.worker(labels=label)
    assert await harness.claim(worker) == []
    run = a_run(requires=label)
    await harness.submit(run)
    assert ids(await harness.claim(worker)) == [run.id]


async def test_a_later_worker_claims_a_run_with_a_label_set_used_before(harness: Harness) -> None:
    label = (f"batch={an_id()}",)
    run = a_run(requires=label)
    await harness.submit(run)
    assert ids(await harness.claim(await harness.worker(labels=label))) == [run.id]


async def test_runs_with_different_label_sets_are_claimed_by_rank(harness: Harness) -> None:
    runs = [
        a_run(priority=priority, requires=requires)
        for priority, requires in ((5, ()), (4, GPU), (3, BOTH), (2, ()), (1, EUROPE))
    ]
    await harness.submit(*runs)
    worker = await harness.worker(labels=BOTH)
    assert [ids(await harness.claim(worker, 1)) for _ in runs] == [[run.id] for run in reversed(runs)]


async def test_one_claim_takes_the_best_runs_of_all_its_label_sets(harness: Harness) -> None:
    urgent = [a_run(priority=1, requires=requires) for requires in (GPU, (), GPU, ())]
    await harness.submit(*some_runs(5), *(a_run(requires=GPU) for _ in range(5)), *urgent)
    held = await harness.claim(await harness.worker(labels=GPU), 4)
    assert sorted(ids(held)) == sorted(ids(urgent))
    assert len({run.fence for run in held}) == 1


async def test_the_limit_of_a_demand_counts_over_all_label_sets(harness: Harness) -> None:
    await harness.submit(
        *(a_run(queue=queue, requires=requires) for queue in ("a", "b") for requires in ((), GPU, GPU))
    )
    held = await harness.claim_from(await harness.worker(labels=GPU), Demand("a", 2), Demand("b", 5))
    assert sorted(run.queue for run in held) == ["a", "a", "b", "b", "b"]


async def test_a_retry_keeps_its_label_set(harness: Harness) -> None:
    plain, gpu = await harness.worker(), await harness.worker(labels=GPU)
    run = a_run(policy=a_policy(requires=GPU, pause=MINUTE))
    await harness.submit(run)
    await harness.fail(*(await harness.claim(gpu)))
    await harness.advance(2 * MINUTE)
    assert (await harness.stage()).runs == 1
    assert await harness.claim(plain) == []
    assert [held.attempt for held in await harness.claim(gpu)] == [2]


async def test_a_released_or_lost_run_keeps_its_label_set(harness: Harness) -> None:
    plain, gpu = await harness.worker(), await harness.worker(labels=GPU)
    await harness.submit(a_run(requires=GPU))
    [held] = await harness.claim(gpu)
    await harness.complete(complete_release(held))
    assert await harness.claim(plain) == []
    [held] = await harness.claim(gpu)
    await harness.complete(complete_loss(held, blamed=False))
    assert await harness.claim(plain) == []
    assert len(await harness.claim(gpu)) == 1


async def test_a_run_returned_by_a_heartbeat_keeps_its_label_set(harness: Harness) -> None:
    plain, gpu = await harness.worker(), await harness.worker(labels=GPU)
    await harness.submit(a_run(requires=GPU))
    await harness.claim(gpu)
    assert (await harness.store.heartbeat(gpu, DAY, [], [], harness.last_claim(gpu))).returned == 1
    assert await harness.claim(plain) == []
    assert len(await harness.claim(gpu)) == 1


async def test_a_delayed_run_is_staged_with_its_label_set(harness: Harness) -> None:
    plain, gpu = await harness.worker(), await harness.worker(labels=GPU)
    await harness.submit(a_run(requires=GPU, delay=MINUTE))
    await harness.advance(2 * MINUTE)
    await harness.stage()
    assert await harness.claim(plain) == []
    assert len(await harness.claim(gpu)) == 1


async def test_a_blocked_run_is_queued_with_its_label_set(harness: Harness) -> None:
    plain, gpu = await harness.worker(), await harness.worker(labels=GPU)
    await harness.submit(a_run(key="k"), a_run(key="k", requires=GPU))
    [first] = await harness.claim(plain)
    assert await harness.claim(gpu) == []
    await harness.succeed(first)
    assert await harness.claim(plain) == []
    assert len(await harness.claim(gpu)) == 1


@pytest.mark.parametrize("overlap", [Overlap.ALLOW, Overlap.QUEUE])
async def test_the_runs_of_a_job_require_its_labels(harness: Harness, overlap: Overlap) -> None:
    plain, gpu = await harness.worker(), await harness.worker(labels=GPU)
    job = await harness.put(a_job(a_spec(schedule=every(DAY), overlap=overlap, policy=a_policy(requires=GPU))))
    now = await harness.now()
    for due in (now, now + MINUTE):
        job = await harness.job(job.id)
        tick = a_tick(job, now - MINUTE + (due > now), due=due)
        [fired] = await harness.store.fire(await harness.owner(), [a_fire(job, tick, next_fire=job.next_fire)])
        assert fired.runs == 1
    assert await harness.claim(plain) == []
    [held] = await harness.claim(gpu)
    assert held.policy.requires == GPU
    await harness.succeed(held)
    await harness.advance(2 * MINUTE)
    await harness.stage()
    assert await harness.claim(plain) == []
    assert len(await harness.claim(gpu)) == 1


@pytest.mark.api
async def test_an_edit_may_change_the_required_labels(harness: Harness) -> None:
    plain, gpu = await harness.worker(), await harness.worker(labels=GPU)
    run = a_run(requires=GPU)
    await harness.submit(run)
    await harness.store.edit_run(a_run(id=run.id, requires=EUROPE), ANNE)
    assert await harness.claim(gpu) == []
    await harness.store.edit_run(a_run(id=run.id, requires=GPU, priority=1), ANNE)
    assert await harness.claim(plain) == []
    [held] = await harness.claim(gpu)
    assert (held.policy.requires, held.priority) == (GPU, 1)


@pytest.mark.api
async def test_labels_are_respected_while_a_queue_is_paused(harness: Harness) -> None:
    await harness.store.pause(Pause(tenant=None, queue="other"), ANNE)
    runs = [
        a_run(requires=requires, priority=priority) for requires, priority in (((), 5), (GPU, 4), (EUROPE, 3), (GPU, 2))
    ]
    await harness.submit(*runs, a_run(queue="other", requires=GPU))
    plain, gpu = await harness.worker(), await harness.worker(labels=GPU)
    held = await harness.claim_from(gpu, Demand("default", 2), Demand("other", 2))
    assert ids(sorted(held, key=lambda run: run.priority)) == [runs[3].id, runs[1].id]
    assert ids(await harness.claim_from(plain, Demand("default", 9), Demand("other", 9))) == [runs[0].id]


@pytest.mark.api
async def test_labels_are_respected_by_a_claim_for_one_tenant(harness: Harness) -> None:
    runs = [a_run(tenant=tenant, requires=requires) for tenant in ("acme", "umbrella") for requires in ((), GPU)]
    await harness.submit(*runs)
    plain, gpu = await harness.worker(), await harness.worker(labels=GPU)
    held = await harness.claim_from(plain, Demand("default", 9, tenant="acme"))
    assert ids(held) == [runs[0].id]
    held = await harness.claim_from(gpu, Demand("default", 9, tenant="acme"))
    assert ids(held) == [runs[1].id]


async def test_runs_without_a_matching_worker_do_not_block_others(harness: Harness) -> None:
    await harness.submit(*(a_run(requires=("gpu=h100",), priority=1) for _ in range(50)))
    mine, theirs = a_run(), a_run(requires=GPU)
    await harness.submit(mine, theirs)
    assert ids(await harness.claim(await harness.worker(), 1)) == [mine.id]
    assert ids(await harness.claim(await harness.worker(labels=GPU), 1)) == [theirs.id]


async def test_a_view_has_the_required_labels(harness: Harness) -> None:
    run = a_run(requires=BOTH)
    await harness.submit(run)
    assert (await harness.view(run.id)).policy.requires == BOTH
    worker = await harness.worker(labels=BOTH)
    await harness.succeed(*(await harness.claim(worker)))
    view = await harness.view(run.id)
    assert (view.state, view.policy.requires) == (RunState.SUCCEEDED, BOTH)


@pytest.mark.api
async def test_a_session_has_the_labels_of_its_worker(harness: Harness) -> None:
    worker = await harness.worker(labels=BOTH)
    plain = await harness.worker()
    found = {view.id: view.labels for view in await harness.store.sessions("worker")}
    assert found == {worker: BOTH, plain: ()}
