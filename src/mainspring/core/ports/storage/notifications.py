"""What is kept of notifications: open problems, and what waits to be told."""

from collections.abc import Mapping
from typing import Protocol

import msgspec


class NotificationRows(msgspec.Struct, frozen=True):
    """All of it, by name, as one state of the store."""

    #: Grows with every change; 0: there never was one.
    rev: int
    rows: Mapping[str, bytes]


class NotificationStore(Protocol):
    """One writer at a time: whoever has not seen the newest change changes nothing."""

    async def notification_rows(self) -> NotificationRows: ...

    async def change_notification_rows(self, rev: int, changes: Mapping[str, bytes | None]) -> bool:
        """Set rows, or take them away (None), all of them or none; the next ``rev`` is one more.

        False, and nothing is changed, if ``rev`` is not the newest. The bodies are JSON.
        """
        ...
