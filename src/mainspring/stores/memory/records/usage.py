"""Memory store: usage and budgets."""

from collections import Counter
from collections.abc import Collection

import msgspec

from mainspring.core.model.base.ids import derived_id
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.limits.budget import Budget, BudgetStatus
from mainspring.core.model.runs.rank import IDLE
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.usage import GroupBy, Usage
from mainspring.core.ports.storage.access import Author
from mainspring.stores.changes import Change, what_differs
from mainspring.stores.memory.tables import Tables


class MemoryUsage:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def usage(
        self, tenant: str | None, since: Instant, until: Instant, by: GroupBy, *, key: str = "", limit: int = 10_000
    ) -> list[Usage]:
        sums: Counter[tuple[Instant, str, str, str]] = Counter()
        for (day, owner, task, job, unit), amount in self._tables.usage.items():
            of_key = {"job": job, "task": task, "tenant": owner}[by]
            if since <= day < until and tenant in (None, owner) and key in ("", of_key):
                sums[day, owner, of_key, unit] += amount  # type: ignore[assignment]
        found = sorted(sums.items())[:limit]
        return [Usage(day=d, tenant=t, key=k, unit=u, amount=amount) for (d, t, k, u), amount in found]

    async def budgets(self, tenant: str | None) -> list[BudgetStatus]:
        found = sorted(self._tables.budgets.items())
        return [status for (owner, _), status in found if tenant in (None, owner)]

    async def put_budget(self, budget: Budget, author: Author) -> BudgetStatus:
        budget.check()
        tables = self._tables
        with tables.transaction() as now:
            key = (budget.tenant, budget.name)
            known = tables.budgets.get(key)
            identifier = derived_id(now, 0, *key) if known is None else known.id
            status = BudgetStatus(budget=budget, id=identifier)
            if known is not None:
                status = msgspec.structs.replace(known, budget=budget)
            tables.budgets[key] = status
            before = {} if known is None else msgspec.to_builtins(known.budget)
            if (differs := what_differs(before, msgspec.to_builtins(budget))) is not None:
                tables.audit("budgets.put", author, [Change(budget.tenant, budget.name, *differs)])
            return status

    async def drop_budget(self, tenant: str, name: str, author: Author) -> bool:
        with self._tables.transaction():
            known = self._tables.budgets.pop((tenant, name), None)
            if known is not None:
                self._tables.audit("budgets.drop", author, [Change(tenant, name)])
            return known is not None

    async def spent(self, status: BudgetStatus, since: Instant) -> float:
        budget = status.budget
        jobs = self._tables.job_names
        wanted = jobs.get((budget.tenant, budget.target), "-") if budget.of == "job" else budget.target
        return sum(
            amount
            for (day, tenant, task, job, unit), amount in self._tables.usage.items()
            if day >= since
            and (tenant, unit) == (budget.tenant, budget.unit)
            and (budget.of == "tenant" or wanted == (job if budget.of == "job" else task))
        )

    async def mark_budget(self, before: BudgetStatus, after: BudgetStatus, events: Collection[str]) -> bool:
        tables = self._tables
        with tables.transaction():
            key = (before.budget.tenant, before.budget.name)
            known = tables.budgets.get(key)
            if known is None or (known.state, known.since) != (before.state, before.since):
                return False
            tables.budgets[key] = msgspec.structs.replace(
                known, state=after.state, since=after.since, spent=after.spent, held=after.held
            )
            for event in events:
                tables.record_event(event, before.budget.tenant, before.id)
            return True

    async def lower(self, budget: Budget, limit: int) -> int:
        tables = self._tables
        with tables.transaction():
            job = tables.job_names.get((budget.tenant, budget.target))
            lowered = 0
            for run in list(tables.runs.values()):
                mine = run.tenant == budget.tenant and (
                    budget.of == "tenant" or (run.job_id == job if budget.of == "job" else run.task == budget.target)
                )
                if lowered < limit and mine and run.state is RunState.QUEUED and run.priority < IDLE:
                    lowered += 1
                    tables.lower_priority(run)
            return lowered
