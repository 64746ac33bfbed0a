"""Numbers: exactly as many as allowed, one fewer and one more, of demands, limits, quotas, retries and losses."""

import pytest

from mainspring.core.model.access.access import Quotas, Tenant
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE
from mainspring.core.model.limits.budget import Budget
from mainspring.core.model.limits.limits import Breaker
from mainspring.core.model.limits.queues import QueuePolicy, RetryBudget
from mainspring.core.model.runs.completion import LOST_AFTER, POISON_AFTER, complete_loss
from mainspring.core.model.runs.run import RunState
from mainspring.core.ports.storage.catalog import RunFilter
from mainspring.core.store import Demand
from tests.support.boundaries import ADA, on_every_claim_path, prepare_claim_path, skip_on_a_sharded_store
from tests.support.builders import a_job, a_limit, a_policy, a_run, a_spec, every, some_runs
from tests.support.store_harness import Harness, ids

QUEUED, BLOCKED = RunState.QUEUED, RunState.BLOCKED

LIMIT = 3
#: As many as the limit, one fewer and one more.
around_the_limit = pytest.mark.parametrize("there", [LIMIT - 1, LIMIT, LIMIT + 1], ids=["fewer", "equal", "more"])


@on_every_claim_path
@around_the_limit
async def test_a_claim_takes_exactly_its_demand(harness: Harness, path: str, there: int) -> None:
    way = await prepare_claim_path(harness, path)
    worker, runs = await way.worker(HOUR), [way.adapt(a_run()) for _ in range(there)]
    await harness.submit(*runs)
    hinted = runs[:LIMIT] if path == "hinted" else runs
    assert ids(await way.claim(worker, hinted, LIMIT)) == ids(runs[:LIMIT])
    assert len(await way.claim(worker, runs, LIMIT)) == max(there - LIMIT, 0)


@pytest.mark.parametrize("key", ["", "key"], ids=["plain", "ordering keys"])
@pytest.mark.parametrize("spread", [0, 1], ids=["one shard", "every shard"])
@around_the_limit
async def test_staging_queues_exactly_its_limit(harness: Harness, key: str, spread: int, there: int) -> None:
    if spread:
        skip_on_a_sharded_store(harness, "each server of a sharded store stages up to the limit")
    await harness.owner()
    await harness.submit(*(a_run(delay=MINUTE, shard=n * spread, key=key and f"{key}-{n}") for n in range(there)))
    await harness.move_clock(MINUTE)
    staged = await harness.stage(LIMIT)
    assert staged.runs == min(there, LIMIT)
    assert staged.more or there <= LIMIT
    assert not (staged.more and there < LIMIT)
    assert (await harness.stage(LIMIT)).runs == max(there - LIMIT, 0)


@pytest.mark.parametrize("sessions", [1, LIMIT + 1])
@around_the_limit
async def test_the_reaper_returns_exactly_its_limit_of_lost_runs(harness: Harness, sessions: int, there: int) -> None:
    workers = [await harness.worker(MINUTE) for _ in range(sessions)]
    await harness.submit(*some_runs(there))
    for number in range(there):
        await harness.claim(workers[number % sessions], 1)
    await harness.move_clock(MINUTE)
    assert len(await harness.store.lost_runs(LIMIT)) == min(there, LIMIT)


@around_the_limit
async def test_the_reaper_returns_exactly_its_limit_of_overdue_runs(harness: Harness, there: int) -> None:
    await harness.start(*(a_run(policy=a_policy(timeout=MINUTE)) for _ in range(there)))
    await harness.move_clock(MINUTE + 1)
    assert len(await harness.store.overdue_runs(0, LIMIT)) == min(there, LIMIT)


@pytest.mark.parametrize("delay", [0, MINUTE], ids=["queued", "scheduled"])
@around_the_limit
async def test_expiry_ends_every_run_in_portions_of_its_limit(harness: Harness, delay: int, there: int) -> None:
    runs = [a_run(delay=delay, start_within=MINUTE) for _ in range(there)]
    await harness.submit(*runs)
    await harness.move_clock(HOUR)
    assert await harness.store.expire(LIMIT) == min(there, LIMIT)
    assert await harness.store.expire(LIMIT) == max(there - LIMIT, 0)
    assert set(await harness.states(runs)) == {RunState.SKIPPED}


@around_the_limit
async def test_due_jobs_and_upcoming_runs_are_cut_at_the_limit(harness: Harness, there: int) -> None:
    now = await harness.now()
    for number in range(there):
        await harness.put(a_job(a_spec(schedule=every(HOUR, start=now + MINUTE)), shard=number))
        await harness.submit(a_run(delay=MINUTE, shard=number))
    assert len(await harness.store.due_jobs(harness.all_shards, now + HOUR, LIMIT)) == min(there, LIMIT)
    assert len(await harness.store.upcoming(harness.all_shards, now + HOUR, LIMIT)) == min(there, LIMIT)


@around_the_limit
async def test_a_page_of_runs_has_exactly_its_limit(harness: Harness, there: int) -> None:
    runs = some_runs(there)
    await harness.submit(*runs)
    page = await harness.store.list_runs(RunFilter(tenant=None), None, LIMIT)
    assert len(page.items) == min(there, LIMIT)


@around_the_limit
async def test_a_queue_runs_exactly_its_concurrency(harness: Harness, there: int) -> None:
    skip_on_a_sharded_store(harness)
    await harness.store.put_queue_policy("default", QueuePolicy(concurrency=LIMIT), ADA)
    await harness.submit(*some_runs(there))
    workers = [await harness.worker() for _ in range(2)]
    held = await harness.claim(workers[0], 2) + await harness.claim(workers[1], 10)
    assert len(held) == min(there, LIMIT)
    await harness.succeed(held[0])
    assert len(await harness.claim(workers[0])) == max(there - LIMIT, 0)


@around_the_limit
async def test_a_tenant_runs_exactly_its_quota(harness: Harness, there: int) -> None:
    await harness.store.put_tenant(Tenant(name="default", quotas=Quotas(running=LIMIT)), ADA)
    await harness.submit(*some_runs(there), a_run(tenant="other"))
    workers = [await harness.worker() for _ in range(2)]
    held = await harness.claim(workers[0], 2) + await harness.claim(workers[1], 10)
    assert len([run for run in held if run.tenant == "default"]) == min(there, LIMIT)


@pytest.mark.parametrize("per", [None, HOUR], ids=["at a time", "per period"])
@pytest.mark.parametrize("together", [False, True], ids=["one by one", "one batch"])
@around_the_limit
async def test_a_limit_admits_exactly_its_number(harness: Harness, per: int | None, together: bool, there: int) -> None:
    runs = [a_run(limits=(a_limit(most=LIMIT, per=per),)) for _ in range(there)]
    for batch in [runs] if together else [[run] for run in runs]:
        await harness.submit(*batch)
    assert await harness.states(runs) == [QUEUED] * min(there, LIMIT) + [BLOCKED] * max(there - LIMIT, 0)


@around_the_limit
async def test_a_limit_at_a_time_counts_running_and_queued_runs(harness: Harness, there: int) -> None:
    runs = [a_run(limits=(a_limit(most=LIMIT),)) for _ in range(there)]
    await harness.submit(*runs)
    [first, *_] = await harness.claim(await harness.worker(), 1)
    assert (await harness.states(runs)).count(BLOCKED) == max(there - LIMIT, 0)
    await harness.succeed(first)
    assert (await harness.states(runs)).count(BLOCKED) == 0


@around_the_limit
async def test_a_breaker_opens_at_exactly_its_number_of_failures(harness: Harness, there: int) -> None:
    policy = a_policy(retries=0, breaker=Breaker(failures=LIMIT, within=HOUR, pause=HOUR))
    await harness.fail(*await harness.start(*(a_run(policy=policy) for _ in range(there))))
    [accepted] = await harness.submit(a_run(policy=policy))
    assert accepted.state is (QUEUED if there < LIMIT else BLOCKED)


@pytest.mark.parametrize("retries", [0, 1, 2])
async def test_a_run_is_attempted_once_more_than_its_retries(harness: Harness, retries: int) -> None:
    run = a_run(policy=a_policy(retries=retries, pause=MINUTE))
    worker = await harness.worker()
    await harness.submit(run)
    attempts = 0
    while not (await harness.state(run.id)).ended:
        [held] = await harness.claim(worker)
        attempts += 1
        await harness.fail(held)
        await harness.move_clock(MINUTE)
        await harness.stage()
    assert attempts == retries + 1
    assert await harness.state(run.id) is RunState.FAILED


@pytest.mark.parametrize(("blamed", "most"), [(True, POISON_AFTER), (False, LOST_AFTER)])
async def test_a_run_fails_with_exactly_its_last_loss(harness: Harness, blamed: bool, most: int) -> None:
    run, worker = a_run(), await harness.worker()
    await harness.submit(run)
    for loss in range(1, most + 1):
        [held] = await harness.claim(worker)
        assert held.lost == loss - 1
        await harness.complete(complete_loss(held, blamed=blamed))
        view = await harness.view(run.id)
        assert (view.state, view.lost, view.attempt) == (RunState.FAILED if loss == most else QUEUED, loss, loss)


@around_the_limit
async def test_a_retry_over_the_budget_of_a_period_is_moved_to_the_next(harness: Harness, there: int) -> None:
    skip_on_a_sharded_store(harness)
    budget = RetryBudget(most=LIMIT, per=HOUR)
    await harness.store.put_queue_policy("default", QueuePolicy(retries=budget), ADA)
    # Far from the end of a period, so that all retries fall into one.
    await harness.move_clock(HOUR - await harness.now() % HOUR)
    runs = [a_run(policy=a_policy(pause=MINUTE)) for _ in range(there)]
    await harness.fail(*await harness.start(*runs))
    now = await harness.now()
    dues = sorted([(await harness.view(run.id)).due for run in runs])
    assert dues == [now + MINUTE] * min(there, LIMIT) + [now + HOUR] * max(there - LIMIT, 0)


@around_the_limit
async def test_a_budget_lowers_exactly_its_limit_of_runs(harness: Harness, there: int) -> None:
    await harness.submit(*some_runs(there))
    budget = Budget(tenant="default", name="cheap", unit="attempts", limit=1, then="lower")
    assert await harness.store.lower(budget, LIMIT) == min(there, LIMIT)
    assert await harness.store.lower(budget, LIMIT) == max(there - LIMIT, 0)


@around_the_limit
async def test_a_reader_gets_exactly_its_limit_of_batches(harness: Harness, there: int) -> None:
    await harness.store.attach_reader("reader")
    for _ in range(there):
        await harness.submit(a_run())
    assert len(await harness.events("reader", LIMIT)) == min(there, LIMIT)


@pytest.mark.parametrize("weight", [1, 2, 3])
async def test_a_run_is_claimed_if_its_weight_fits_the_free_slots(harness: Harness, weight: int) -> None:
    await harness.submit(a_run(policy=a_policy(weight=weight)))
    held = await harness.claim_from(await harness.worker(DAY), Demand("default", 2, slots=3))
    assert len(held) == (1 if weight <= 2 else 0)
