"""The leases of many workers at once."""

from collections.abc import Sequence
from typing import Protocol

from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import Micros
from mainspring.core.store import Beat


class Leases(Protocol):
    async def renew_leases(self, leases: Sequence[tuple[SessionId, Micros]]) -> list[Beat]:
        """Extend each by its ttl, as a beat that says nothing of runs does; an answer for each, in order. A thousand of
        them are one commit."""
        ...
