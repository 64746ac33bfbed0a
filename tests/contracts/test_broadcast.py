"""Targeted runs: a broadcast makes one run for each worker."""

import pytest

from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import DAY, MINUTE, SECOND
from mainspring.core.model.runs.completion import complete_loss, complete_release
from mainspring.core.model.runs.run import RunState
from mainspring.core.ports.storage.access import Author
from mainspring.core.store import Demand
from tests.support.builders import a_policy, a_run
from tests.support.store_harness import Harness, ids

ANNE = Author("anne")


async def test_a_targeted_run_is_claimed_only_by_its_worker(harness: Harness) -> None:
    one, other = await harness.worker(), await harness.worker()
    run = a_run(target=one)
    await harness.submit(run)
    assert await harness.claim(other) == []
    assert ids(await harness.claim(one)) == [run.id]
    assert await harness.claim(one) == []


async def test_a_targeted_run_does_not_affect_other_claims(harness: Harness) -> None:
    one, other = await harness.worker(), await harness.worker()
    mine, untargeted = a_run(target=one), a_run()
    await harness.submit(mine, untargeted)
    assert ids(await harness.claim(other)) == [untargeted.id]
    later = a_run()
    await harness.submit(later)
    assert sorted(ids(await harness.claim(one))) == sorted([mine.id, later.id])


async def test_a_targeted_run_ignores_required_labels(harness: Harness) -> None:
    worker = await harness.worker()
    run = a_run(target=worker, requires=("gpu=a100",))
    await harness.submit(run)
    assert ids(await harness.claim(worker)) == [run.id]


async def test_targeted_labeled_and_plain_runs_are_claimed_by_rank(harness: Harness) -> None:
    worker = await harness.worker(labels=("gpu=a100",))
    runs = [a_run(priority=3), a_run(priority=2, target=worker), a_run(priority=1, requires=("gpu=a100",))]
    await harness.submit(*runs)
    assert [ids(await harness.claim(worker, 1)) for _ in runs] == [[run.id] for run in reversed(runs)]


async def test_a_retry_of_a_targeted_run_stays_with_its_worker(harness: Harness) -> None:
    one, other = await harness.worker(), await harness.worker()
    await harness.submit(a_run(target=one, policy=a_policy(pause=MINUTE)))
    await harness.fail(*(await harness.claim(one)))
    await harness.advance(2 * MINUTE)
    await harness.stage()
    assert await harness.claim(other) == []
    [held] = await harness.claim(one)
    await harness.complete(complete_release(held))
    assert await harness.claim(other) == []
    assert [held.attempt for held in await harness.claim(one)] == [2]


async def test_tidying_keeps_targeted_runs_of_a_live_worker(harness: Harness) -> None:
    worker = await harness.worker()
    now, later = a_run(target=worker), a_run(target=worker, delay=MINUTE)
    await harness.submit(now, later)
    await harness.store.tidy()
    assert ids(await harness.claim(worker)) == [now.id]
    await harness.store.tidy()
    await harness.advance(2 * MINUTE)
    await harness.stage()
    [held] = await harness.claim(worker)
    await harness.store.tidy()
    await harness.complete(complete_release(held))
    assert ids(await harness.claim(worker)) == [later.id]


async def test_a_worker_claims_plain_runs_after_its_targeted_runs(harness: Harness) -> None:
    worker = await harness.worker()
    for _ in range(2):
        mine, untargeted = a_run(target=worker), a_run()
        await harness.submit(mine, untargeted)
        held = await harness.claim(worker)
        assert sorted(ids(held)) == sorted([mine.id, untargeted.id])
        await harness.succeed(*held)
        await harness.store.tidy()
        plain = a_run()
        await harness.submit(plain)
        assert ids(await harness.claim(worker)) == [plain.id]


async def test_targeted_runs_are_skipped_when_their_worker_leaves(harness: Harness) -> None:
    worker = await harness.worker()
    queued, scheduled, blocked = (
        a_run(target=worker, key="k"),
        a_run(target=worker, delay=DAY),
        a_run(target=worker, key="k"),
    )
    await harness.submit(queued, scheduled, blocked)
    assert await harness.store.expire(100) == 0
    await harness.store.close_session(worker)
    assert await harness.store.expire(100) == 3
    views = [await harness.view(run.id) for run in (queued, scheduled, blocked)]
    assert {(view.state, view.reason, view.target) for view in views} == {(RunState.SKIPPED, "its worker left", worker)}
    assert await harness.store.expire(100) == 0


async def test_a_targeted_run_is_skipped_when_the_lease_of_its_worker_expires(harness: Harness) -> None:
    worker = await harness.worker(ttl=10 * SECOND)
    run = a_run(target=worker, start_within=SECOND, deadline=2 * SECOND)
    await harness.submit(run)
    await harness.advance(MINUTE)
    await harness.store.lost_runs(100)
    await harness.store.expire(100)
    view = await harness.view(run.id)
    assert (view.state, view.reason) == (RunState.SKIPPED, "its worker left")


async def test_a_lost_targeted_run_is_skipped_and_not_claimed_by_others(harness: Harness) -> None:
    one, other = await harness.worker(), await harness.worker()
    run = a_run(target=one)
    await harness.submit(run)
    await harness.claim(one)
    await harness.store.close_session(one)
    [lost] = await harness.store.lost_runs(100)
    # The run counts as running until its loss is reported.
    assert await harness.store.expire(100) == 0
    await harness.complete(complete_loss(lost, blamed=False))
    assert await harness.claim(other) == []
    assert await harness.store.expire(100) == 1
    view = await harness.view(run.id)
    assert (view.state, view.reason, view.lost) == (RunState.SKIPPED, "its worker left", 1)


async def test_a_run_for_a_closed_session_is_skipped(harness: Harness) -> None:
    gone = await harness.worker()
    await harness.store.close_session(gone)
    runs = [a_run(target=gone), a_run(target=SessionId(2_000_000_000))]
    await harness.submit(*runs)
    assert await harness.store.expire(100) == 2
    assert await harness.states(runs) == [RunState.SKIPPED] * 2


async def test_a_skipped_targeted_run_releases_its_ordering_key(harness: Harness) -> None:
    gone, worker = await harness.worker(), await harness.worker()
    await harness.submit(a_run(target=gone, key="k"))
    behind = a_run(key="k")
    await harness.submit(behind)
    await harness.store.close_session(gone)
    await harness.store.expire(100)
    assert ids(await harness.claim(worker)) == [behind.id]


async def test_a_targeted_run_submitted_twice_is_one_run(harness: Harness) -> None:
    worker = await harness.worker()
    run = a_run(target=worker)
    assert [answer.new for answer in await harness.submit(run, run)] == [True, False]
    assert [answer.new for answer in await harness.submit(run)] == [False]
    assert len(await harness.claim(worker)) == 1


@pytest.mark.api
async def test_an_edit_keeps_the_target(harness: Harness) -> None:
    one, other = await harness.worker(), await harness.worker()
    run = a_run(target=one)
    await harness.submit(run)
    await harness.store.edit_run(a_run(id=run.id, priority=1), ANNE)
    assert await harness.claim(other) == []
    [held] = await harness.claim(one)
    assert held.priority == 1


@pytest.mark.api
async def test_a_claim_for_one_tenant_finds_targeted_runs_of_that_tenant(harness: Harness) -> None:
    worker = await harness.worker()
    mine, theirs = a_run(target=worker, tenant="acme"), a_run(target=worker, tenant="umbrella")
    await harness.submit(mine, theirs)
    assert ids(await harness.claim_from(worker, Demand("default", 9, tenant="acme"))) == [mine.id]
    assert ids(await harness.claim(worker)) == [theirs.id]
