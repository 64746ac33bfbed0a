"""SQLite: the task catalog."""

from collections.abc import Sequence
from typing import cast

import apsw

from mainspring.core.model.base.instant import Instant
from mainspring.core.model.tasks.task_entry import KnownTask, TaskEntry, check_registration
from mainspring.stores.sqlite.base import SqliteBase
from mainspring.stores.tasks import read_tasks

_PUT = """
INSERT INTO task AS t (name, rev, version, body, registered_by, registered_at)
VALUES (?, (SELECT coalesce(max(rev), 0) + 1 FROM task), 1, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET rev = excluded.rev, version = t.version + 1, body = excluded.body,
    registered_by = excluded.registered_by, registered_at = excluded.registered_at
WHERE t.body <> excluded.body
"""
_LIST = "SELECT rev, version, body, registered_by, registered_at FROM task WHERE rev > ? ORDER BY rev"


class SqliteTasks(SqliteBase):
    async def register_tasks(self, entries: Sequence[TaskEntry], worker: str) -> int:
        check_registration(entries, worker)

        def put(connection: apsw.Connection, now: Instant) -> int:
            before = connection.total_changes()
            for entry in entries:
                connection.execute(_PUT, (entry.name, entry.encode().decode(), worker, now))
            return connection.total_changes() - before

        return await self._write(put)

    async def list_tasks(self, after: int = 0) -> list[KnownTask]:
        def look(connection: apsw.Connection) -> list[tuple[int, int, str, str, int]]:
            return cast("list[tuple[int, int, str, str, int]]", list(connection.execute(_LIST, (after,))))

        rows = await self._read(look)
        return read_tasks((rev, version, body.encode(), worker, at) for rev, version, body, worker, at in rows)
