"""SQLite: usage and budgets."""

from collections.abc import Collection
from typing import Literal

import apsw
import msgspec

from mainspring.core.model.base.ids import derived_id
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.limits.budget import Budget, BudgetStatus
from mainspring.core.model.runs.rank import HEAD_START, IDLE
from mainspring.core.model.runs.usage import GroupBy, Usage
from mainspring.core.ports.storage.access import Author
from mainspring.stores.changes import Change, what_differs
from mainspring.stores.sqlite.base import SqliteBase
from mainspring.stores.sqlite.fetch import fetch_row, fetch_rows
from mainspring.stores.sqlite.records.audit import write_audit
from mainspring.stores.sqlite.rows.encoding import encode

_COLUMNS = {"job": "job_id", "task": "task", "tenant": "tenant"}
_SELECT_STATUS = "SELECT spec, id, state, since, spent, held FROM budget"


class SqliteUsage(SqliteBase):
    async def usage(
        self, tenant: str | None, since: Instant, until: Instant, by: GroupBy, *, key: str = "", limit: int = 10_000
    ) -> list[Usage]:
        text = f"""
            SELECT day, tenant, {_COLUMNS[by]} AS key, unit, sum(amount) AS amount FROM usage
            WHERE day >= :since AND day < :until AND (:tenant IS NULL OR tenant = :tenant)
              AND :key IN ('', {_COLUMNS[by]})
            GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4 LIMIT :limit
        """  # noqa: S608
        values = {"since": since, "until": until, "tenant": tenant, "key": key, "limit": limit}
        return await self._read(lambda connection: fetch_rows(connection, Usage, text, values))

    async def budgets(self, tenant: str | None) -> list[BudgetStatus]:
        text = f"{_SELECT_STATUS} WHERE :tenant IS NULL OR tenant = :tenant ORDER BY tenant, name"
        rows = await self._read(lambda connection: fetch_rows(connection, _BudgetRow, text, {"tenant": tenant}))
        return [_build_status(row) for row in rows]

    async def put_budget(self, budget: Budget, author: Author) -> BudgetStatus:
        budget.check()
        key = (budget.tenant, budget.name)

        def work(connection: apsw.Connection, now: Instant) -> BudgetStatus:
            known = _find_budget(connection, *key)
            connection.execute(
                "INSERT INTO budget (id, tenant, name, spec) VALUES (:id, :tenant, :name, :spec)"
                " ON CONFLICT (tenant, name) DO UPDATE SET spec = excluded.spec",
                {
                    "id": derived_id(now, 0, *key),
                    "tenant": budget.tenant,
                    "name": budget.name,
                    "spec": encode(budget),
                },
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
                connection.execute(
                    "DELETE FROM budget WHERE tenant = :tenant AND name = :name", {"tenant": tenant, "name": name}
                )
                write_audit(connection, now, "budgets.drop", author, [Change(tenant, name)])
            return known is not None

        return await self._write(work)

    async def spent(self, status: BudgetStatus, since: Instant) -> float:
        condition, values = _build_condition(status.budget)
        text = f"""
            SELECT coalesce(sum(u.amount), 0.0) FROM usage u WHERE u.day >= :since AND u.unit = :unit AND {condition}
        """  # noqa: S608
        arguments = {**values, "since": since, "unit": status.budget.unit}
        return await self._read(lambda connection: float(connection.execute(text, arguments).get))

    async def mark_budget(self, before: BudgetStatus, after: BudgetStatus, events: Collection[str]) -> bool:
        def work(connection: apsw.Connection, now: Instant) -> bool:
            connection.execute(
                "UPDATE budget SET state = :state, since = :since, spent = :spent, held = :held"
                " WHERE id = :id AND state = :known_state AND since = :known_since",
                {
                    "state": after.state,
                    "since": after.since,
                    "spent": after.spent,
                    "held": int(after.held),
                    "id": before.id,
                    "known_state": before.state,
                    "known_since": before.since,
                },
            )
            if not connection.changes():
                return False
            for event in events:
                connection.execute(
                    "INSERT INTO outbox (at, kind, tenant, runs) SELECT :at, :kind, :tenant, json_array(:budget)"
                    " WHERE EXISTS (SELECT 1 FROM outbox_cursor)",
                    {"at": now, "kind": event, "tenant": before.budget.tenant, "budget": before.id},
                )
            return True

        return await self._write(work)

    async def lower(self, budget: Budget, limit: int) -> int:
        condition, values = _build_condition(budget, task="(SELECT b.task FROM body b WHERE b.id = u.body)")

        def work(connection: apsw.Connection, _: Instant) -> int:
            connection.execute(
                f"""
                UPDATE run SET priority = {IDLE}, rank = rank + ({IDLE} - priority) * {HEAD_START}, rev = rev + 1
                WHERE id IN (
                    SELECT u.id FROM run u
                    WHERE u.state = 'queued' AND u.priority < {IDLE} AND {condition} LIMIT :limit)
                """,  # noqa: S608
                {**values, "limit": limit},
            )
            return connection.changes()

        return await self._write(work)


def _build_condition(budget: Budget, *, task: str = "u.task") -> tuple[str, dict[str, str]]:
    """Return the condition on ``u`` for the rows that a budget covers, and its parameters."""
    match budget.of:
        case "tenant":
            return "u.tenant = :tenant", {"tenant": budget.tenant}
        case "task":
            return f"u.tenant = :tenant AND {task} = :target", {"tenant": budget.tenant, "target": budget.target}
        case "job":
            condition = (
                "u.tenant = :tenant"
                " AND u.job_id = (SELECT j.id FROM job j WHERE j.tenant = :tenant AND j.name = :target)"
            )
            return condition, {"tenant": budget.tenant, "target": budget.target}


class _BudgetRow(msgspec.Struct, frozen=True):
    spec: str
    id: str
    state: Literal["ok", "warned", "over"]
    since: Instant
    spent: float
    held: bool


def _find_budget(connection: apsw.Connection, tenant: str, name: str) -> BudgetStatus | None:
    row = fetch_row(
        connection,
        _BudgetRow,
        f"{_SELECT_STATUS} WHERE tenant = :tenant AND name = :name",
        {"tenant": tenant, "name": name},
    )
    return None if row is None else _build_status(row)


def _build_status(row: _BudgetRow) -> BudgetStatus:
    return BudgetStatus(
        budget=msgspec.json.decode(row.spec, type=Budget),
        id=row.id,
        state=row.state,
        since=row.since,
        spent=row.spent,
        held=row.held,
    )
