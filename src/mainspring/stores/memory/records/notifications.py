"""Memory store: state of the alerts."""

from collections.abc import Mapping

from mainspring.core.ports.storage.notifications import NotificationRows
from mainspring.stores.memory.tables import Tables


class MemoryNotifications:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def notification_rows(self) -> NotificationRows:
        return NotificationRows(self._tables.notification_rev, dict(self._tables.notifications))

    async def change_notification_rows(self, rev: int, changes: Mapping[str, bytes | None]) -> bool:
        tables = self._tables
        with tables.transaction():
            if tables.notification_rev != rev:
                return False
            tables.notification_rev += 1
            for name, body in changes.items():
                if body is None:
                    tables.notifications.pop(name, None)
                else:
                    tables.notifications[name] = body
            return True
