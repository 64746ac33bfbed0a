"""Retention classes: a job or its tenant chooses how long its runs are kept."""

import msgspec
import pytest

from mainspring.core.model.access.access import Quotas, Tenant
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import DAY, HOUR
from mainspring.core.model.runs.run import RunState
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import LogReport, RunFilter
from mainspring.core.ports.storage.upkeep import Retention
from tests.support.builders import a_job, a_policy, a_run, a_spec, every
from tests.support.store_harness import Harness

pytestmark = pytest.mark.slow

KEPT = Retention(succeeded=7 * DAY, unsuccessful=30 * DAY, ledger=20 * DAY, short=DAY, long=90 * DAY, audit=400 * DAY)


async def prune_all(harness: Harness, retention: Retention = KEPT) -> None:
    while await harness.store.prune(retention, 100):
        pass


async def exist(harness: Harness, runs: list[RunId]) -> list[bool]:
    return [view is not None for view in await harness.store.runs(runs)]


async def test_each_retention_class_has_its_own_time_for_every_outcome(harness: Harness) -> None:
    names = ["", "standard", "short", "long", "audit"]
    good = [a_run(policy=a_policy(retention=name)) for name in names]
    bad = [a_run(policy=a_policy(retries=0, retention=name)) for name in names]
    held = await harness.start(*good, *bad)
    by_id = {run.id: run for run in held}
    await harness.succeed(*(by_id[run.id] for run in good))
    for run in bad:
        await harness.fail(by_id[run.id])
    ids = [run.id for run in (*good, *bad)]
    views = [view for view in await harness.store.runs(ids) if view is not None]
    assert [view.kept_as for view in views] == ["standard", "standard", "short", "long", "audit"] * 2
    seen = []
    for days in (4, 8, 21, 70, 420):
        # The partitions of the longer classes span a week and thirty days.
        await harness.advance(days * DAY)
        await prune_all(harness)
        seen.append(await exist(harness, ids))
    yes, no = True, False
    assert seen[0] == [yes, yes, no, yes, yes] * 2
    assert seen[1] == [no, no, no, yes, yes, yes, yes, no, yes, yes]
    assert seen[2] == [no, no, no, yes, yes] * 2
    assert seen[3] == [no, no, no, no, yes] * 2
    assert seen[4] == [no, no, no, no, no] * 2


async def test_the_data_of_a_run_is_kept_as_long_as_the_run(harness: Harness) -> None:
    run = a_run(payload=b'"kept"', policy=a_policy(retries=0, retention="audit"))
    [held] = await harness.start(run)
    await harness.fail(held)
    for _ in range(3):
        await harness.advance(120 * DAY)
        await prune_all(harness)
    [view] = await harness.store.runs([run.id], payloads=True)
    assert view is not None
    assert (view.state, view.payload, view.policy.retention) == (RunState.FAILED, b'"kept"', "audit")
    assert len(await harness.store.attempts(run.id)) == 1
    await harness.advance(90 * DAY)
    await prune_all(harness)
    assert await exist(harness, [run.id]) == [False]
    assert await harness.store.attempts(run.id) == []


async def test_the_ledger_entries_of_a_job_are_kept_as_long_as_their_runs(harness: Harness) -> None:
    daily = every(DAY, start=await harness.now() + 2 * HOUR)
    spec = a_spec(schedule=daily, policy=a_policy(retention="audit"))
    job = await harness.put(a_job(spec, payload=b'"kept"'))
    await harness.advance(3 * HOUR)
    await harness.fire_due()
    [held] = await harness.claim(await harness.worker())
    assert held.payload == b'"kept"'
    await harness.succeed(held)
    await harness.advance(60 * DAY)
    await prune_all(harness)
    [view] = await harness.store.runs([held.id], payloads=True)
    assert view is not None
    assert view.payload == b'"kept"'
    now = await harness.now()
    assert [tick.run_id for tick in await harness.store.ledger(job.id, 0, now, 10)] == [held.id]
    await harness.advance(500 * DAY)
    await prune_all(harness)
    assert await exist(harness, [held.id]) == [False]
    assert await harness.store.ledger(job.id, 0, now, 10) == []


async def test_a_short_class_configured_as_the_longest_keeps_its_data(harness: Harness) -> None:
    """The times are settings and need not follow the names of the classes."""
    odd = Retention(succeeded=DAY, unsuccessful=DAY, ledger=DAY, short=10 * DAY)
    spec = a_spec(
        schedule=every(DAY, start=await harness.now() + 2 * HOUR), policy=a_policy(retention="short", retries=0)
    )
    job = await harness.put(a_job(spec))
    await harness.advance(3 * HOUR)
    await harness.fire_due()
    [held] = await harness.claim(await harness.worker())
    await harness.store.append_log([LogReport(run=held.id, fence=held.fence, text="kept")])
    await harness.fail(held)
    now = await harness.now()
    await harness.advance(5 * DAY)
    await prune_all(harness, odd)
    assert await exist(harness, [held.id]) == [True]
    assert len(await harness.store.attempts(held.id)) == 1
    assert [line.text for line in await harness.store.log(held.id, 0, 10)] == ["kept"]
    assert [tick.run_id for tick in await harness.store.ledger(job.id, 0, now, 10)] == [held.id]
    await harness.advance(10 * DAY)
    await prune_all(harness, odd)
    assert await exist(harness, [held.id]) == [False]
    assert await harness.store.attempts(held.id) == []


async def test_the_class_of_the_tenant_is_the_default(harness: Harness) -> None:
    await harness.store.put_tenant(Tenant(name="bank", quotas=Quotas(retention="long")), Author("test"))
    chosen = a_run(tenant="bank", policy=a_policy(retention="short"))
    plain, other = a_run(tenant="bank"), a_run()
    held = await harness.start(chosen, plain, other)
    await harness.succeed(*held)
    views = await harness.store.runs([chosen.id, plain.id, other.id])
    assert [view and view.kept_as for view in views] == ["short", "long", "standard"]
    await harness.advance(20 * DAY)
    await prune_all(harness)
    assert await exist(harness, [chosen.id, plain.id, other.id]) == [False, True, False]
    [tenant] = [one for one in await harness.store.tenants() if one.name == "bank"]
    assert tenant.quotas.retention == "long"


async def test_a_run_that_has_not_ended_is_never_pruned_in_any_class(harness: Harness) -> None:
    runs = [a_run(policy=a_policy(retention=name), payload=b'"there"') for name in ("short", "long", "audit")]
    far = [a_run(delay=100 * DAY, policy=a_policy(retention=name), payload=b'"far"') for name in ("short", "long")]
    await harness.submit(*runs, *far)
    for _ in range(5):
        await harness.advance(30 * DAY)
        await prune_all(harness)
    await harness.stage()
    held = await harness.claim(await harness.worker(), 10)
    assert sorted(run.payload for run in held) == [b'"far"'] * 2 + [b'"there"'] * 3
    assert {run.id: run.policy.retention for run in held} == {run.id: run.policy.retention for run in (*runs, *far)}
    await harness.succeed(*held)
    await harness.advance(10 * DAY)
    await prune_all(harness)
    assert await exist(harness, [run.id for run in (*runs, *far)]) == [False, True, True, False, True]


async def test_runs_of_every_class_are_found_by_state(harness: Harness) -> None:
    good = [a_run(policy=a_policy(retention=name)) for name in ("standard", "short", "audit")]
    bad = [a_run(policy=a_policy(retries=0, retention=name)) for name in ("standard", "short", "audit")]
    held = {run.id: run for run in await harness.start(*good, *bad)}
    await harness.succeed(*(held[run.id] for run in good))
    for run in bad:
        await harness.fail(held[run.id])
    for states, runs in (
        ({RunState.SUCCEEDED}, good),
        ({RunState.FAILED}, bad),
        ({RunState.FAILED, RunState.CANCELLED}, bad),
        ({RunState.SUCCEEDED, RunState.FAILED}, [*good, *bad]),
    ):
        wanted = RunFilter(tenant=None, states=frozenset(states))
        page = await harness.store.list_runs(wanted, None, 100)
        assert {run.id for run in page.items} == {run.id for run in runs}
        assert await harness.store.count_runs(wanted, 100) == len(runs)
    assert sum(group.count for group in await harness.store.dead_groups(RunFilter(tenant=None), 10)) == 3


def test_an_unknown_class_is_rejected_by_name() -> None:
    with pytest.raises(Invalid, match=r"retention.*'centuries'.*standard, short, long, audit"):
        a_policy(retention="centuries").check()
    with pytest.raises(Invalid, match="retention"):
        Tenant(name="bank", quotas=Quotas(retention="centuries")).check()
    assert msgspec.json.encode(a_policy()) == msgspec.json.encode(a_policy(retention=""))
