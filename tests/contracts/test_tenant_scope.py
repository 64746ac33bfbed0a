"""Tenant scope: a reader of one tenant gets its data, and of other tenants the same as of unknown data."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from mainspring.core.model.base.instant import DAY, Instant
from mainspring.core.model.runs.run import RunState
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import JobFilter, Pause, Reads, RunFilter
from tests.support.builders import a_job_id, an_id
from tests.support.store_harness import Harness
from tests.support.tenant_objects import TenantObjects, two_tenants

pytestmark = pytest.mark.api


def _filter(of: TenantObjects) -> RunFilter:
    return RunFilter(tenant=of.tenant)


#: One call for each method that reads data of a tenant.
QUESTIONS: dict[str, Callable[[Reads, TenantObjects], Awaitable[Any]]] = {
    "runs": lambda reads, of: reads.runs(of.runs, payloads=True),
    "attempts": lambda reads, of: reads.attempts(of.runs[3]),
    "jobs": lambda reads, of: reads.jobs([of.job]),
    "ledger": lambda reads, of: reads.ledger(of.job, of.now - DAY, of.now + DAY, 100),
    "last_ticks": lambda reads, of: reads.last_ticks([of.job], 100),
    "parents": lambda reads, of: reads.parents(of.runs[5]),
    "parent_ids": lambda reads, of: reads.parent_ids(of.runs[5]),
    "children": lambda reads, of: reads.children(of.runs[1], None, 10),
    "usage": lambda reads, of: reads.usage(of.tenant, of.now - 2 * DAY, of.now + DAY, "task"),
    "budgets": lambda reads, of: reads.budgets(of.tenant),
    "depths": lambda reads, of: reads.depths(of.tenant),
    "list_runs": lambda reads, of: reads.list_runs(_filter(of), None, 100),
    "count_runs": lambda reads, of: reads.count_runs(_filter(of), 100),
    "standings": lambda reads, of: reads.standings(of.tenant, "red", of.now - DAY, 100),
    "list_jobs": lambda reads, of: reads.list_jobs(JobFilter(tenant=of.tenant), None, 100),
    "versions": lambda reads, of: reads.versions(of.job),
    "minutes": lambda reads, of: reads.minutes(of.tenant, of.now - DAY, of.now),
    "loads": lambda reads, of: reads.loads(of.tenant, None, of.now - DAY, of.now + 1),
    "timings": lambda reads, of: reads.timings(of.tenant, None, of.now - DAY, of.now),
    "dead_groups": lambda reads, of: reads.dead_groups(_filter(of), 100),
    "log": lambda reads, of: reads.log(of.runs[2], 0, 100),
    "log_before": lambda reads, of: reads.log_before(of.runs[2], 2**62, 100),
    "keys": lambda reads, of: reads.keys(of.tenant),
    "audit": lambda reads, of: reads.audit(of.tenant),
    "calendars": lambda reads, of: reads.calendars(of.tenant),
    "calendar_versions": lambda reads, of: reads.calendar_versions(of.tenant, "office"),
}
#: Calls that name no tenant.
WITHOUT_A_TENANT: dict[str, Callable[[Reads, Instant], Awaitable[Any]]] = {
    "depths": lambda reads, now: reads.depths(),
    "list_runs": lambda reads, now: reads.list_runs(RunFilter(tenant=None), None, 100),
    "list_runs by tag": lambda reads, now: reads.list_runs(RunFilter(tenant=None, tag="red"), None, 100),
    "list_runs by state": lambda reads, now: reads.list_runs(
        RunFilter(tenant=None, states=frozenset({RunState.QUEUED, RunState.SUCCEEDED})), None, 100
    ),
    "list_runs that are dead": lambda reads, now: reads.list_runs(RunFilter(tenant=None, dead=True), None, 100),
    "count_runs": lambda reads, now: reads.count_runs(RunFilter(tenant=None), 100),
    "count_runs by tag": lambda reads, now: reads.count_runs(RunFilter(tenant=None, tag="red"), 100),
    "standings": lambda reads, now: reads.standings(None, "red", now - DAY, 100),
    "list_jobs": lambda reads, now: reads.list_jobs(JobFilter(tenant=None), None, 100),
    "minutes": lambda reads, now: reads.minutes(None, now - DAY, now),
    "loads": lambda reads, now: reads.loads(None, None, now - DAY, now + 1),
    "timings": lambda reads, now: reads.timings(None, None, now - DAY, now),
    "usage": lambda reads, now: reads.usage(None, now - 2 * DAY, now + DAY, "task"),
    "budgets": lambda reads, now: reads.budgets(None),
    "dead_groups": lambda reads, now: reads.dead_groups(RunFilter(tenant=None), 100),
    "keys": lambda reads, now: reads.keys(None),
    "audit": lambda reads, now: reads.audit(None),
    "calendars": lambda reads, now: reads.calendars(None),
}


def test_every_read_method_is_tested() -> None:
    ways = {name for name in dir(Reads) if not name.startswith("_")}
    assert ways == QUESTIONS.keys() | {"pauses"}


async def test_a_tenant_scope_returns_the_data_of_its_tenant(harness: Harness) -> None:
    mine, theirs = await two_tenants(harness)
    for of in (mine, theirs):
        seen = harness.store.seen_by(of.tenant)
        for name, ask in QUESTIONS.items():
            answer = await ask(seen, of)
            assert answer == await ask(harness.store, of), name
            assert answer, name
            assert not isinstance(answer, list) or None not in answer, name


async def test_a_tenant_scope_answers_for_another_tenant_as_for_unknown_data(harness: Harness) -> None:
    mine, theirs = await two_tenants(harness)
    nothing = TenantObjects("nobody", tuple(an_id() for _ in range(6)), a_job_id(), mine.now)
    seen = harness.store.seen_by(mine.tenant)
    for name, ask in QUESTIONS.items():
        assert await ask(seen, theirs) == await ask(harness.store, nothing), name


async def test_a_tenant_scope_without_a_filter_returns_only_its_tenant(harness: Harness) -> None:
    mine, theirs = await two_tenants(harness)
    seen = harness.store.seen_by(mine.tenant)
    for name, ask in WITHOUT_A_TENANT.items():
        answer = await ask(seen, mine.now)
        assert answer, name
        text = msgspec.json.encode(msgspec.to_builtins(answer)).decode()
        for foreign in (theirs.tenant, *theirs.runs, theirs.job):
            assert foreign not in text, name
    assert await seen.count_runs(RunFilter(tenant=None), 100) == len(mine.runs) + len(
        [tick for tick in await harness.ticks(mine.job) if tick.run_id]
    )


async def test_a_tenant_scope_does_not_find_runs_by_the_job_of_another_tenant(harness: Harness) -> None:
    mine, theirs = await two_tenants(harness)
    wanted = RunFilter(tenant=None, job=theirs.job)
    assert (await harness.store.list_runs(wanted, None, 10)).items
    assert (await harness.store.seen_by(mine.tenant).list_runs(wanted, None, 10)).items == []


async def test_a_pause_of_every_tenant_is_visible_in_every_tenant_scope(harness: Harness) -> None:
    mine, _ = await two_tenants(harness)
    await harness.store.pause(Pause(tenant=None, queue=None), Author("root", None, "all stop"))
    pauses = await harness.store.seen_by(mine.tenant).pauses()
    assert [(pause.tenant, pause.queue, pause.why) for pause in pauses] == [
        (None, None, "all stop"),
        (mine.tenant, "slow", "too slow"),
    ]
    assert [pause.why for pause in await harness.store.seen_by("nobody").pauses()] == ["all stop"]


@pytest.mark.slow
async def test_a_scope_without_tenant_returns_all_data(harness: Harness) -> None:
    mine, theirs = await two_tenants(harness)
    seen = harness.store.seen_by(None)
    assert None not in await seen.runs([*mine.runs, *theirs.runs])
    tenants = {run.tenant for run in (await seen.list_runs(RunFilter(tenant=None), None, 100)).items}
    assert tenants == {mine.tenant, theirs.tenant}
