"""Contract tests at a boundary: one microsecond before it, exactly at it, and one microsecond after it."""

from collections.abc import Sequence

import msgspec
import pytest

from mainspring.core.model.access.access import Quotas, Tenant
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import HOUR
from mainspring.core.model.limits.queues import QueuePolicy
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.ports.storage.access import Author
from mainspring.core.store import Demand
from tests.support.builders import a_limit
from tests.support.sharded_harness import ShardedHarness
from tests.support.store_harness import Harness

ADA = Author("ada")

#: Run a test three times. ``offset`` is the distance of the store's clock from the boundary, in microseconds.
around_the_boundary = pytest.mark.parametrize("offset", [-1, 0, 1], ids=["before", "at", "after"])

#: The ways a store looks for runs to start. PostgreSQL and SQLite have a statement for each.
CLAIM_PATHS = ("plain", "hinted", "labels", "period", "quota", "acme", "tenant", "policy", "fair")
on_every_claim_path = pytest.mark.parametrize("path", CLAIM_PATHS)


def skip_on_a_sharded_store(
    harness: Harness, why: str = "a sharded store does not count a queue over all tenants"
) -> None:
    """Skip a test of a rule that a sharded store refuses, or applies to each of its servers."""
    if isinstance(harness, ShardedHarness):
        pytest.skip(why)


class ClaimPath:
    """A worker, runs it may start, and a claim that takes one certain statement of the store."""

    def __init__(self, harness: Harness, path: str) -> None:
        self._harness = harness
        self._path = path

    async def prepare(self) -> None:
        """Write the rules that make the store take this path."""
        store = self._harness.store
        if self._path == "quota":
            await store.put_tenant(Tenant(name="default", quotas=Quotas(running=100)), ADA)
        elif self._path == "acme":
            # SQLite looks for runs of the default tenant in another way than for those of others.
            await store.put_tenant(Tenant(name="acme", quotas=Quotas(running=100)), ADA)
        elif self._path == "policy":
            skip_on_a_sharded_store(self._harness)
            await store.put_queue_policy("default", QueuePolicy(concurrency=100), ADA)
        elif self._path == "fair":
            await store.put_queue_policy("default", QueuePolicy(fair=True), ADA)

    def adapt(self, run: NewRun) -> NewRun:
        """Give a run what this path needs."""
        if self._path == "acme":
            return msgspec.structs.replace(run, tenant="acme")
        if self._path == "labels":
            return msgspec.structs.replace(run, policy=msgspec.structs.replace(run.policy, requires=("gpu",)))
        if self._path == "period":
            limits = (a_limit("path", 100, HOUR),)
            return msgspec.structs.replace(run, policy=msgspec.structs.replace(run.policy, limits=limits))
        return run

    async def worker(self, ttl: int) -> SessionId:
        return await self._harness.worker(ttl, labels=("gpu",) if self._path == "labels" else ())

    async def claim(self, worker: SessionId, runs: Sequence[NewRun], limit: int = 100) -> list[HeldRun]:
        match self._path:
            case "hinted":
                demand = Demand("default", limit, runs=tuple(run.id for run in runs))
            case "tenant":
                demand = Demand("default", limit, tenant="default")
            case _:
                demand = Demand("default", limit)
        return await self._harness.claim_from(worker, demand)


async def prepare_claim_path(harness: Harness, path: str) -> ClaimPath:
    """Return the named path, ready to be claimed by."""
    prepared = ClaimPath(harness, path)
    await prepared.prepare()
    return prepared
