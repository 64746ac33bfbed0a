"""The sharded store: reads. A read by id asks one server; lists are merged from all servers."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

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
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.work.placement_groups import MOST_SERVERS
from mainspring.stores.sharded import merging
from mainspring.stores.sharded.mixin import ShardedMixin
from mainspring.stores.sharded.server import Server
from mainspring.stores.sharded.servers import ServerSet

T = TypeVar("T")
#: Changes that are applied on every server: the audit lists each once.
_TOLD_TO_ALL = frozenset(
    {"queues.pause", "queues.resume", "queues.set", "tenants.put", "keys.put", "keys.revoke", "workers.drain"}
)


class ShardedReadMixin(ShardedMixin):
    #: The tenant whose objects are visible; None: all tenants.
    _bound_to: str | None = None

    def _view(self, store: PostgresStore) -> Reads:
        return store.seen_by(self._bound_to)

    async def _by_id(self, identifier: str, call: Callable[[Reads], Awaitable[list[T]]]) -> list[T]:
        return await self._servers.at(
            self._servers.of_id(identifier), lambda store: call(self._view(store)), lambda found: not found
        )

    async def _merged(self, call: Callable[[Reads], Awaitable[T]]) -> list[T]:
        return await self._servers.everywhere(lambda store: call(self._view(store)))

    async def _joined(self, call: Callable[[Reads], Awaitable[list[T]]]) -> list[T]:
        return [item for part in await self._merged(call) for item in part]

    async def runs(self, ids: Sequence[RunId], *, payloads: bool = False) -> list[RunView | None]:
        async def call(store: PostgresStore, mine: Sequence[RunId]) -> list[RunView | None]:
            return await self._view(store).runs(mine, payloads=payloads)

        return await self._servers.spread(ids, self._servers.of_id, call, lambda found: found is None)

    async def jobs(self, ids: Sequence[JobId]) -> list[Job | None]:
        async def call(store: PostgresStore, mine: Sequence[JobId]) -> list[Job | None]:
            return await self._view(store).jobs(mine)

        return await self._servers.spread(ids, self._servers.of_id, call, lambda found: found is None)

    async def attempts(self, run: RunId) -> list[AttemptView]:
        return await self._by_id(run, lambda store: store.attempts(run))

    async def ledger(self, job: JobId, since: Instant, until: Instant, limit: int) -> list[LedgerEntry]:
        return await self._by_id(job, lambda store: store.ledger(job, since, until, limit))

    async def last_ticks(self, jobs: Sequence[JobId], limit: int) -> list[list[LedgerEntry]]:
        async def call(store: PostgresStore, mine: Sequence[JobId]) -> list[list[LedgerEntry]]:
            return await self._view(store).last_ticks(mine, limit)

        return await self._servers.spread(jobs, self._servers.of_id, call, lambda found: not found)

    async def parents(self, run: RunId) -> list[RunView]:
        return await self._by_id(run, lambda store: store.parents(run))

    async def parent_ids(self, run: RunId) -> list[RunId]:
        return await self._by_id(run, lambda store: store.parent_ids(run))

    async def children(self, run: RunId, after: RunId | None, limit: int) -> list[RunView]:
        return await self._by_id(run, lambda store: store.children(run, after, limit))

    async def versions(self, job: JobId, *, before: int | None = None, limit: int = 100) -> list[JobVersion]:
        return await self._by_id(job, lambda store: store.versions(job, before=before, limit=limit))

    async def log(self, run: RunId, after: int, limit: int) -> list[LogLine]:
        return await self._by_id(run, lambda store: store.log(run, after, limit))

    async def log_before(self, run: RunId, before: int, limit: int) -> list[LogLine]:
        return await self._by_id(run, lambda store: store.log_before(run, before, limit))

    async def depths(self, tenant: str | None = None) -> list[QueueBacklog]:
        return merging.merge_depths(await self._joined(lambda store: store.depths(tenant)))

    async def list_runs(self, wanted: RunFilter, after: RunId | None, limit: int) -> Page[RunView]:
        return merging.merge_pages(await self._merged(lambda store: store.list_runs(wanted, after, limit)), limit)

    async def count_runs(self, wanted: RunFilter, at_most: int) -> int:
        return min(at_most, sum(await self._merged(lambda store: store.count_runs(wanted, at_most))))

    async def standings(self, tenant: str | None, tag: str, since: Instant, limit: int) -> Standings:
        found = await self._merged(lambda store: store.standings(tenant, tag, since, limit))
        return merging.merge_standings(found, limit)

    async def list_jobs(self, wanted: JobFilter, after: JobId | None, limit: int) -> Page[Job]:
        return merging.merge_pages(await self._merged(lambda store: store.list_jobs(wanted, after, limit)), limit)

    async def pauses(self) -> list[Pause]:
        return await self._servers.any(lambda store: self._view(store).pauses())

    async def minutes(self, tenant: str | None, since: Instant, until: Instant, step: Micros = MINUTE) -> list[Minute]:
        return merging.merge_minutes(await self._joined(lambda store: store.minutes(tenant, since, until, step)))

    async def loads(self, tenant: str | None, queue: str | None, since: Instant, until: Instant) -> list[Load]:
        return merging.merge_loads(await self._joined(lambda store: store.loads(tenant, queue, since, until)))

    async def timings(self, tenant: str | None, queue: str | None, since: Instant, until: Instant) -> Timings:
        return merging.merge_timings(await self._merged(lambda store: store.timings(tenant, queue, since, until)))

    async def dead_groups(self, wanted: RunFilter, limit: int) -> list[DeadGroup]:
        return merging.merge_groups(await self._joined(lambda store: store.dead_groups(wanted, limit)), limit)

    async def keys(self, tenant: str | None) -> list[ApiKey]:
        return await self._servers.any(lambda store: self._view(store).keys(tenant))

    async def audit(
        self, tenant: str | None, wanted: AuditFilter = ALL_CHANGES, *, before: int | None = None, limit: int = 100
    ) -> list[AuditEntry]:
        """Return the merged audit.

        A position is the server's position times ``MOST_SERVERS``, plus the number of the server.
        """

        async def of(server: Server) -> list[AuditEntry]:
            number = server.number
            local = None if before is None else -(-(before - number) // MOST_SERVERS)
            entries = await server.ask(lambda store: self._view(store).audit(tenant, wanted, before=local, limit=limit))
            return [
                msgspec.structs.replace(entry, position=entry.position * MOST_SERVERS + number)
                for entry in entries
                if server is self._servers.all[0] or entry.action not in _TOLD_TO_ALL
            ]

        parts = await asyncio.gather(*(of(server) for server in self._servers.all))
        return sorted((entry for part in parts for entry in part), key=lambda entry: entry.position, reverse=True)[
            :limit
        ]

    async def usage(
        self, tenant: str | None, since: Instant, until: Instant, by: GroupBy, *, key: str = "", limit: int = 10_000
    ) -> list[Usage]:
        found = await self._joined(lambda store: store.usage(tenant, since, until, by, key=key, limit=limit))
        return merging.merge_usage(found, limit)

    async def budgets(self, tenant: str | None) -> list[BudgetStatus]:
        found = await self._joined(lambda store: store.budgets(tenant))
        return sorted(found, key=lambda status: (status.budget.tenant, status.budget.name))

    async def calendars(self, tenant: str | None) -> list[Calendar]:
        found = await self._joined(lambda store: store.calendars(tenant))
        return sorted(found, key=lambda calendar: (calendar.tenant, calendar.name))

    async def calendar_versions(self, tenant: str, name: str, limit: int = 100) -> list[Calendar]:
        return await self._servers.at(
            self._servers.of_tenant(tenant),
            lambda store: self._view(store).calendar_versions(tenant, name, limit),
            lambda found: not found,
        )


class ShardedTenantScope(ShardedReadMixin):
    """The sharded store, limited to one tenant."""

    def __init__(self, servers: ServerSet, tenant: str) -> None:
        self._servers = servers
        self._bound_to = tenant
