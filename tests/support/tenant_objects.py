"""Two tenants, each with at least one object of every kind."""

import msgspec

from mainspring.core.model.access.access import ApiKey, Quotas, Role, Tenant
from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, Instant
from mainspring.core.model.limits.budget import Budget
from mainspring.core.model.runs.new_run import About, Idempotency
from mainspring.core.model.schedules.calendar import CalendarSpec
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import LogReport, Pause, ProgressReport
from tests.support.builders import a_job, a_policy, a_run, a_spec, every
from tests.support.store_harness import Harness


class TenantObjects(msgspec.Struct, frozen=True):
    """Ids of the objects of a tenant."""

    tenant: str
    #: Waiting, queued, running (with a log), failed (with an attempt), succeeded, a child of the queued one.
    runs: tuple[RunId, ...]
    job: JobId
    now: Instant = 0


async def make_objects(harness: Harness, tenant: str) -> TenantObjects:
    """Create one object of every kind for a tenant, with the same names for every tenant."""
    store, author = harness.store, Author("ada", tenant)
    await store.attach_reader("somebody")
    await store.put_tenant(Tenant(name=tenant, quotas=Quotas(jobs=10)), author)
    about = About(name="letter", tags=("red",))
    policy = a_policy(retries=0)
    running, failed, succeeded = (
        a_run(tenant=tenant, queue=f"of-{tenant}", policy=policy, about=about, author="ada") for _ in range(3)
    )
    held = await harness.start(running, failed, succeeded)
    await store.append_log([LogReport(run=held[0].id, fence=held[0].fence, text=f"hello {tenant}")])
    await store.report_progress([ProgressReport(run=held[0].id, fence=held[0].fence, done=1, note=f"for {tenant}")])
    await harness.fail(held[1], error="boom")
    await harness.succeed(held[2])
    waiting = a_run(tenant=tenant, delay=30 * DAY, about=about)
    queued = a_run(tenant=tenant, about=about, idempotency=Idempotency("once", b"body"))
    child = a_run(tenant=tenant, about=about, after=[queued])
    await harness.submit(waiting, queued, child)
    await store.put_budget(Budget(tenant=tenant, name="all", unit="attempts", limit=100), author)
    job = await harness.put(a_job(a_spec(name="report", schedule=every(MINUTE)), tenant=tenant, author="ada"))
    await harness.put(a_job(a_spec(name="report", schedule=every(HOUR)), tenant=tenant, author="ada"))
    key = ApiKey(id=f"key{tenant}", tenant=tenant, name="key", role=Role.VIEWER, secret_hash=b"x" * 32, made_by="ada")
    await store.put_key(key, author)
    await store.put_budget(Budget(tenant=tenant, name="budget", unit="tokens", limit=5.0), author)
    await store.put_calendar(tenant, "office", CalendarSpec(closed_days=("sun",)), author)
    await store.pause(Pause(tenant=tenant, queue="slow"), Author("ada", tenant, "too slow"))
    return TenantObjects(tenant, (waiting.id, queued.id, running.id, failed.id, succeeded.id, child.id), job.id)


async def two_tenants(harness: Harness) -> tuple[TenantObjects, TenantObjects]:
    mine, theirs = await make_objects(harness, "acme"), await make_objects(harness, "zeta")
    await harness.advance(2 * HOUR)
    await harness.fire_due()
    await harness.store.tidy()
    await harness.store.sample_load()
    now = await harness.now()
    return msgspec.structs.replace(mine, now=now), msgspec.structs.replace(theirs, now=now)
