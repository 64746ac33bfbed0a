"""Pauses and quotas: runs that a claim skips."""

import asyncio

import pytest

from mainspring.core.model.access.access import Quotas, Tenant
from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND
from mainspring.core.model.runs.completion import complete_loss, complete_release
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import Pause
from mainspring.core.store import Demand
from tests.support.builders import a_job, a_policy, a_run, a_spec, every
from tests.support.store_harness import SHORT_LEASE, Harness, ids

pytestmark = pytest.mark.api

ADA = Author("ada", why="because")
SCOPES = [(tenant, queue) for tenant in ("acme", "beta") for queue in ("mail", "images")]


async def pause(harness: Harness, tenant: str | None, queue: str | None) -> None:
    await harness.store.pause(Pause(tenant=tenant, queue=queue), ADA)


async def submit_one_everywhere(harness: Harness) -> dict[tuple[str, str], NewRun]:
    runs = {(tenant, queue): a_run(tenant=tenant, queue=queue) for tenant, queue in SCOPES}
    await harness.submit(*runs.values())
    return runs


async def claim_scopes(harness: Harness) -> set[tuple[str, str]]:
    held = await harness.claim_from(await harness.worker(), Demand("mail", 100), Demand("images", 100))
    return {(run.tenant, run.queue) for run in held}


async def set_quota(harness: Harness, tenant: str, running: int | None) -> None:
    await harness.store.put_tenant(Tenant(name=tenant, quotas=Quotas(running=running)), ADA)


@pytest.mark.parametrize(
    ("tenant", "queue", "left"),
    [
        ("acme", "mail", {("acme", "images"), ("beta", "mail"), ("beta", "images")}),
        ("acme", None, {("beta", "mail"), ("beta", "images")}),
        (None, "mail", {("acme", "images"), ("beta", "images")}),
        (None, None, set()),
        ("other", "mail", set(SCOPES)),
        ("acme", "other", set(SCOPES)),
    ],
)
async def test_a_claim_skips_exactly_the_paused_runs(
    harness: Harness, tenant: str | None, queue: str | None, left: set[tuple[str, str]]
) -> None:
    await submit_one_everywhere(harness)
    await pause(harness, tenant, queue)
    assert await claim_scopes(harness) == left
    assert await harness.store.resume(tenant, queue, ADA)
    assert await claim_scopes(harness) == set(SCOPES) - left


async def test_several_pauses_apply_independently(harness: Harness) -> None:
    await submit_one_everywhere(harness)
    await pause(harness, "acme", None)
    await pause(harness, None, "mail")
    await pause(harness, "acme", "mail")
    assert await claim_scopes(harness) == {("beta", "images")}
    await harness.store.resume("acme", None, ADA)
    assert await claim_scopes(harness) == {("acme", "images")}
    await harness.store.resume(None, "mail", ADA)
    assert await claim_scopes(harness) == {("beta", "mail")}
    await harness.store.resume("acme", "mail", ADA)
    assert await claim_scopes(harness) == {("acme", "mail")}


async def test_paused_runs_do_not_use_up_the_limit_of_a_claim(harness: Harness) -> None:
    paused = [a_run(tenant="acme", priority=1) for _ in range(5)]
    others = [a_run(priority=10) for _ in range(2)]
    await harness.submit(*paused, *others)
    await pause(harness, "acme", None)
    assert sorted(ids(await harness.claim(await harness.worker(), 2))) == ids(others)


async def test_a_pause_does_not_affect_running_runs(harness: Harness) -> None:
    worker = await harness.worker()
    await harness.submit(a_run())
    [held] = await harness.claim(worker)
    await pause(harness, None, None)
    heartbeat = await harness.store.heartbeat(worker, MINUTE, [held.id], [], harness.last_claim(worker))
    assert (heartbeat.cancels, heartbeat.returned) == ((), 0)
    await harness.succeed(held)


async def test_a_pause_does_not_stop_ticks_and_staging(harness: Harness) -> None:
    await harness.put(a_job(a_spec(schedule=every(MINUTE, start=await harness.now() + 30 * SECOND))))
    later = a_run(delay=MINUTE)
    await harness.submit(later)
    await pause(harness, None, None)
    await harness.advance(MINUTE + SECOND)
    [fired] = await harness.fire_due()
    assert fired.runs == 1
    assert (await harness.stage()).runs == 1
    [now] = await harness.submit(a_run())
    assert now.state is RunState.QUEUED
    assert await harness.state(later.id) is RunState.QUEUED
    assert await harness.claim(await harness.worker()) == []
    await harness.store.resume(None, None, ADA)
    assert len(await harness.claim(await harness.worker())) == 3


async def test_pauses_have_author_and_reason(harness: Harness) -> None:
    before = await harness.now()
    for tenant, queue in [("beta", "mail"), (None, "mail"), ("acme", None), ("acme", "images"), (None, None)]:
        await pause(harness, tenant, queue)
    pauses = await harness.store.pauses()
    assert [(found.tenant, found.queue) for found in pauses] == [
        (None, None),
        (None, "mail"),
        ("acme", None),
        ("acme", "images"),
        ("beta", "mail"),
    ]
    assert {(found.author, found.why) for found in pauses} == {("ada", "because")}
    assert all(before <= found.since for found in pauses)


async def test_pausing_again_keeps_the_first_pause(harness: Harness) -> None:
    await pause(harness, None, "mail")
    first = await harness.store.pauses()
    await harness.advance(MINUTE)
    await harness.store.pause(Pause(tenant=None, queue="mail"), Author("bob", why="again"))
    assert await harness.store.pauses() == first


async def test_resume_removes_exactly_the_named_pause(harness: Harness) -> None:
    await pause(harness, "acme", "mail")
    for tenant, queue in [(None, None), ("acme", None), (None, "mail"), ("beta", "mail"), ("acme", "images")]:
        assert not await harness.store.resume(tenant, queue, ADA)
    assert len(await harness.store.pauses()) == 1
    assert await harness.store.resume("acme", "mail", ADA)
    assert not await harness.store.resume("acme", "mail", ADA)
    assert await harness.store.pauses() == []


async def test_only_effective_pauses_and_resumes_are_audited(harness: Harness) -> None:
    for _ in range(2):
        await pause(harness, "acme", "mail")
        await pause(harness, None, None)
    for _ in range(2):
        await harness.store.resume("acme", "mail", ADA)
        await harness.store.resume(None, None, Author("root", "ops"))
    entries = (await harness.store.audit(None))[::-1]
    assert [(entry.tenant, entry.author, entry.action, entry.target) for entry in entries] == [
        ("acme", "ada", "queues.pause", "mail"),
        ("", "ada", "queues.pause", "*"),
        ("acme", "ada", "queues.resume", "mail"),
        ("ops", "root", "queues.resume", "*"),
    ]


# Demands


async def test_a_demand_may_be_for_one_tenant(harness: Harness) -> None:
    runs = await submit_one_everywhere(harness)
    worker = await harness.worker()
    held = await harness.claim_from(worker, Demand("mail", 10, "acme"), Demand("images", 10, "beta"))
    assert sorted(ids(held)) == sorted([runs["acme", "mail"].id, runs["beta", "images"].id])
    assert await harness.claim_from(worker, Demand("mail", 10, "other")) == []
    rest = await harness.claim_from(worker, Demand("mail", 10), Demand("images", 10))
    assert sorted(ids(rest)) == sorted([runs["beta", "mail"].id, runs["acme", "images"].id])


async def test_demands_for_one_queue_may_name_several_tenants(harness: Harness) -> None:
    for tenant in ("acme", "beta", "other"):
        await harness.submit(*(a_run(tenant=tenant) for _ in range(4)))
    worker = await harness.worker()
    held = await harness.claim_from(worker, Demand("default", 2, "acme"), Demand("default", 1, "beta"))
    assert sorted(run.tenant for run in held) == ["acme", "acme", "beta"]
    assert len({run.fence for run in held}) == 1


# Quotas


async def test_a_claim_respects_the_running_quota_of_a_tenant(harness: Harness) -> None:
    await set_quota(harness, "acme", 3)
    await harness.submit(*(a_run(tenant="acme") for _ in range(6)), *(a_run() for _ in range(2)))
    one, other = await harness.worker(), await harness.worker()
    first = await harness.claim(one, 100)
    assert sorted(run.tenant for run in first) == ["acme"] * 3 + ["default"] * 2
    assert await harness.claim(other, 100) == []


async def test_runs_beyond_a_quota_do_not_use_up_the_limit_of_a_claim(harness: Harness) -> None:
    await set_quota(harness, "acme", 1)
    await harness.submit(*(a_run(tenant="acme", priority=1) for _ in range(5)))
    await harness.submit(a_run(), a_run())
    held = await harness.claim(await harness.worker(), 3)
    assert [run.tenant for run in held] == ["acme", "default", "default"]


async def test_a_quota_counts_over_all_queues_and_demands(harness: Harness) -> None:
    await set_quota(harness, "acme", 2)
    await harness.submit(*(a_run(tenant="acme", queue=queue) for queue in ("mail", "images") for _ in range(3)))
    worker = await harness.worker()
    held = await harness.claim_from(worker, Demand("mail", 1), Demand("images", 5))
    assert len(held) == 2
    assert await harness.claim_from(worker, Demand("mail", 5), Demand("images", 5)) == []


async def test_the_best_runs_of_a_tenant_are_claimed_within_its_quota(harness: Harness) -> None:
    await set_quota(harness, "acme", 1)
    idle, urgent = a_run(tenant="acme", priority=10), a_run(tenant="acme", priority=1)
    await harness.submit(idle, urgent)
    assert ids(await harness.claim(await harness.worker())) == [urgent.id]


async def test_every_end_of_an_attempt_frees_the_quota(harness: Harness) -> None:
    await set_quota(harness, "acme", 1)
    await harness.submit(*(a_run(tenant="acme", policy=a_policy(pause=HOUR)) for _ in range(7)))
    worker = await harness.worker()

    async def take() -> HeldRun:
        [held] = await harness.claim(worker)
        assert await harness.claim(worker) == []
        return held

    await harness.succeed(await take())
    await harness.fail(await take())
    await harness.complete(complete_release(await take()))
    await harness.complete(complete_loss(await take(), blamed=False))
    await take()
    await harness.store.heartbeat(worker, HOUR, [], [], harness.last_claim(worker))
    held = await take()
    await harness.store.cancel([held.id])
    assert await harness.claim(worker) == [], "it still runs"
    await harness.complete(complete_release(held))
    await take()


async def test_the_runs_of_an_expired_worker_count_in_the_quota_until_they_are_lost(harness: Harness) -> None:
    await set_quota(harness, "acme", 1)
    await harness.submit(a_run(tenant="acme"), a_run(tenant="acme"))
    [held] = await harness.claim(await harness.worker(SHORT_LEASE))
    await harness.advance(2 * SHORT_LEASE)
    worker = await harness.worker()
    assert await harness.claim(worker) == []
    assert ids(await harness.store.lost_runs(10)) == [held.id]
    await harness.complete(complete_loss(held, blamed=False))
    assert len(await harness.claim(worker)) == 1


async def test_a_quota_can_be_changed_and_removed(harness: Harness) -> None:
    await set_quota(harness, "acme", 0)
    await harness.submit(*(a_run(tenant="acme") for _ in range(6)))
    worker = await harness.worker()
    assert await harness.claim(worker) == []
    await set_quota(harness, "acme", 2)
    assert len(await harness.claim(worker)) == 2
    await set_quota(harness, "acme", 1)
    assert await harness.claim(worker) == []
    await set_quota(harness, "acme", None)
    assert len(await harness.claim(worker)) == 4


async def test_the_default_tenant_can_have_a_quota(harness: Harness) -> None:
    await set_quota(harness, "default", 2)
    await harness.submit(*(a_run() for _ in range(5)))
    assert len(await harness.claim(await harness.worker())) == 2


async def test_concurrent_claims_never_exceed_a_quota(harness: Harness) -> None:
    await set_quota(harness, "acme", 5)
    await harness.submit(*(a_run(tenant="acme") for _ in range(60)))
    workers = [await harness.worker() for _ in range(6)]
    done = 0
    for _ in range(100):
        claims = await asyncio.gather(*(harness.claim(worker, 3) for worker in workers))
        held = [run for claim in claims for run in claim]
        assert 0 < len(held) <= 5
        done += len(held)
        await harness.succeed(*held)
        if done == 60:
            return
    raise AssertionError(f"only {done} were ever claimed")
