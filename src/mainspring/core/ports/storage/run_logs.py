"""The port for moving logs out of the store."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from mainspring.core.model.access.access import Tenant
from mainspring.core.model.base.ids import RunId
from mainspring.core.ports.storage.catalog import LogLine
from mainspring.core.ports.storage.reads import StoreReads


class LogShelf(Protocol):
    async def logged_runs(self, after: RunId | None, limit: int) -> list[RunId]:
        """Return runs in any state that have log lines in the store, by id, starting after the id ``after``."""
        ...

    async def forget_logs(self, runs: Collection[RunId]) -> None:
        """Delete the log lines of ended runs, to which no lines are added any more."""
        ...


class LogSource(LogShelf, StoreReads, Protocol):
    """The part of the store that logs are taken from."""

    async def tenants(self) -> list[Tenant]:
        """Return all tenants; see ``Access``."""
        ...

    async def logs_after(self, positions: Mapping[RunId, int], limit: int) -> Mapping[RunId, Sequence[LogLine]]:
        """Return new log lines of several runs; see ``Catalog``."""
        ...
