"""Retention classes: assign each run its class, and make the partitions of the class.

The class is part of the number of the bucket that holds a run's body, and the bucket moves with the run. So live rows
need no class column, and code that moves runs ignores the class. Only code that writes history reads it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from mainspring.core.model.base.instant import DAY, Instant
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.stores.postgres.mixin import PostgresMixin
from mainspring.stores.postgres.partitions import Partitions
from mainspring.stores.postgres.rows import class_number

#: Seconds after which a process reads again which tenants have a retention class.
_ASK_AGAIN = 1.0


class RetentionClassMixin(PostgresMixin):
    _partitions: Partitions
    #: Tenant name → its retention class, and when that was last read.
    _classes_of: Mapping[str, str] = MappingProxyType({})
    _classes_at: float = -_ASK_AGAIN

    async def _assign_classes(self, runs: Sequence[NewRun]) -> Sequence[NewRun]:
        """Return the runs with the retention class of their tenant where they choose none.

        The partitions of every class are made before.
        """
        await self._refresh_classes()
        if self._classes_of:
            runs = [
                run
                if run.policy.retention or run.tenant not in self._classes_of
                else msgspec.structs.replace(run, policy=self._assign_class(run.policy, run.tenant))
                for run in runs
            ]
        numbers = {class_number(run.policy) for run in runs if run.policy.retention} - {0}
        if numbers:
            await self._make_classes(numbers)
        return runs

    async def _make_classes(self, numbers: set[int]) -> None:
        await self._partitions.make_classes(numbers, await self._today())

    async def _refresh_classes(self) -> None:
        """Refresh the tenants' retention classes. A new one takes effect within a second."""
        now = asyncio.get_running_loop().time()
        if now - self._classes_at >= _ASK_AGAIN:
            self._classes_at = now
            self._classes_of = {row["name"]: row["class"] for row in await self._db.fetch("tenant_classes")}

    def _assign_class(self, policy: RunPolicy, tenant: str) -> RunPolicy:
        name = policy.retention or self._classes_of.get(tenant, "")
        return policy if name == policy.retention else msgspec.structs.replace(policy, retention=name)

    async def _today(self) -> int:
        rows = await self._db.fetch("now")
        now: Instant = rows[0][0]
        return now // DAY
