"""SQLite: the task catalog."""

from collections.abc import Sequence

import apsw
import msgspec

from mainspring.core.model.base.instant import Instant
from mainspring.core.model.tasks.task_entry import KnownTask, TaskEntry, check_registration
from mainspring.stores.sqlite.base import SqliteBase
from mainspring.stores.sqlite.fetch import fetch_rows
from mainspring.stores.tasks import read_tasks

_PUT = """
INSERT INTO task AS t (name, rev, version, body, registered_by, registered_at)
VALUES (:name, (SELECT coalesce(max(rev), 0) + 1 FROM task), 1, :body, :worker, :now)
ON CONFLICT (name) DO UPDATE SET rev = excluded.rev, version = t.version + 1, body = excluded.body,
    registered_by = excluded.registered_by, registered_at = excluded.registered_at
WHERE t.body <> excluded.body
"""
_LIST = "SELECT rev, version, body, registered_by, registered_at FROM task WHERE rev > :after ORDER BY rev"


class _TaskRow(msgspec.Struct, frozen=True):
    rev: int
    version: int
    body: str
    registered_by: str
    registered_at: Instant


class SqliteTasks(SqliteBase):
    async def register_tasks(self, entries: Sequence[TaskEntry], worker: str) -> int:
        check_registration(entries, worker)

        def put(connection: apsw.Connection, now: Instant) -> int:
            before = connection.total_changes()
            for entry in entries:
                connection.execute(
                    _PUT, {"name": entry.name, "body": entry.encode().decode(), "worker": worker, "now": now}
                )
            return connection.total_changes() - before

        return await self._write(put)

    async def list_tasks(self, after: int = 0) -> list[KnownTask]:
        rows = await self._read(lambda connection: fetch_rows(connection, _TaskRow, _LIST, {"after": after}))
        return read_tasks(
            (row.rev, row.version, row.body.encode(), row.registered_by, row.registered_at) for row in rows
        )
