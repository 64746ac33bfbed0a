"""The port for explaining the state of a run ("why?"), in addition to the lists. Nothing here is on a hot path."""

from typing import Protocol

from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.schedules.job import LedgerEntry
from mainspring.core.ports.storage.catalog import SessionView


class ExplanationReads(Protocol):
    async def find_holder(self, run: RunId) -> RunId | None:
        """Return the run that a blocked run waits for, because of its ordering key or overlap rule.

        None: the run is not blocked, or was released just now.
        """
        ...

    async def find_shard_owner(self, shard: int) -> SessionView | None:
        """Return the scheduler that owns a shard under a live lease."""
        ...

    async def ledger_at(self, job: JobId, at: Instant) -> LedgerEntry | None:
        """Return the newest tick in the ledger of a job at or before a moment."""
        ...

    async def backfilled(self, job: JobId, since: Instant, until: Instant) -> dict[Instant, RunId]:
        """Return the ticks of a job in ``since <= tick < until`` that a backfill made up for, with their runs.

        Of several runs for a tick, the newest is returned. Deleted runs are missing.
        """
        ...
