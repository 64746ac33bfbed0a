"""The usage of work, and budgets for it."""

from collections.abc import Collection

import asyncpg
import msgspec

from mainspring.core.model.base.ids import JobId, derived_id, is_id
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.limits.budget import Budget, BudgetStatus
from mainspring.core.model.runs.usage import GroupBy, Usage
from mainspring.core.ports.storage.access import Author
from mainspring.stores.changes import Change, what_differs
from mainspring.stores.postgres.codes import NameKind
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.mixin import PostgresMixin

#: The job id in the usage of one-off runs.
NO_JOB = "0" * 32
#: A number that nothing has.
_NOBODY = -1


class UsageReadMixin(PostgresMixin):
    async def usage(
        self, tenant: str | None, since: Instant, until: Instant, by: GroupBy, *, key: str = "", limit: int = 10_000
    ) -> list[Usage]:
        wanted = await self._key(by, key) if key else None
        if key and wanted is None:
            return []
        rows = await self._db.fetch(
            f"usage_by_{by}", tenant=await self._scope_number(tenant), since=since, until=until, key=wanted, limit=limit
        )
        numbers = {row["tenant"] for row in rows} | ({row["key"] for row in rows} - {0} if by != "job" else set())
        await self._names.load_names(numbers)
        found = [
            Usage(
                day=row["day"],
                tenant=self._names.get_name(row["tenant"]),
                key=self._shown(row["key"]),
                unit=row["unit"],
                amount=row["amount"],
            )
            for row in rows
        ]
        return sorted(found, key=lambda item: (item.day, item.tenant, item.key, item.unit))

    async def budgets(self, tenant: str | None) -> list[BudgetStatus]:
        rows = await self._db.fetch("budgets", tenant=await self._scope_number(tenant))
        found = [build_budget_status(row) for row in rows]
        return sorted(found, key=lambda status: (status.budget.tenant, status.budget.name))

    async def _key(self, by: GroupBy, key: str) -> str | int | None:
        if by == "job":
            return key if is_id(key) else None
        return await self._names.find_number(NameKind.TASK if by == "task" else NameKind.TENANT, key)

    def _shown(self, key: str | int) -> str:
        if isinstance(key, str):
            return "" if key == NO_JOB else key
        return self._names.get_name(key) if key else ""


class BudgetMixin(UsageReadMixin):
    async def put_budget(self, budget: Budget, author: Author) -> BudgetStatus:
        budget.check()
        await self._names.assign_numbers([(NameKind.TENANT, budget.tenant)])
        tenant = self._names.get_number(NameKind.TENANT, budget.tenant)

        async def work(connection: Connection) -> BudgetStatus:
            known = await connection.fetch(*self._db.sql["budget"].bind(tenant=tenant, name=budget.name))
            now = await connection.fetchval(*self._db.sql["now"].bind())
            identifier = derived_id(now, 0, budget.tenant, budget.name)
            [row] = await connection.fetch(
                *self._db.sql["put_budget"].bind(
                    budget=identifier, tenant=tenant, name=budget.name, spec=msgspec.json.encode(budget)
                )
            )
            before = msgspec.to_builtins(build_budget_status(known[0]).budget) if known else {}
            if (differs := what_differs(before, msgspec.to_builtins(budget))) is not None:
                await self._audit(connection, "budgets.put", author, [Change(budget.tenant, budget.name, *differs)])
            return build_budget_status(row)

        return await self._db.transaction(work)

    async def drop_budget(self, tenant: str, name: str, author: Author) -> bool:
        number = await self._names.find_number(NameKind.TENANT, tenant) or 0

        async def work(connection: Connection) -> bool:
            gone = await connection.fetch(*self._db.sql["drop_budget"].bind(tenant=number, name=name))
            await self._audit(connection, "budgets.drop", author, [Change(tenant, name) for _ in gone])
            return bool(gone)

        return await self._db.transaction(work)

    async def spent(self, status: BudgetStatus, since: Instant) -> float:
        budget = status.budget
        tenant, task, job = await self._of(budget)
        [row] = await self._db.fetch("spent", tenant=tenant, since=since, unit=budget.unit, task=task, job=job)
        spent: float = row["spent"]
        return spent

    async def mark_budget(self, before: BudgetStatus, after: BudgetStatus, events: Collection[str]) -> bool:
        async def work(connection: Connection) -> bool:
            marked = await connection.fetch(
                *self._db.sql["mark_budget"].bind(
                    budget=before.id,
                    old_state=before.state,
                    old_since=before.since,
                    state=after.state,
                    since=after.since,
                    spent=after.spent,
                    held=after.held,
                ),
            )
            if marked and events:
                await connection.execute(
                    *self._db.sql["emit_budget_events"].bind(
                        kinds=list(events), tenant=marked[0]["tenant"], budget=before.id
                    )
                )
            return bool(marked)

        return await self._db.transaction(work)

    async def lower(self, budget: Budget, limit: int) -> int:
        tenant, task, job = await self._of(budget)
        return len(await self._db.fetch("lower_priority", tenant=tenant, task=task, job=job, limit=limit))

    async def _of(self, budget: Budget) -> tuple[int, int | None, str | None]:
        """Return the tenant's number, and the task's number or the job's id if the budget is for one.

        For a name that does not exist the number is one that has used nothing.
        """
        tenant = await self._names.find_number(NameKind.TENANT, budget.tenant) or _NOBODY
        task = await self._names.find_number(NameKind.TASK, budget.target) or _NOBODY if budget.of == "task" else None
        job: JobId | None = None
        if budget.of == "job":
            rows = await self._db.fetch(
                "job_named", kind=int(NameKind.TENANT), tenant=budget.tenant, name=budget.target
            )
            job, tenant = (JobId(rows[0]["id"]), tenant) if rows else (None, _NOBODY)
        return tenant, task, job


def build_budget_status(row: asyncpg.Record) -> BudgetStatus:
    budget = msgspec.json.decode(row["spec"], type=Budget)
    return BudgetStatus(
        budget=budget, id=row["id"], state=row["state"], since=row["since"], spent=row["spent"], held=row["held"]
    )
