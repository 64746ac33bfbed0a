"""Remaining quotas of tenants, for services that create runs in the background."""

from collections import Counter
from typing import Protocol

from mainspring.core.model.access.access import Quotas, Tenant
from mainspring.core.model.base.instant import MINUTE, Micros
from mainspring.core.model.runs.run import RunState
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.catalog import Lists, RunFilter

_NO_QUOTAS = Quotas()
_UNLIMITED = 1_000_000_000
_QUEUED = frozenset({RunState.QUEUED})


class QuotaStore(Lists, Protocol):
    async def tenants(self) -> list[Tenant]:
        """List all tenants, as ``Access.tenants`` does."""
        ...


class QuotaBudget:
    """Remaining quotas: as read by ``refresh``, less what was taken since.

    Each process counts submissions per minute by itself, as the API does.
    """

    def __init__(self, store: QuotaStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._quotas: dict[str, Quotas] = {}
        self._queued: dict[str, int] = {}
        self._consumed: Counter[str] = Counter()
        #: How many runs a tenant may still submit, and at which time that was so.
        self._submits: dict[str, tuple[float, Micros]] = {}

    async def refresh(self) -> None:
        self._quotas = {tenant.name: tenant.quotas for tenant in await self._store.tenants()}
        self._queued.clear()
        self._consumed.clear()

    def get_quotas(self, tenant: str) -> Quotas:
        return self._quotas.get(tenant, _NO_QUOTAS)

    async def count_left(self, tenant: str) -> int:
        """Return how many more runs the tenant may submit now."""
        quotas = self.get_quotas(tenant)
        left = _UNLIMITED
        if quotas.queued is not None:
            if tenant not in self._queued:
                wanted = RunFilter(tenant=tenant, states=_QUEUED)
                self._queued[tenant] = await self._store.count_runs(wanted, quotas.queued)
            left = quotas.queued - self._queued[tenant] - self._consumed[tenant]
        if quotas.submits_per_minute is not None:
            left = min(left, int(self._compute_level(tenant, quotas.submits_per_minute)))
        return max(left, 0)

    def consume(self, tenant: str) -> None:
        self._consumed[tenant] += 1
        limit = self.get_quotas(tenant).submits_per_minute
        if limit is not None:
            self._submits[tenant] = (self._compute_level(tenant, limit) - 1, self._clock.monotonic())

    def _compute_level(self, tenant: str, limit: int) -> float:
        now = self._clock.monotonic()
        level, at = self._submits.get(tenant, (float(limit), now))
        return min(float(limit), level + (now - at) / MINUTE * limit)
