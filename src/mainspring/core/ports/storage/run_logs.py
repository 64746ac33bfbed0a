"""Logs on their way out of the store."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from mainspring.core.model.access.access import Tenant
from mainspring.core.model.base.ids import RunId
from mainspring.core.ports.storage.catalog import LogLine
from mainspring.core.store import Reading


class LogShelf(Protocol):
    async def logged_runs(self, after: RunId | None, limit: int) -> list[RunId]:
        """Runs that have lines in the store, whatever their state, by id, from after ``after`` on."""
        ...

    async def forget_logs(self, runs: Collection[RunId]) -> None:
        """Delete their lines. Of runs that have ended: nothing is added to these any more."""
        ...


class LogSource(LogShelf, Reading, Protocol):
    """The part of the store that logs are taken from."""

    async def tenants(self) -> list[Tenant]:
        """As ``Access`` has it."""
        ...

    async def logs_after(self, places: Mapping[RunId, int], limit: int) -> Mapping[RunId, Sequence[LogLine]]:
        """As ``Catalog`` has it."""
        ...
