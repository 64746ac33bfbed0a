"""SQLite: reads that explain why a run or job is in its state."""

import msgspec

from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.schedules.job import LedgerEntry
from mainspring.core.ports.storage.catalog import SessionView
from mainspring.stores.sqlite.base import SqliteBase
from mainspring.stores.sqlite.rows.jobs import decode_ledger
from mainspring.stores.sqlite.rows.views import decode_sessions


class _BackfilledRow(msgspec.Struct, frozen=True):
    scheduled_at: Instant
    run: RunId


_decode_backfilled = msgspec.json.Decoder(list[_BackfilledRow]).decode


class SqliteExplanations(SqliteBase):
    async def find_holder(self, run: RunId) -> RunId | None:
        found = await self._reader.read("key_lock_holder", run=run)
        return RunId(found) if found else None

    async def find_shard_owner(self, shard: int) -> SessionView | None:
        text = await self._reader.read("shard_owner", shard=shard, now=self._time.now())
        return next(iter(decode_sessions(text)), None)

    async def ledger_at(self, job: JobId, at: Instant) -> LedgerEntry | None:
        return next(iter(decode_ledger(await self._reader.read("ledger_at", job=job, at=at))), None)

    async def backfilled(self, job: JobId, since: Instant, until: Instant) -> dict[Instant, RunId]:
        rows = _decode_backfilled(await self._reader.read("backfilled", job=job, since=since, until=until))
        return {row.scheduled_at: row.run for row in rows}
