"""The sharded store: metrics, sessions and explanations."""

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from typing import Literal

from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.cluster.placement import count_placement_groups
from mainspring.core.model.limits.limits import LimiterState
from mainspring.core.model.limits.queues import QueuePolicy
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.model.schedules.job import LedgerEntry
from mainspring.core.model.schedules.slo import SloState
from mainspring.core.ports.storage.calendars import TenantCalendars
from mainspring.core.ports.storage.catalog import LogLine, Reads, SessionView
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.sharded import merging
from mainspring.stores.sharded.reads import ShardedReadMixin, ShardedTenantScope


class ShardedCatalogMixin(ShardedReadMixin):
    async def now(self) -> Instant:
        return await self._servers.any(PostgresStore.now)

    def seen_by(self, tenant: str | None) -> Reads:
        return self if tenant is None else ShardedTenantScope(self._servers, tenant)

    def listed_by(self, tenant: str | None) -> Reads:
        return self.seen_by(tenant)

    async def due_by_minute(self, tenant: str | None, since: Instant, until: Instant) -> list[tuple[Instant, int]]:
        return merging.merge_counts(
            await self._servers.everywhere(lambda store: store.due_by_minute(tenant, since, until))
        )

    async def count_jobs(self, tenant: str, at_most: int) -> int:
        return await self._servers.at(
            self._servers.of_tenant(tenant), lambda store: store.count_jobs(tenant, at_most), lambda found: not found
        )

    async def logs_after(self, places: Mapping[RunId, int], limit: int) -> dict[RunId, list[LogLine]]:
        async def call(store: PostgresStore, mine: Sequence[RunId]) -> list[list[LogLine]]:
            found = await store.logs_after({run: places[run] for run in mine}, limit)
            return [found.get(run, []) for run in mine]

        runs = list(places)
        answers = await self._servers.spread(runs, self._servers.of_id, call)
        return {run: lines for run, lines in zip(runs, answers, strict=True) if lines}

    async def logged_runs(self, after: RunId | None, limit: int) -> list[RunId]:
        found = await self._servers.everywhere(lambda store: store.logged_runs(after, limit))
        return sorted(run for runs in found for run in runs)[:limit]

    async def forget_logs(self, runs: Collection[RunId]) -> None:
        # On every server, since a run may have moved. No other run has lines under these ids.
        await self._servers.everywhere(lambda store: store.forget_logs(runs))

    async def used_keys(self, tenant: str, keys: Collection[str]) -> set[str]:
        # On every server, since keys of runs with a placement key are on other servers than the tenant's.
        return set().union(*await self._servers.everywhere(lambda store: store.used_keys(tenant, keys)))

    async def queue_policies(self) -> dict[str, QueuePolicy]:
        return await self._servers.any(PostgresStore.queue_policies)

    async def count_ahead(self, run: RunId) -> int | None:
        """Count the runs ahead on the run's own server. Runs on other servers do not compete with it."""
        return await self._servers.at(
            self._servers.of_id(run), lambda store: store.count_ahead(run), lambda found: found is None
        )

    async def limiter(self, number: int, limit: int) -> tuple[LimiterState, list[RunId]]:
        # The number does not tell the server of the limiter; the other servers have no state for it.
        found = await self._servers.everywhere(lambda store: store.limiter(number, limit))
        return max(found, key=lambda limiter: (limiter[0] != LimiterState(), len(limiter[1])))

    async def held(self, runs: Sequence[RunId]) -> list[HeldRun | None]:
        return await self._servers.spread(runs, self._servers.of_id, PostgresStore.held, lambda found: found is None)

    async def sessions(self, kind: Literal["worker", "scheduler"]) -> list[SessionView]:
        """Return the sessions of the available servers.

        A scheduler has one session per server, a worker the same session on all of them.
        """
        found = await self._servers.those_there(lambda store: store.sessions(kind))
        views = merging.merge_by(
            (view for part in found.values() for view in part), lambda view: view.id, merging.both_sessions
        )
        return sorted(views, key=lambda view: view.id)

    async def session(self, session: SessionId) -> SessionView | None:
        found = await self._servers.those_there(lambda store: store.session(session))
        views = [view for view in found.values() if view is not None]
        return reduce(merging.both_sessions, views) if views else None

    async def find_holder(self, run: RunId) -> RunId | None:
        return await self._servers.at(self._servers.of_id(run), lambda store: store.find_holder(run))

    async def find_shard_owner(self, shard: int) -> SessionView | None:
        return await self._servers.at(
            shard % count_placement_groups(self._servers.shards), lambda store: store.find_shard_owner(shard)
        )

    async def ledger_at(self, job: JobId, at: Instant) -> LedgerEntry | None:
        return await self._servers.at(
            self._servers.of_id(job), lambda store: store.ledger_at(job, at), lambda found: found is None
        )

    async def backfilled(self, job: JobId, since: Instant, until: Instant) -> dict[Instant, RunId]:
        return await self._servers.at(self._servers.of_id(job), lambda store: store.backfilled(job, since, until))

    async def tenant_calendars(self, tenants: Collection[str]) -> list[TenantCalendars]:
        async def call(store: PostgresStore, mine: Sequence[str]) -> list[list[TenantCalendars]]:
            found = await store.tenant_calendars(mine)
            return [[almanac for almanac in found if almanac.tenant == tenant] for tenant in mine]

        answers = await self._servers.spread(list(tenants), self._servers.of_tenant, call)
        return [almanac for part in answers for almanac in part]

    async def slo_states(self, jobs: Collection[JobId]) -> dict[JobId, SloState]:
        async def call(store: PostgresStore, mine: Sequence[JobId]) -> list[SloState | None]:
            found = await store.slo_states(mine)
            return [found.get(job) for job in mine]

        ids = list(jobs)
        states = await self._servers.spread(ids, self._servers.of_id, call)
        return {job: state for job, state in zip(ids, states, strict=True) if state is not None}

    async def slos_missed(self, tenant: str | None, limit: int) -> dict[JobId, SloState]:
        parts = await self._servers.those_there(lambda store: store.slos_missed(tenant, limit))
        found = {job: state for part in parts.values() for job, state in part.items()}
        return {job: found[job] for job in sorted(found)[:limit]}
