"""What an answer to "why?" needs."""

from mainspring.adapters.store.postgres.catalog import session_view
from mainspring.adapters.store.postgres.part import Part
from mainspring.adapters.store.postgres.rows import ledger_entry
from mainspring.domain.ids import JobId, RunId
from mainspring.domain.instant import Instant
from mainspring.domain.job import LedgerEntry
from mainspring.ports.catalog import SessionView


class Explaining(Part):
    async def holder_of(self, run: RunId) -> RunId | None:
        rows = await self._db.fetch("holder_of", run)
        return RunId(rows[0]["holder"]) if rows and rows[0]["holder"] is not None else None

    async def owner_of(self, shard: int) -> SessionView | None:
        return next((session_view(row) for row in await self._db.fetch("owner_of", shard)), None)

    async def ledger_at(self, job: JobId, at: Instant) -> LedgerEntry | None:
        return next((ledger_entry(row) for row in await self._db.fetch("ledger_at", job, at)), None)

    async def backfilled(self, job: JobId, since: Instant, until: Instant) -> dict[Instant, RunId]:
        rows = await self._db.fetch("backfilled", job, since, until)
        return {row["scheduled_at"]: RunId(row["id"]) for row in rows}
