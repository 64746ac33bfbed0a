"""The port for renewing the leases of many workers at once."""

from collections.abc import Sequence
from typing import Protocol

from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import Micros
from mainspring.core.ports.storage.answers import HeartbeatAnswer


class Leases(Protocol):
    async def renew_leases(self, leases: Sequence[tuple[SessionId, Micros]]) -> list[HeartbeatAnswer]:
        """Extend each lease by its ttl, like a heartbeat without runs, and return an answer for each, in order.

        A thousand renewals are one commit.
        """
        ...
