"""A store limited to one tenant, for stores without row-level security."""

from collections.abc import Sequence

import msgspec

from mainspring.core.model.access.access import ApiKey
from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import MINUTE, Instant, Micros
from mainspring.core.model.limits.budget import BudgetStatus
from mainspring.core.model.runs.usage import GroupBy, Usage
from mainspring.core.model.runs.view import AttemptView, RunView
from mainspring.core.model.schedules.calendar import Calendar
from mainspring.core.model.schedules.job import Job, LedgerEntry
from mainspring.core.ports.storage.access import ALL_CHANGES, AuditEntry, AuditFilter
from mainspring.core.ports.storage.catalog import (
    DeadGroup,
    JobFilter,
    JobVersion,
    Load,
    LogLine,
    Minute,
    Page,
    Pause,
    Reads,
    RunFilter,
    Standings,
    Timings,
)
from mainspring.core.ports.storage.reads import QueueBacklog


class TenantScope:
    """Adds the tenant to every query that takes one, and checks the owner of the run or job in all others."""

    def __init__(self, store: Reads, tenant: str) -> None:
        self._store = store
        self._tenant = tenant

    async def runs(self, ids: Sequence[RunId], *, payloads: bool = False) -> list[RunView | None]:
        found = await self._store.runs(ids, payloads=payloads)
        return [run if run is not None and run.tenant == self._tenant else None for run in found]

    async def attempts(self, run: RunId) -> list[AttemptView]:
        return await self._store.attempts(run) if await self._is_my_run(run) else []

    async def jobs(self, ids: Sequence[JobId]) -> list[Job | None]:
        found = await self._store.jobs(ids)
        return [job if job is not None and job.tenant == self._tenant else None for job in found]

    async def ledger(self, job: JobId, since: Instant, until: Instant, limit: int) -> list[LedgerEntry]:
        return await self._store.ledger(job, since, until, limit) if await self._is_my_job(job) else []

    async def last_ticks(self, jobs: Sequence[JobId], limit: int) -> list[list[LedgerEntry]]:
        mine = await self.jobs(jobs)
        found = await self._store.last_ticks(jobs, limit)
        return [[] if job is None else ticks for job, ticks in zip(mine, found, strict=True)]

    async def parents(self, run: RunId) -> list[RunView]:
        return await self._store.parents(run) if await self._is_my_run(run) else []

    async def parent_ids(self, run: RunId) -> list[RunId]:
        return await self._store.parent_ids(run) if await self._is_my_run(run) else []

    async def children(self, run: RunId, after: RunId | None, limit: int) -> list[RunView]:
        return await self._store.children(run, after, limit) if await self._is_my_run(run) else []

    async def depths(self, tenant: str | None = None) -> list[QueueBacklog]:
        return await self._store.depths(self._tenant) if self._is_me(tenant) else []

    async def list_runs(self, wanted: RunFilter, after: RunId | None, limit: int) -> Page[RunView]:
        if not self._is_me(wanted.tenant):
            return Page([])
        return await self._store.list_runs(msgspec.structs.replace(wanted, tenant=self._tenant), after, limit)

    async def count_runs(self, wanted: RunFilter, at_most: int) -> int:
        if not self._is_me(wanted.tenant):
            return 0
        return await self._store.count_runs(msgspec.structs.replace(wanted, tenant=self._tenant), at_most)

    async def standings(self, tenant: str | None, tag: str, since: Instant, limit: int) -> Standings:
        if not self._is_me(tenant):
            return Standings()
        return await self._store.standings(self._tenant, tag, since, limit)

    async def list_jobs(self, wanted: JobFilter, after: JobId | None, limit: int) -> Page[Job]:
        if not self._is_me(wanted.tenant):
            return Page([])
        return await self._store.list_jobs(msgspec.structs.replace(wanted, tenant=self._tenant), after, limit)

    async def versions(self, job: JobId, *, before: int | None = None, limit: int = 100) -> list[JobVersion]:
        return await self._store.versions(job, before=before, limit=limit) if await self._is_my_job(job) else []

    async def pauses(self) -> list[Pause]:
        return [pause for pause in await self._store.pauses() if pause.tenant in (None, self._tenant)]

    async def minutes(self, tenant: str | None, since: Instant, until: Instant, step: Micros = MINUTE) -> list[Minute]:
        return await self._store.minutes(self._tenant, since, until, step) if self._is_me(tenant) else []

    async def loads(self, tenant: str | None, queue: str | None, since: Instant, until: Instant) -> list[Load]:
        # Query a tenant name that cannot exist, so that sampled minutes are still returned. No name begins with a
        # space.
        return await self._store.loads(self._tenant if self._is_me(tenant) else " ", queue, since, until)

    async def timings(self, tenant: str | None, queue: str | None, since: Instant, until: Instant) -> Timings:
        mine = self._is_me(tenant)
        return await self._store.timings(self._tenant, queue, since, until) if mine else Timings({}, {})

    async def usage(
        self, tenant: str | None, since: Instant, until: Instant, by: GroupBy, *, key: str = "", limit: int = 10_000
    ) -> list[Usage]:
        return (
            await self._store.usage(self._tenant, since, until, by, key=key, limit=limit) if self._is_me(tenant) else []
        )

    async def budgets(self, tenant: str | None) -> list[BudgetStatus]:
        return await self._store.budgets(self._tenant) if self._is_me(tenant) else []

    async def dead_groups(self, wanted: RunFilter, limit: int) -> list[DeadGroup]:
        if not self._is_me(wanted.tenant):
            return []
        return await self._store.dead_groups(msgspec.structs.replace(wanted, tenant=self._tenant), limit)

    async def log(self, run: RunId, after: int, limit: int) -> list[LogLine]:
        return await self._store.log(run, after, limit) if await self._is_my_run(run) else []

    async def log_before(self, run: RunId, before: int, limit: int) -> list[LogLine]:
        return await self._store.log_before(run, before, limit) if await self._is_my_run(run) else []

    async def keys(self, tenant: str | None) -> list[ApiKey]:
        return await self._store.keys(self._tenant) if self._is_me(tenant) else []

    async def audit(
        self, tenant: str | None, wanted: AuditFilter = ALL_CHANGES, *, before: int | None = None, limit: int = 100
    ) -> list[AuditEntry]:
        if not self._is_me(tenant):
            return []
        return await self._store.audit(self._tenant, wanted, before=before, limit=limit)

    async def calendars(self, tenant: str | None) -> list[Calendar]:
        return await self._store.calendars(self._tenant) if self._is_me(tenant) else []

    async def calendar_versions(self, tenant: str, name: str, limit: int = 100) -> list[Calendar]:
        return await self._store.calendar_versions(tenant, name, limit) if self._is_me(tenant) else []

    def _is_me(self, asked: str | None) -> bool:
        return asked in (None, self._tenant)

    async def _is_my_run(self, run: RunId) -> bool:
        return (await self.runs([run]))[0] is not None

    async def _is_my_job(self, job: JobId) -> bool:
        return (await self.jobs([job]))[0] is not None
