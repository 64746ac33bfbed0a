"""The port for usage and budgets. Nothing here is on a hot path."""

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
        """Return sums by day, tenant, key and unit, of days that begin in ``since <= day < until``, oldest first.

        With ``key``, only that key. The sums are rolled up by ``tidy``: runs that ended in the last 15 s may be
        missing.
        """
        ...

    async def budgets(self, tenant: str | None) -> list[BudgetStatus]:
        """Return the budgets by tenant and name."""
        ...


class BudgetStore(UsageReads, Protocol):
    async def put_budget(self, budget: Budget, author: Author) -> BudgetStatus:
        """Declare a budget. An existing one of this tenant and name is replaced, and keeps its status."""
        ...

    async def drop_budget(self, tenant: str, name: str, author: Author) -> bool:
        """Delete a budget, and return whether it existed."""
        ...

    async def spent(self, status: BudgetStatus, since: Instant) -> float:
        """Return how much of a budget's unit was used on the days from ``since`` on."""
        ...

    async def mark_budget(self, before: BudgetStatus, after: BudgetStatus, events: Collection[str]) -> bool:
        """Store a budget's new status with these events, if its status is still ``before``.

        If several processes find the same change, only one reports it.
        """
        ...

    async def lower(self, budget: Budget, limit: int) -> int:
        """Give queued runs of a budget the lowest priority, behind all others, and return how many were changed."""
        ...
