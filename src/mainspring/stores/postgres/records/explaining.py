"""Reads the data that answers "why?" questions."""

from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.schedules.job import LedgerEntry
from mainspring.core.ports.storage.catalog import SessionView
from mainspring.stores.postgres.mixin import PostgresMixin
from mainspring.stores.postgres.records.catalog import build_session_view
from mainspring.stores.postgres.rows import build_ledger_entry


class ExplainMixin(PostgresMixin):
    async def find_holder(self, run: RunId) -> RunId | None:
        rows = await self._db.fetch("key_holder", run=run)
        return RunId(rows[0]["holder"]) if rows and rows[0]["holder"] is not None else None

    async def find_shard_owner(self, shard: int) -> SessionView | None:
        return next((build_session_view(row) for row in await self._db.fetch("shard_owner", shard=shard)), None)

    async def ledger_at(self, job: JobId, at: Instant) -> LedgerEntry | None:
        return next((build_ledger_entry(row) for row in await self._db.fetch("ledger_at", job=job, at=at)), None)

    async def backfilled(self, job: JobId, since: Instant, until: Instant) -> dict[Instant, RunId]:
        rows = await self._db.fetch("backfilled", job=job, since=since, until=until)
        return {row["scheduled_at"]: RunId(row["id"]) for row in rows}
