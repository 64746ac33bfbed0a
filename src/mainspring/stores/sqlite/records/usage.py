"""SQLite: usage and budgets."""

from collections.abc import Collection

import apsw
import msgspec

from mainspring.core.model.base.ids import derived_id
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.limits.budget import Budget, BudgetStatus
from mainspring.core.model.runs.usage import GroupBy, Usage
from mainspring.core.ports.storage.access import Author
from mainspring.stores.changes import Change, what_differs
from mainspring.stores.sqlite.base import SqliteBase
from mainspring.stores.sqlite.records.audit import write_audit

_COLUMNS = {"job": "job_id", "task": "task", "tenant": "tenant"}
_SELECT_STATUS = "SELECT spec, id, state, since, spent, held FROM budget"


class SqliteUsage(SqliteBase):
    async def usage(
        self, tenant: str | None, since: Instant, until: Instant, by: GroupBy, *, key: str = "", limit: int = 10_000
    ) -> list[Usage]:
        text = f"""
            SELECT day, tenant, {_COLUMNS[by]}, unit, sum(amount) FROM usage
            WHERE day >= ?1 AND day < ?2 AND (?3 IS NULL OR tenant = ?3) AND ?4 IN ('', {_COLUMNS[by]})
            GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4 LIMIT ?5
        """  # noqa: S608
        values = (since, until, tenant, key, limit)
        return await self._read(
            lambda connection: [
                Usage(day=day, tenant=owner, key=of, unit=unit, amount=amount)
                for day, owner, of, unit, amount in connection.execute(text, values)
            ]
        )

    async def budgets(self, tenant: str | None) -> list[BudgetStatus]:
        text = f"{_SELECT_STATUS} WHERE ?1 IS NULL OR tenant = ?1 ORDER BY tenant, name"
        return await self._read(lambda connection: [_build_status(row) for row in connection.execute(text, (tenant,))])

    async def put_budget(self, budget: Budget, author: Author) -> BudgetStatus:
        budget.check()
        key = (budget.tenant, budget.name)

        def work(connection: apsw.Connection, now: Instant) -> BudgetStatus:
            known = _find_budget(connection, *key)
            connection.execute(
                "INSERT INTO budget (id, tenant, name, spec) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (tenant, name) DO UPDATE SET spec = excluded.spec",
                (derived_id(now, 0, *key), *key, msgspec.json.encode(budget).decode()),
            )
            before = {} if known is None else msgspec.to_builtins(known.budget)
            if (differs := what_differs(before, msgspec.to_builtins(budget))) is not None:
                write_audit(connection, now, "budgets.put", author, [Change(*key, *differs)])
            found = _find_budget(connection, *key)
            assert found is not None
            return found

        return await self._write(work)

    async def drop_budget(self, tenant: str, name: str, author: Author) -> bool:
        def work(connection: apsw.Connection, now: Instant) -> bool:
            known = _find_budget(connection, tenant, name)
            if known is not None:
                connection.execute("DELETE FROM budget WHERE tenant = ? AND name = ?", (tenant, name))
                write_audit(connection, now, "budgets.drop", author, [Change(tenant, name)])
            return known is not None

        return await self._write(work)

    async def spent(self, status: BudgetStatus, since: Instant) -> float:
        condition, values = _build_condition(status.budget)
        text = f"SELECT coalesce(sum(u.amount), 0.0) FROM usage u WHERE u.day >= ? AND u.unit = ? AND {condition}"  # noqa: S608
        arguments = (since, status.budget.unit, *values)
        return await self._read(lambda connection: float(connection.execute(text, arguments).get))

    async def mark_budget(self, before: BudgetStatus, after: BudgetStatus, events: Collection[str]) -> bool:
        def work(connection: apsw.Connection, now: Instant) -> bool:
            connection.execute(
                "UPDATE budget SET state = ?, since = ?, spent = ?, held = ? WHERE id = ? AND state = ? AND since = ?",
                (after.state, after.since, after.spent, int(after.held), before.id, before.state, before.since),
            )
            if not connection.changes():
                return False
            for event in events:
                connection.execute(
                    "INSERT INTO outbox (at, kind, tenant, runs) SELECT ?, ?, ?, json_array(?)"
                    " WHERE EXISTS (SELECT 1 FROM outbox_cursor)",
                    (now, event, before.budget.tenant, before.id),
                )
            return True

        return await self._write(work)

    async def lower(self, budget: Budget, limit: int) -> int:
        condition, values = _build_condition(budget, task="(SELECT b.task FROM body b WHERE b.id = u.body)")

        def work(connection: apsw.Connection, _: Instant) -> int:
            connection.execute(
                f"""
                UPDATE run SET priority = 10, rank = rank + (10 - priority) * 1000000000, rev = rev + 1 WHERE id IN (
                    SELECT u.id FROM run u WHERE u.state = 'queued' AND u.priority < 10 AND {condition} LIMIT ?)
                """,  # noqa: S608
                (*values, limit),
            )
            return connection.changes()

        return await self._write(work)


def _build_condition(budget: Budget, *, task: str = "u.task") -> tuple[str, tuple[str, ...]]:
    """Return the condition on ``u`` for the rows that a budget covers, and its parameters."""
    match budget.of:
        case "tenant":
            return "u.tenant = ?", (budget.tenant,)
        case "task":
            return f"u.tenant = ? AND {task} = ?", (budget.tenant, budget.target)
        case "job":
            named = "u.tenant = ? AND u.job_id = (SELECT j.id FROM job j WHERE j.tenant = ? AND j.name = ?)"
            return named, (budget.tenant, budget.tenant, budget.target)


def _find_budget(connection: apsw.Connection, tenant: str, name: str) -> BudgetStatus | None:
    row = connection.execute(f"{_SELECT_STATUS} WHERE tenant = ? AND name = ?", (tenant, name)).fetchone()
    return None if row is None else _build_status(row)


def _build_status(row: tuple[object, ...]) -> BudgetStatus:
    spec, *rest = row
    status = dict(zip(("id", "state", "since", "spent", "held"), rest, strict=True))
    status["budget"] = msgspec.json.decode(str(spec))
    status["held"] = bool(status["held"])
    return msgspec.convert(status, BudgetStatus)
