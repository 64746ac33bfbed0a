"""What work has cost, and what it may cost. Nothing here is on a hot path."""

from collections.abc import Collection
from typing import Protocol

from mainspring.core.model.base.instant import Instant
from mainspring.core.model.limits.budget import Budget, BudgetStatus
from mainspring.core.model.runs.usage import GroupBy, Usage
from mainspring.core.ports.storage.access import Author


class UsageReads(Protocol):
    async def usage(
        self, tenant: str | None, since: Instant, until: Instant, by: GroupBy, *, key: str = "", limit: int = 10_000
    ) -> list[Usage]:
        """Sums by day, tenant, key and unit, of days that begin in ``since <= day < until``, oldest first; of one key
        if one is given. As rolled up by ``tidy``: what ended in the last quarter of a minute may be missing."""
        ...

    async def budgets(self, tenant: str | None) -> list[BudgetStatus]:
        """By tenant and name."""
        ...


class Budgeting(UsageReads, Protocol):
    async def put_budget(self, budget: Budget, author: Author) -> BudgetStatus:
        """Declare a budget; one of this tenant and name is replaced, and keeps how it stands."""
        ...

    async def drop_budget(self, tenant: str, name: str, author: Author) -> bool:
        """Forget one; whether it was there."""
        ...

    async def spent(self, status: BudgetStatus, since: Instant) -> float:
        """What was used of a budget's unit on the days from ``since`` on."""
        ...

    async def mark_budget(self, before: BudgetStatus, after: BudgetStatus, events: Collection[str]) -> bool:
        """Write how a budget stands, with these events, if it stands as it did ``before``: of several who found the
        same, one tells it."""
        ...

    async def lower(self, budget: Budget, limit: int) -> int:
        """Put queued runs that a budget is for behind all others, by the lowest priority; how many were."""
        ...
