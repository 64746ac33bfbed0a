"""Queue policies: concurrency, fairness, weights, retry budgets and priority pools."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from mainspring.core.model.access.access import Quotas, Tenant
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import MINUTE, SECOND
from mainspring.core.model.limits.queues import NO_POLICY, QueuePolicy, RetryBudget
from mainspring.core.model.runs.completion import complete_release
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.rank import IDLE, OVERTAKING_BOUND
from mainspring.core.model.runs.run import HeldRun, RunState
from mainspring.core.ports.storage.access import AuditFilter, Author
from mainspring.core.ports.storage.catalog import Pause
from mainspring.core.store import Demand
from tests.support.builders import a_policy, a_run
from tests.support.store_harness import Harness, ids

ADA = Author("ada", why="because")


async def set_policy(harness: Harness, queue: str = "default", **policy: object) -> None:
    await harness.store.put_queue_policy(queue, QueuePolicy(**policy), ADA)  # type: ignore[arg-type]


def count_by_tenant(held: Sequence[HeldRun]) -> Counter[str]:
    return Counter(run.tenant for run in held)


def many(tenant: str, count: int, **fields: object) -> list[NewRun]:
    return [a_run(tenant=tenant, **fields) for _ in range(count)]  # type: ignore[arg-type]


async def heavy(weight: int, **fields: object) -> NewRun:
    return a_run(policy=a_policy(weight=weight), **fields)  # type: ignore[arg-type]


async def test_a_claim_respects_the_concurrency_of_a_queue(harness: Harness) -> None:
    await harness.submit(*many("acme", 10), *many("acme", 3, queue="other"))
    await set_policy(harness, concurrency=4)
    first, second = await harness.worker(), await harness.worker()
    held = await harness.claim(first, 3)
    assert len(held) == 3
    assert len(await harness.claim_from(second, Demand("default", 10), Demand("other", 10))) == 1 + 3
    assert await harness.claim(second) == []
    await harness.succeed(*held[:2])
    assert len(await harness.claim(second)) == 2
    await set_policy(harness, concurrency=2)
    assert await harness.claim(second) == []
    await set_policy(harness)
    assert len(await harness.claim(second)) == 4


async def test_concurrent_claims_do_not_exceed_the_concurrency(harness: Harness) -> None:
    await harness.submit(*many("acme", 40))
    await set_policy(harness, concurrency=7)
    workers = [await harness.worker() for _ in range(5)]
    for _ in range(3):
        held = [run for batch in await asyncio.gather(*(harness.claim(one, 3) for one in workers)) for run in batch]
        assert len(held) == 7
        await harness.succeed(*held)


async def test_a_claim_for_one_tenant_respects_the_concurrency(harness: Harness) -> None:
    await harness.submit(*many("acme", 3), *many("beta", 3))
    await set_policy(harness, concurrency=4)
    worker = await harness.worker()
    assert count_by_tenant(await harness.claim_from(worker, Demand("default", 10, "beta"))) == {"beta": 3}
    assert count_by_tenant(await harness.claim_from(worker, Demand("default", 10, "beta"), Demand("default", 10))) == {
        "acme": 1
    }


async def test_queue_policies_are_listed_and_audited(harness: Harness) -> None:
    policy = QueuePolicy(
        concurrency=5, retries=RetryBudget(most=10, per=SECOND), fair=True, shares={"acme": 3, "beta": 2}
    )
    await harness.store.put_queue_policy("mail", policy, ADA)
    await harness.store.put_queue_policy("mail", policy, ADA)
    await set_policy(harness, "images", concurrency=1)
    assert await harness.store.queue_policies() == {"images": QueuePolicy(concurrency=1), "mail": policy}
    await harness.store.put_queue_policy("mail", NO_POLICY, ADA)
    assert set(await harness.store.queue_policies()) == {"images"}
    entries = await harness.store.audit(None, AuditFilter(target="mail"))
    assert [(entry.action, entry.author, entry.why) for entry in entries] == [("queues.set", "ada", "because")] * 2
    assert entries[1].after is not None
    assert b'"retries":"10/1s"' in entries[1].after
    assert b"acme=3" in entries[1].after


async def test_tenants_of_a_fair_queue_alternate(harness: Harness) -> None:
    await set_policy(harness, fair=True)
    await harness.submit(*many("acme", 30, priority=1))
    await harness.submit(*many("beta", 30, priority=10), *many("default", 4))
    worker = await harness.worker()
    assert count_by_tenant(await harness.claim(worker, 6)) == {"acme": 2, "beta": 2, "default": 2}
    assert count_by_tenant(await harness.claim(worker, 8)) == {"acme": 3, "beta": 3, "default": 2}
    # The shares also hold over many small claims.
    taken: Counter[str] = Counter()
    for _ in range(20):
        taken += count_by_tenant(await harness.claim(worker, 1))
    assert taken == {"acme": 10, "beta": 10}


async def test_fair_shares_hold_over_small_claims_of_several_workers(harness: Harness) -> None:
    await set_policy(harness, fair=True, shares={"acme": 3})
    await harness.submit(*many("acme", 60), *many("beta", 60))
    workers = [await harness.worker() for _ in range(3)]
    taken: Counter[str] = Counter()
    for turn in range(16):
        taken += count_by_tenant(await harness.claim(workers[turn % 3], 1 + turn % 4))
    assert sum(taken.values()) == 40
    assert taken["acme"] == 30


async def test_a_single_run_waits_for_at_most_one_run_of_each_other_tenant(harness: Harness) -> None:
    await set_policy(harness, fair=True)
    for tenant in ("a", "b", "c"):
        await harness.submit(*many(tenant, 100))
    worker = await harness.worker()
    await harness.claim(worker, 50)
    await harness.submit(a_run(tenant="zoe"))
    before = 0
    while (held := await harness.claim(worker, 1)) and held[0].tenant != "zoe":
        before += 1
    assert before <= 3


async def test_an_idle_tenant_accumulates_no_credit(harness: Harness) -> None:
    await set_policy(harness, fair=True)
    await harness.submit(*many("acme", 60))
    worker = await harness.worker()
    await harness.claim(worker, 40)
    await harness.submit(*many("beta", 20))
    assert count_by_tenant(await harness.claim(worker, 20)) == {"acme": 10, "beta": 10}


async def test_a_fair_queue_orders_the_runs_of_a_tenant_by_rank(harness: Harness) -> None:
    await set_policy(harness, fair=True)
    idle, urgent = a_run(tenant="acme", priority=10), a_run(tenant="acme", priority=1)
    await harness.submit(idle, urgent)
    worker = await harness.worker()
    assert ids(await harness.claim(worker, 1)) == [urgent.id]


async def test_an_existing_backlog_is_shared_when_a_queue_becomes_fair(harness: Harness) -> None:
    runs = [*many("acme", 40), *many("beta", 10)]
    await harness.submit(*runs)
    later = many("beta", 5, delay=MINUTE)
    await harness.submit(*later)
    await set_policy(harness, fair=True)
    worker = await harness.worker()
    held = await harness.claim(worker, 8)
    assert count_by_tenant(held) == {"acme": 4, "beta": 4}
    await harness.advance(MINUTE + SECOND)
    await harness.stage()
    # Released and retried runs keep their rank when the queue is no longer fair.
    await harness.complete(*(complete_release(run) for run in held))
    await set_policy(harness)
    held = await harness.claim(worker, 12)
    assert count_by_tenant(held) == {"acme": 12}
    await set_policy(harness, fair=True)
    held += await harness.claim(worker, 10)
    await set_policy(harness)
    held += await harness.claim(worker, 1_000)
    assert sorted(ids(held)) == sorted(ids([*runs, *later]))


async def test_a_fair_queue_respects_pauses_and_quotas(harness: Harness) -> None:
    await set_policy(harness, fair=True)
    await harness.submit(*many("acme", 10), *many("beta", 10), *many("gamma", 10))
    await harness.store.put_tenant(Tenant(name="acme", quotas=Quotas(running=2)), ADA)
    await harness.store.pause(Pause(tenant="beta", queue=None), ADA)
    worker = await harness.worker()
    assert count_by_tenant(await harness.claim(worker, 9)) == {"acme": 2, "gamma": 7}
    await harness.store.resume("beta", None, ADA)
    assert count_by_tenant(await harness.claim(worker, 7)) == {"beta": 4, "gamma": 3}
    assert count_by_tenant(await harness.claim_from(worker, Demand("default", 2, "beta"))) == {"beta": 2}


async def test_a_fair_queue_respects_labels_and_targets(harness: Harness) -> None:
    await set_policy(harness, fair=True)
    plain, able = await harness.worker(), await harness.worker(labels=("gpu=a",))
    needs = many("acme", 3, policy=a_policy(requires=("gpu=a",)))
    mine = a_run(tenant="acme", target=plain)
    await harness.submit(*needs, mine, *many("beta", 2))
    assert count_by_tenant(held := await harness.claim(plain, 10)) == {"acme": 1, "beta": 2}
    assert mine.id in ids(held)
    assert sorted(ids(await harness.claim(able, 10))) == sorted(ids(needs))


async def test_a_heavy_run_takes_several_slots(harness: Harness) -> None:
    first, big, last = a_run(priority=1), await heavy(3, priority=2), a_run(priority=3)
    await harness.submit(first, big, last)
    worker = await harness.worker()
    assert ids(await harness.claim_from(worker, Demand("default", 3, slots=8))) == [first.id]
    # No later run is claimed before the heavy run fits.
    assert await harness.claim_from(worker, Demand("default", 2, slots=8)) == []
    assert ids(await harness.claim_from(worker, Demand("default", 4, slots=8))) == [big.id, last.id]


async def test_a_run_heavier_than_a_worker_runs_there_alone(harness: Harness) -> None:
    big, small = await heavy(100, priority=1), a_run()
    await harness.submit(big, small)
    worker = await harness.worker()
    assert await harness.claim_from(worker, Demand("default", 3, slots=4)) == []
    assert ids(await harness.claim_from(worker, Demand("default", 4, slots=4))) == [big.id]
    assert ids(await harness.claim_from(worker, Demand("default", 4, slots=4))) == [small.id]


async def test_a_fair_queue_charges_runs_by_their_weight(harness: Harness) -> None:
    await set_policy(harness, fair=True)
    await harness.submit(*many("acme", 10, policy=a_policy(weight=3)), *many("beta", 30))
    held = await harness.claim_from(await harness.worker(), Demand("default", 12, slots=100))
    assert count_by_tenant(held) == {"acme": 2, "beta": 6}


async def test_retries_are_staged_at_the_rate_of_the_retry_budget(harness: Harness) -> None:
    await set_policy(harness, retries=RetryBudget(most=2, per=SECOND))
    await harness.submit(*many("acme", 9, policy=a_policy(retries=3, pause=10 * SECOND)), a_run(queue="other"))
    held = await harness.claim(await harness.worker())
    await harness.fail(*held)
    dues = [(await harness.view(run.id)).due for run in held]
    assert len(dues) == 9
    assert max(Counter(due // SECOND for due in dues).values()) == 2
    assert min(dues) >= (await harness.now()) + 9 * SECOND
    assert max(dues) <= (await harness.now()) + 16 * SECOND
    await harness.advance(20 * SECOND)
    assert (await harness.stage()).runs == 9


async def test_released_runs_need_no_retry_budget(harness: Harness) -> None:
    await set_policy(harness, retries=RetryBudget(most=1, per=MINUTE))
    await harness.submit(*many("acme", 3))
    held = await harness.claim(await harness.worker())
    await harness.complete(*(complete_release(run, delay=SECOND) for run in held))
    assert await harness.states(held) == [RunState.SCHEDULED] * 3
    await harness.advance(2 * SECOND)
    assert (await harness.stage()).runs == 3


@pytest.mark.parametrize(
    "policy",
    [
        QueuePolicy(concurrency=0),
        QueuePolicy(shares={"acme": 2}),
        QueuePolicy(fair=True, shares={"acme": 0}),
        QueuePolicy(fair=True, shares={"*": 2}),
        QueuePolicy(retries=RetryBudget(most=0, per=SECOND)),
        QueuePolicy(retries=RetryBudget(most=1, per=1)),
    ],
)
async def test_an_invalid_queue_policy_is_rejected(harness: Harness, policy: QueuePolicy) -> None:
    with pytest.raises(Invalid):
        await harness.store.put_queue_policy("default", policy, ADA)
    assert await harness.store.queue_policies() == {}


async def test_a_worker_of_a_priority_pool_claims_no_other_priority(harness: Harness) -> None:
    before = [a_run(priority=priority) for priority in (1, 1, 2, 3) for _ in range(3)]
    await harness.submit(*before)
    worker = await harness.worker()
    held = await harness.claim_from(worker, Demand("default", 4, priority=1), Demand("default", 2, priority=3))
    assert Counter(run.priority for run in held) == {1: 4, 3: 2}
    after = [a_run(priority=priority) for priority in (1, 2, 3)]
    await harness.submit(*after)
    assert [run.priority for run in await harness.claim_from(worker, Demand("default", 9, priority=3))] == [3, 3]
    # A demand without a priority takes the best runs.
    assert [run.priority for run in await harness.claim(worker, 3)] == [1, 1, 1]
    held = await harness.claim(worker)
    assert [run.priority for run in held] == [2, 2, 2, 2]
    await harness.complete(*(complete_release(run) for run in held))
    assert ids(await harness.claim_from(worker, Demand("default", 9, priority=2))) == sorted(ids(held))


async def test_tenants_alternate_inside_a_priority_pool(harness: Harness) -> None:
    await harness.submit(*many("acme", 9, priority=1), *many("acme", 9, priority=2))
    await set_policy(harness, fair=True)
    worker = await harness.worker()
    assert count_by_tenant(await harness.claim_from(worker, Demand("default", 2, priority=1))) == {"acme": 2}
    await harness.submit(*many("beta", 9, priority=1))
    held = await harness.claim_from(worker, Demand("default", 6, priority=1))
    assert count_by_tenant(held) == {"acme": 3, "beta": 3}
    assert {run.priority for run in held} == {1}


async def test_no_run_is_overtaken_by_runs_submitted_after_the_aging_bound(harness: Harness) -> None:
    idle = a_run(priority=IDLE)
    await harness.submit(idle)
    worker = await harness.worker()
    for _ in range(9):
        await harness.submit(*(a_run(priority=1) for _ in range(3)))
        # There are always more urgent runs than are claimed.
        assert idle.id not in ids(await harness.claim(worker, 2))
        await harness.advance(OVERTAKING_BOUND // 9)
    late = [a_run(priority=1) for _ in range(30)]
    await harness.submit(*late)
    held = await harness.claim(worker, 10)
    assert idle.id in ids(held)
    assert not set(ids(late)) & set(ids(held))
