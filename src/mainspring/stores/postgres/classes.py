"""Classes of retention: which one a run is of, and that there is room for it.

The class is part of the number of the bucket that holds a run's body, which goes wherever the run goes. So no live row
has a column for it, and no move of a run knows of it: only what writes history does.
"""

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from mainspring.core.model.base.instant import DAY, Instant
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.stores.postgres.part import Part
from mainspring.stores.postgres.partitions import Partitions
from mainspring.stores.postgres.rows import class_number

#: Seconds after which a process asks again which tenants have a class of their own.
_ASK_AGAIN = 1.0


class Classes(Part):
    _partitions: Partitions
    #: The classes of tenants that have one, and when they were asked for.
    _classes_of: Mapping[str, str] = MappingProxyType({})
    _classes_at: float = -_ASK_AGAIN

    async def _classed(self, runs: Sequence[NewRun]) -> Sequence[NewRun]:
        """The same, with the class of their tenant where they choose none; and there is room for each class."""
        await self._mind_classes()
        if self._classes_of:
            runs = [
                run
                if run.policy.retention or run.tenant not in self._classes_of
                else msgspec.structs.replace(run, policy=self._classed_policy(run.policy, run.tenant))
                for run in runs
            ]
        numbers = {class_number(run.policy) for run in runs if run.policy.retention} - {0}
        if numbers:
            await self._make_classes(numbers)
        return runs

    async def _make_classes(self, numbers: set[int]) -> None:
        await self._partitions.make_classes(numbers, await self._today())

    async def _mind_classes(self) -> None:
        """Which tenants have a class. One that is new counts within a second."""
        now = asyncio.get_running_loop().time()
        if now - self._classes_at >= _ASK_AGAIN:
            self._classes_at = now
            self._classes_of = {row["name"]: row["class"] for row in await self._db.fetch("tenant_classes")}

    def _classed_policy(self, policy: RunPolicy, tenant: str) -> RunPolicy:
        name = policy.retention or self._classes_of.get(tenant, "")
        return policy if name == policy.retention else msgspec.structs.replace(policy, retention=name)

    async def _today(self) -> int:
        rows = await self._db.fetch("now")
        now: Instant = rows[0][0]
        return now // DAY
