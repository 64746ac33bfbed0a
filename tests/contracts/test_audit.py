"""The audit: one entry for each effective change, written in the transaction of the change."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import HOUR, MINUTE
from mainspring.core.model.runs.new_run import Idempotency
from mainspring.core.model.schedules.job import JobState
from mainspring.core.ports.storage.access import AuditEntry, AuditFilter, Author
from tests.support.builders import a_job, a_run, a_spec, an_id, some_runs
from tests.support.store_harness import Harness

pytestmark = pytest.mark.api

ADA = Author("ada", why="because")


async def audited(harness: Harness, tenant: str | None = None) -> list[AuditEntry]:
    """Return the audit entries, oldest first."""
    return (await harness.store.audit(tenant))[::-1]


def rows(entries: Sequence[AuditEntry]) -> list[tuple[str, str, str, str, int]]:
    return [(entry.tenant, entry.author, entry.action, entry.target, entry.count) for entry in entries]


def difference(entry: AuditEntry) -> tuple[object, object]:
    assert entry.before is not None
    assert entry.after is not None
    return msgspec.json.decode(entry.before), msgspec.json.decode(entry.after)


async def test_a_submit_is_one_audit_entry_per_author_and_tenant(harness: Harness) -> None:
    mine = [a_run(author="ada") for _ in range(3)]
    acmes, bobs, anonymous = a_run(author="ada", tenant="acme"), a_run(author="bob"), a_run()
    before = await harness.now()
    await harness.submit(mine[0], acmes, anonymous, mine[1], bobs, mine[2])
    entries = await audited(harness)
    assert sorted(rows(entries)) == sorted(
        [
            ("default", "ada", "jobs.submit", mine[0].id, 3),
            ("acme", "ada", "jobs.submit", acmes.id, 1),
            ("default", "bob", "jobs.submit", bobs.id, 1),
        ]
    )
    assert all(before <= entry.at for entry in entries)
    assert {entry.before for entry in entries} | {entry.after for entry in entries} == {None}


async def test_a_change_without_an_author_has_no_audit_entry(harness: Harness) -> None:
    [held] = await harness.start(a_run())
    job = await harness.put(a_job())
    await harness.store.set_jobs_state([job.id], JobState.PAUSED)
    await harness.store.cancel([held.id])
    assert await audited(harness) == []


async def test_known_runs_are_not_counted_in_the_audit_entry_of_a_submit(harness: Harness) -> None:
    known = a_run(author="ada")
    await harness.submit(known)
    new = a_run(author="ada")
    await harness.submit(known, new)
    await harness.submit(known)
    keyed = [a_run(author="ada", idempotency=Idempotency("k", b"1")) for _ in range(2)]
    await harness.submit(*keyed)
    await harness.submit(keyed[1])
    assert rows(await audited(harness)) == [
        ("default", "ada", "jobs.submit", known.id, 1),
        ("default", "ada", "jobs.submit", new.id, 1),
        ("default", "ada", "jobs.submit", keyed[0].id, 1),
    ]


async def test_a_declaration_is_one_audit_entry_per_author_and_tenant(harness: Harness) -> None:
    jobs = [a_job(author="ada", why="a start") for _ in range(2)]
    acmes, anonymous = a_job(author="ada", tenant="acme"), a_job()
    await harness.store.put_jobs([*jobs, acmes, anonymous])
    entries = await audited(harness)
    assert sorted(rows(entries)) == sorted(
        [("default", "ada", "jobs.put", jobs[0].id, 2), ("acme", "ada", "jobs.put", acmes.id, 1)]
    )
    assert {entry.why for entry in entries if entry.tenant == "default"} == {"a start"}


async def test_the_audit_entry_of_a_changed_job_has_the_changed_fields(harness: Harness) -> None:
    await harness.put(a_job(a_spec(name="report", task="old")))
    changed = await harness.put(a_job(a_spec(name="report", task="new", tags=("x",)), author="ada", why="faster"))
    [entry] = await audited(harness)
    assert rows([entry]) == [("default", "ada", "jobs.put", changed.id, 1)]
    assert entry.why == "faster"
    assert difference(entry) == (
        {"version": 1, "task": "old", "tags": None},
        {"version": 2, "task": "new", "tags": ["x"]},
    )


async def test_the_audit_entry_of_a_job_declared_after_its_end_has_both_states(harness: Harness) -> None:
    job = await harness.put(a_job(a_spec(name="report")))
    await harness.store.set_jobs_state([job.id], JobState.CANCELLED)
    await harness.put(a_job(a_spec(name="report"), author="ada"))
    [entry] = await audited(harness)
    assert difference(entry) == ({"state": "cancelled"}, {"state": "scheduled"})


async def test_a_declaration_without_changes_has_no_audit_entry(harness: Harness) -> None:
    await harness.put(a_job(a_spec(name="report")))
    await harness.put(a_job(a_spec(name="report"), author="ada"))
    await harness.put(a_job(a_spec(name="report", task="other"), author="ada", must_be_new=True))
    await harness.put(a_job(a_spec(name="report", task="other"), author="ada", expected_version=7))
    assert await audited(harness) == []


@pytest.mark.parametrize(
    ("before", "after", "action"),
    [
        (JobState.SCHEDULED, JobState.PAUSED, "jobs.pause"),
        (JobState.PAUSED, JobState.SCHEDULED, "jobs.resume"),
        (JobState.SCHEDULED, JobState.CANCELLED, "jobs.cancel"),
        (JobState.PAUSED, JobState.CANCELLED, "jobs.cancel"),
    ],
)
async def test_the_state_of_a_job_is_audited(harness: Harness, before: JobState, after: JobState, action: str) -> None:
    job = await harness.put(a_job())
    await harness.store.set_jobs_state([job.id], before)
    await harness.store.set_jobs_state([job.id], after, ADA)
    await harness.store.set_jobs_state([job.id], after, ADA)
    [entry] = await audited(harness)
    assert rows([entry]) == [("default", "ada", action, job.id, 1)]
    assert entry.why == "because"
    assert difference(entry) == ({"state": before.value}, {"state": after.value})


async def test_a_state_change_of_many_jobs_is_one_audit_entry_per_tenant(harness: Harness) -> None:
    mine = [await harness.put(a_job()) for _ in range(3)]
    acmes = await harness.put(a_job(tenant="acme"))
    await harness.store.set_jobs_state([mine[1].id], JobState.PAUSED)
    asked = [mine[1].id, mine[0].id, acmes.id, mine[2].id, JobId(an_id())]
    await harness.store.set_jobs_state(asked, JobState.PAUSED, ADA)
    entries = await audited(harness)
    by_tenant = {entry.tenant: entry for entry in entries}
    assert len(entries) == 2
    assert (by_tenant["default"].count, by_tenant["acme"].count) == (2, 1)
    assert by_tenant["default"].target in (mine[0].id, mine[2].id)
    assert by_tenant["default"].before is None
    assert difference(by_tenant["acme"]) == ({"state": "scheduled"}, {"state": "paused"})


async def test_a_change_by_an_author_of_a_tenant_is_in_the_audit_of_that_tenant(harness: Harness) -> None:
    jobs = [await harness.put(a_job()), await harness.put(a_job(tenant="acme"))]
    await harness.store.set_jobs_state([job.id for job in jobs], JobState.PAUSED, Author("root", "ops"))
    [entry] = await audited(harness)
    assert (entry.tenant, entry.count) == ("ops", 2)


async def test_the_audit_entry_of_a_cancel_has_both_states(harness: Harness) -> None:
    [held] = await harness.start(a_run(queue="a"))
    queued, waiting = a_run(), a_run(delay=HOUR)
    await harness.submit(queued, waiting)
    for run in (held, queued, waiting):
        await harness.store.cancel([run.id], ADA)
        await harness.store.cancel([run.id], ADA)
    entries = await audited(harness)
    assert rows(entries) == [("default", "ada", "runs.cancel", run.id, 1) for run in (held, queued, waiting)]
    assert [difference(entry) for entry in entries] == [
        ({"state": "running"}, {"state": "cancelling"}),
        ({"state": "queued"}, {"state": "cancelled"}),
        ({"state": "scheduled"}, {"state": "cancelled"}),
    ]


async def test_the_audit_entry_of_a_cancel_counts_the_changed_runs(harness: Harness) -> None:
    ended = a_run(queue="a")
    [held] = await harness.start(ended)
    await harness.succeed(held)
    runs = some_runs(3)
    await harness.submit(*runs)
    await harness.store.cancel([ended.id, *(run.id for run in runs), RunId(an_id())], ADA)
    await harness.store.cancel([ended.id, RunId(an_id())], ADA)
    [entry] = await audited(harness)
    assert (entry.count, entry.before, entry.after) == (3, None, None)
    assert entry.target in {run.id for run in runs}


async def test_cancelling_a_job_with_runs_is_one_audit_entry(harness: Harness) -> None:
    job = await harness.put(a_job())
    await harness.advance(2 * MINUTE)
    await harness.fire_due()
    await harness.store.set_jobs_state([job.id], JobState.CANCELLED, ADA)
    assert rows(await audited(harness)) == [("default", "ada", "jobs.cancel", job.id, 1)]


async def test_the_audit_is_read_newest_first_in_pages(harness: Harness) -> None:
    for number in range(7):
        await harness.submit(a_run(author=f"author-{number}"))
    everything = await harness.store.audit(None)
    assert [entry.author for entry in everything] == [f"author-{number}" for number in reversed(range(7))]
    positions = [entry.position for entry in everything]
    assert positions == sorted(set(positions), reverse=True)
    for limit in range(1, 9):
        read: list[AuditEntry] = []
        before: int | None = None
        while page := await harness.store.audit(None, before=before, limit=limit):
            assert len(page) <= limit
            read += page
            before = page[-1].position
        assert read == everything


async def test_the_audit_is_filtered_by_tenant_target_and_author(harness: Harness) -> None:
    ada, bob, acme = a_run(author="ada"), a_run(author="bob"), a_run(author="ada", tenant="acme")
    for run in (ada, bob, acme):
        await harness.submit(run)
    audit = harness.store.audit
    assert [entry.target for entry in await audit("default")] == [bob.id, ada.id]
    assert [entry.target for entry in await audit("acme")] == [acme.id]
    assert await audit("beta") == []
    assert [entry.target for entry in await audit(None, AuditFilter(author="ada"))] == [acme.id, ada.id]
    assert [entry.target for entry in await audit("default", AuditFilter(author="ada"))] == [ada.id]
    assert [entry.author for entry in await audit(None, AuditFilter(target=bob.id))] == ["bob"]
    assert await audit("acme", AuditFilter(target=bob.id)) == []
    assert await audit(None, AuditFilter(author="ad")) == [], "names are compared whole"


async def test_the_audit_is_filtered_by_action_and_time(harness: Harness) -> None:
    run = a_run(author="ada", delay=HOUR)
    await harness.submit(run)
    await harness.advance(MINUTE)
    between = await harness.now()
    await harness.advance(MINUTE)
    await harness.store.cancel([run.id], ADA)

    async def actions(**wanted: Any) -> list[str]:
        return [entry.action for entry in await harness.store.audit(None, AuditFilter(**wanted))]

    assert await actions() == ["runs.cancel", "jobs.submit"]
    assert await actions(action="jobs.submit") == ["jobs.submit"]
    assert await actions(action="runs") == ["runs.cancel"]
    assert await actions(action="run") == []
    assert await actions(since=between) == ["runs.cancel"]
    assert await actions(until=between) == ["jobs.submit"]
    assert await actions(since=between, until=between) == []
    assert await actions(since=between, action="jobs") == []
