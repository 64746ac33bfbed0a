"""What can be looked at: runs, jobs, ticks, queues, and the stream of changes."""

from collections.abc import Sequence

from mainspring.adapters.store.sqlite import rows
from mainspring.adapters.store.sqlite.part import Part
from mainspring.domain.ids import JobId, RunId
from mainspring.domain.instant import Instant
from mainspring.domain.job import Job, LedgerEntry
from mainspring.domain.run import AttemptView, RunView
from mainspring.ports.store import Depth, EventBatch


class SqliteReading(Part):
    async def now(self) -> Instant:
        return self._time.now()

    async def runs(self, ids: Sequence[RunId]) -> list[RunView | None]:
        found = rows.run_views(await self._reader.read("runs", ids=rows.encode(list(dict.fromkeys(ids)))))
        return [found.get(run) for run in ids]

    async def attempts(self, run: RunId) -> list[AttemptView]:
        return rows.attempts(await self._reader.read("attempts", run=run))

    async def jobs(self, ids: Sequence[JobId]) -> list[Job | None]:
        found = rows.jobs(await self._reader.read("jobs", ids=rows.encode(list(dict.fromkeys(ids)))))
        by_id = {job.id: job for job in found}
        return [by_id.get(job) for job in ids]

    async def job_named(self, tenant: str, name: str) -> JobId | None:
        found = await self._reader.read("job_id", tenant=tenant, name=name)
        return JobId(found) if found else None

    async def ledger(self, job: JobId, since: Instant, until: Instant, limit: int) -> list[LedgerEntry]:
        return rows.ledger_entries(await self._reader.read("ledger", job=job, since=since, until=until, limit=limit))

    async def depths(self) -> list[Depth]:
        return rows.depths(await self._reader.read("depths"))


class SqliteOutbox(Part):
    async def attach_reader(self, name: str) -> None:
        await self._writer.call("attach_reader", name)

    async def detach_reader(self, name: str) -> None:
        await self._writer.call("detach_reader", name)

    async def events(self, name: str, limit: int) -> list[EventBatch]:
        return rows.event_batches(await self._reader.read("events", reader=name, limit=limit))

    async def acknowledge(self, name: str, position: int) -> None:
        await self._writer.call("acknowledge", name, size=position)
