"""SQLite: reads of runs, jobs, ticks and queues, and the event outbox."""

from collections.abc import Collection, Sequence

from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import Instant, Micros
from mainspring.core.model.cluster.hints import Hint
from mainspring.core.model.events.events import MAX_EVENT_ERROR, RunFacts, WorkerFacts
from mainspring.core.model.runs.view import AttemptView, RunView
from mainspring.core.model.schedules.job import Job, LedgerEntry
from mainspring.core.ports.events_out import ReaderView
from mainspring.core.ports.storage.outbox import EVENTS_KEPT, EventBatch
from mainspring.core.ports.storage.reads import QueueBacklog
from mainspring.stores.sqlite.base import SqliteBase
from mainspring.stores.sqlite.rows.answers import decode_strings
from mainspring.stores.sqlite.rows.encoding import encode
from mainspring.stores.sqlite.rows.events import decode_events, decode_readers, decode_run_facts, decode_worker_facts
from mainspring.stores.sqlite.rows.jobs import decode_jobs, decode_ledger
from mainspring.stores.sqlite.rows.runs import decode_hints, decode_run_views
from mainspring.stores.sqlite.rows.views import decode_attempts, decode_depths


class SqliteReads(SqliteBase):
    async def now(self) -> Instant:
        self._guard.check()
        return self._time.now()

    async def runs(self, ids: Sequence[RunId], *, payloads: bool = False) -> list[RunView | None]:
        wanted = encode(list(dict.fromkeys(ids)))
        found = decode_run_views(await self._reader.read("runs", ids=wanted, payloads=int(payloads), results=1))
        return [found.get(run) for run in ids]

    async def attempts(self, run: RunId) -> list[AttemptView]:
        return decode_attempts(await self._reader.read("attempts", run=run))

    async def jobs(self, ids: Sequence[JobId]) -> list[Job | None]:
        found = decode_jobs(await self._reader.read("jobs", ids=encode(list(dict.fromkeys(ids))), payloads=1))
        by_id = {job.id: job for job in found}
        return [by_id.get(job) for job in ids]

    async def job_named(self, tenant: str, name: str) -> JobId | None:
        found = await self._reader.read("job_id", tenant=tenant, name=name)
        return JobId(found) if found else None

    async def ledger(self, job: JobId, since: Instant, until: Instant, limit: int) -> list[LedgerEntry]:
        return decode_ledger(await self._reader.read("ledger", job=job, since=since, until=until, limit=limit))

    async def last_ticks(self, jobs: Sequence[JobId], limit: int) -> list[list[LedgerEntry]]:
        wanted = encode(list(dict.fromkeys(jobs)))
        found: dict[JobId, list[LedgerEntry]] = {}
        for entry in decode_ledger(await self._reader.read("last_ticks", jobs=wanted, limit=limit)):
            found.setdefault(entry.job_id, []).append(entry)
        return [found.get(job, [])[-limit:] for job in jobs]

    async def parents(self, run: RunId) -> list[RunView]:
        return await self._read_views(await self._reader.read("parents", run=run))

    async def parent_ids(self, run: RunId) -> list[RunId]:
        return [RunId(parent) for parent in decode_strings(await self._reader.read("parents", run=run))]

    async def children(self, run: RunId, after: RunId | None, limit: int) -> list[RunView]:
        return await self._read_views(await self._reader.read("children", run=run, after=after or "", limit=limit))

    async def _read_views(self, ids: str) -> list[RunView]:
        views = await self.runs([RunId(run) for run in decode_strings(ids)])
        return [view for view in views if view is not None]

    async def depths(self, tenant: str | None = None) -> list[QueueBacklog]:
        if tenant is None:
            return decode_depths(await self._reader.read("depths", now=self._time.now()))
        return decode_depths(await self._reader.read("tenant_depths", tenant=tenant, now=self._time.now()))


class SqliteOutbox(SqliteBase):
    async def hint_key(self) -> str:
        return await self._reader.read("hint_key")

    async def find_hints(self, runs: Sequence[RunId]) -> list[Hint]:
        return decode_hints(await self._reader.read("hints", ids=encode(list(runs))))

    async def find_ready_hints(self, queues: Collection[str] | None, limit: int) -> list[Hint]:
        named = (
            [depth.queue for depth in decode_depths(await self._reader.read("depths", now=self._time.now()))]
            if queues is None
            else queues
        )
        return decode_hints(await self._reader.read("ready_hints", queues=encode(list(named)), limit=limit))

    async def read_run_facts(self, runs: Sequence[RunId], since: Instant) -> list[RunFacts]:
        return decode_run_facts(await self._reader.read("run_facts", ids=encode(list(runs)), most=MAX_EVENT_ERROR))

    async def read_worker_facts(self, sessions: Sequence[SessionId]) -> list[WorkerFacts]:
        return decode_worker_facts(await self._reader.read("worker_facts", ids=encode(list(sessions))))

    async def readers(self) -> list[ReaderView]:
        return decode_readers(await self._reader.read("readers"))

    async def attach_reader(self, name: str, ttl: Micros | None = None) -> None:
        await self._writer.call("attach_reader", name, argument=-1 if ttl is None else ttl)

    async def detach_reader(self, name: str) -> None:
        await self._writer.call("detach_reader", name, argument=EVENTS_KEPT)

    async def events(self, name: str, limit: int) -> list[EventBatch]:
        return decode_events(await self._reader.read("events", reader=name, limit=limit))

    async def acknowledge(self, name: str, position: str) -> None:
        await self._writer.call("acknowledge", name, argument=int(position))
