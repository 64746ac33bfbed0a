"""Memory store: reads that explain why a run or job is in its state."""

from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.cluster.datacenters import find_datacenter
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.job import LedgerEntry, tick_run_id
from mainspring.core.ports.storage.catalog import SessionView
from mainspring.stores.memory.records.details import MemoryDetails


class MemoryExplanations(MemoryDetails):
    async def find_holder(self, run: RunId) -> RunId | None:
        row = self._tables.runs.get(run)
        if row is None or row.state is not RunState.BLOCKED or row.key_lock is None:
            return None
        lock = self._tables.key_locks.get(row.key_lock)
        return None if lock is None else lock.holder

    async def find_shard_owner(self, shard: int) -> SessionView | None:
        owner = self._tables.shard_rows[shard].owner
        return next((session for session in await self.sessions("scheduler") if session.id == owner), None)

    async def ledger_at(self, job: JobId, at: Instant) -> LedgerEntry | None:
        ledger = self._tables.ledgers.get(job)
        return None if ledger is None else ledger.newest_until(at)

    async def backfilled(self, job: JobId, since: Instant, until: Instant) -> dict[Instant, RunId]:
        found: dict[Instant, RunId] = {}
        for run in sorted(self._tables.runs.values(), key=lambda run: run.id):
            at = run.scheduled_at
            if run.job_id != job or at is None or not since <= at < until:
                continue
            if run.id not in (tick_run_id(job, at), tick_run_id(job, at, find_datacenter(run.policy.requires) or "")):
                found[at] = run.id
        return found
