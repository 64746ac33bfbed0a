"""The port for the state of alerts: open problems, and alerts that are still to be sent."""

from collections.abc import Mapping
from typing import Protocol

import msgspec


class NotificationRows(msgspec.Struct, frozen=True):
    """All rows by name, as one consistent state of the store."""

    #: Grows with every change; 0: there has never been a change.
    rev: int
    rows: Mapping[str, bytes]


class NotificationStore(Protocol):
    """A store with optimistic locking: a writer that has not seen the newest change changes nothing."""

    async def notification_rows(self) -> NotificationRows: ...

    async def change_notification_rows(self, rev: int, changes: Mapping[str, bytes | None]) -> bool:
        """Set or delete (None) rows, all of them or none, and increase ``rev`` by one.

        Returns False, and changes nothing, if ``rev`` is not the newest. The bodies are JSON.
        """
        ...
