"""The sharded store: submits and cancels each run and job on the server of its placement group."""

from collections.abc import Collection, Sequence

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.job import JobState, NewJob
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.answers import PutResult, SubmitResult
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.sharded.mixin import ShardedMixin


class ShardedSubmitMixin(ShardedMixin):
    def find_server(self, run: NewRun) -> int:
        """Return the number of the server that owns a run; -1 if unknown. Callers split large batches by it."""
        home = self._servers.homes.get(self._servers.of_id(run.id))
        return -1 if home is None else home.number

    async def submit(self, runs: Sequence[NewRun]) -> list[SubmitResult]:
        placed = False
        for run in runs:
            self._check_group(run)
            placed = placed or bool(run.placement)
        if placed:
            runs = [scoped(run) if run.placement else run for run in runs]
        return await self._servers.spread(runs, lambda run: self._servers.of_id(run.id), PostgresStore.submit)

    def _check_group(self, run: NewRun) -> None:
        group = self._servers.of_id(run.id)
        beside = run.replay_of is not None and self._servers.of_id(run.replay_of) == group
        if group != self._servers.of_tenant(run.tenant, run.placement) and not beside:
            owner = f"tenant {run.tenant}" + (f", placement {run.placement}" if run.placement else "")
            raise Invalid(
                "id",
                f"{run.id} belongs to placement group {group}, which is not that of {owner}",
                "let the store make it",
            )
        if run.after is not None:
            for parent in run.after.parents:
                if self._servers.of_id(parent) != group:
                    raise Invalid(
                        "dependsOn",
                        f"{parent} belongs to another placement group, which may be on another server",
                        "runs of the same tenant and placement",
                    )

    async def put_jobs(self, jobs: Sequence[NewJob]) -> list[PutResult]:
        for job in jobs:
            self._check_job(job)
        return await self._servers.spread(jobs, lambda job: self._servers.of_id(job.id), PostgresStore.put_jobs)

    def _check_job(self, job: NewJob) -> None:
        if self._servers.of_id(job.id) != self._servers.of_tenant(job.tenant):
            raise Invalid(
                "id", f"{job.id} does not belong to the placement group of tenant {job.tenant}", "let the store make it"
            )

    async def set_jobs_state(
        self, jobs: Collection[JobId], state: JobState, author: Author | None = None, resume_at: Instant | None = None
    ) -> dict[JobId, JobState]:
        async def call(store: PostgresStore, ids: Sequence[JobId]) -> list[JobState | None]:
            found = await store.set_jobs_state(ids, state, author, resume_at)
            return [found.get(job) for job in ids]

        ids = list(dict.fromkeys(jobs))
        states = await self._servers.spread(ids, self._servers.of_id, call, lambda found: found is None)
        return {job: found for job, found in zip(ids, states, strict=True) if found is not None}

    async def cancel(self, runs: Collection[RunId], author: Author | None = None) -> dict[RunId, RunState]:
        async def call(store: PostgresStore, ids: Sequence[RunId]) -> list[RunState | None]:
            found = await store.cancel(ids, author)
            return [found.get(run) for run in ids]

        ids = list(dict.fromkeys(runs))
        states = await self._servers.spread(ids, self._servers.of_id, call, lambda found: found is None)
        return {run: found for run, found in zip(ids, states, strict=True) if found is not None}

    async def job_named(self, tenant: str, name: str) -> JobId | None:
        return await self._servers.at(
            self._servers.of_tenant(tenant), lambda store: store.job_named(tenant, name), lambda found: found is None
        )


def scoped(run: NewRun) -> NewRun:
    """Prefix the keys of a run with its placement.

    Other placements of the tenant may be on the same server, or move there later.
    """
    if run.policy.breaker is not None:
        raise Invalid("breaker", "is of a task and all its tenant's runs", "without a placement")
    idempotency, unique, policy = run.idempotency, run.unique, run.policy
    if idempotency is not None:
        idempotency = msgspec.structs.replace(idempotency, key=f"{run.placement}\x1f{idempotency.key}")
    if unique is not None:
        unique = msgspec.structs.replace(unique, key=f"{run.placement}\x1f{unique.key}")
    if policy.ordering_key or policy.limits:
        # Ordering keys and limits are displayed as they are stored.
        limits = tuple(msgspec.structs.replace(limit, key=f"{run.placement}/{limit.key}") for limit in policy.limits)
        key = policy.ordering_key and f"{run.placement}/{policy.ordering_key}"
        policy = msgspec.structs.replace(policy, ordering_key=key, limits=limits)
    return msgspec.structs.replace(run, idempotency=idempotency, unique=unique, policy=policy)
