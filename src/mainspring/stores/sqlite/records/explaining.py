"""SQLite: reads that explain why a run or job is in its state."""

import msgspec

from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.schedules.job import LedgerEntry
from mainspring.core.ports.storage.catalog import SessionView
from mainspring.stores.sqlite import rows
from mainspring.stores.sqlite.part import Part


class SqliteExplaining(Part):
    async def holder_of(self, run: RunId) -> RunId | None:
        found = await self._reader.read("holder_of", run=run)
        return RunId(found) if found else None

    async def owner_of(self, shard: int) -> SessionView | None:
        text = await self._reader.read("owner_of", shard=shard, now=self._time.now())
        return next(iter(rows.sessions(text)), None)

    async def ledger_at(self, job: JobId, at: Instant) -> LedgerEntry | None:
        return next(iter(rows.ledger_entries(await self._reader.read("ledger_at", job=job, at=at))), None)

    async def backfilled(self, job: JobId, since: Instant, until: Instant) -> dict[Instant, RunId]:
        text = await self._reader.read("backfilled", job=job, since=since, until=until)
        return {at: RunId(run) for at, run in msgspec.json.decode(text, type=list[tuple[int, str]])}
