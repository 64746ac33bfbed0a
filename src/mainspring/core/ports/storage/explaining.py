"""What an answer to "why?" needs of the store, beside what is listed anyway. Nothing here is on a hot path."""

from typing import Protocol

from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.schedules.job import LedgerEntry
from mainspring.core.ports.storage.catalog import SessionView


class Explaining(Protocol):
    async def holder_of(self, run: RunId) -> RunId | None:
        """Who holds the ordering key, or is before it by the overlap rule, that a blocked run waits for; None: it is
        not blocked, or was let go just now."""
        ...

    async def owner_of(self, shard: int) -> SessionView | None:
        """The scheduler that owns a shard by a live lease."""
        ...

    async def ledger_at(self, job: JobId, at: Instant) -> LedgerEntry | None:
        """The newest tick of a job at or before a moment, as the ledger has it."""
        ...

    async def backfilled(self, job: JobId, since: Instant, until: Instant) -> dict[Instant, RunId]:
        """Ticks of a job in ``since <= tick < until`` that a backfill made up for, and by which run; of several the
        newest. What is forgotten is not there."""
        ...
