"""Stores open problems and pending alerts."""

from collections.abc import Mapping

from mainspring.core.ports.storage.notifications import NotificationRows
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.mixin import PostgresMixin

#: The name of the row that counts changes. No other row has this name.
_REV = ""


class NotificationMixin(PostgresMixin):
    async def notification_rows(self) -> NotificationRows:
        found = {row["name"]: row for row in await self._db.fetch("notification_rows")}
        rev = found.pop(_REV)["rev"] if _REV in found else 0
        return NotificationRows(rev, {name: row["body"] for name, row in found.items()})

    async def change_notification_rows(self, rev: int, changes: Mapping[str, bytes | None]) -> bool:
        kept = {name: body for name, body in changes.items() if body is not None}
        gone = [name for name, body in changes.items() if body is None]

        async def change(connection: Connection) -> bool:
            sql = self._db.sql
            if await connection.fetchval(*sql["next_notification_rev"].bind(rev=rev)) is None:
                return False
            if kept:
                await connection.execute(*sql["keep_notifications"].bind(names=list(kept), bodies=list(kept.values())))
            if gone:
                await connection.execute(*sql["drop_notifications"].bind(names=gone))
            return True

        return await self._db.transaction(change)
