"""SQLite: state of the alerts."""

from collections.abc import Mapping
from typing import cast

import apsw

from mainspring.core.model.base.instant import Instant
from mainspring.core.ports.storage.notifications import NotificationRows
from mainspring.stores.sqlite.base import SqliteBase

#: Name of the row that holds the number of changes. No other row has this name.
_REV = ""


class SqliteNotifications(SqliteBase):
    async def notification_rows(self) -> NotificationRows:
        def read_rows(connection: apsw.Connection) -> NotificationRows:
            query = "SELECT name, rev, body FROM notification"
            found = cast("list[tuple[str, int, str]]", list(connection.execute(query)))
            rev = next((rev for name, rev, _ in found if name == _REV), 0)
            return NotificationRows(rev, {name: body.encode() for name, _, body in found if name != _REV})

        return await self._read(read_rows)

    async def change_notification_rows(self, rev: int, changes: Mapping[str, bytes | None]) -> bool:
        def change(connection: apsw.Connection, now: Instant) -> bool:
            newest = connection.execute("SELECT rev FROM notification WHERE name = :name", {"name": _REV}).get
            if (newest or 0) != rev:
                return False
            put = (
                "INSERT INTO notification (name, rev, body) VALUES (:name, :rev, :body)"
                " ON CONFLICT (name) DO UPDATE SET rev = excluded.rev, body = excluded.body"
            )
            kept = [
                {"name": name, "rev": 0, "body": body.decode()} for name, body in changes.items() if body is not None
            ]
            connection.executemany(put, [{"name": _REV, "rev": rev + 1, "body": ""}, *kept])
            gone = [{"name": name} for name, body in changes.items() if body is None]
            connection.executemany("DELETE FROM notification WHERE name = :name", gone)
            return True

        return await self._write(change)
