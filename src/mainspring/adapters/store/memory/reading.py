"""What can be looked at: runs, jobs, ticks, queues, and the stream of changes."""

from collections import Counter
from collections.abc import Sequence
from itertools import islice

from mainspring.adapters.store.memory.tables import Tables
from mainspring.domain.ids import JobId, RunId
from mainspring.domain.instant import Instant
from mainspring.domain.job import Job, LedgerEntry
from mainspring.domain.run import AttemptView, RunView
from mainspring.ports.store import Depth, EventBatch


class MemoryReading:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def now(self) -> Instant:
        with self._tables.transaction() as now:
            return now

    async def runs(self, ids: Sequence[RunId]) -> list[RunView | None]:
        rows = (self._tables.runs.get(run) for run in ids)
        return [None if row is None else row.view() for row in rows]

    async def attempts(self, run: RunId) -> list[AttemptView]:
        return list(self._tables.attempts.get(run, ()))

    async def jobs(self, ids: Sequence[JobId]) -> list[Job | None]:
        rows = (self._tables.jobs.get(job) for job in ids)
        return [None if row is None else row.job(with_payload=True) for row in rows]

    async def job_named(self, tenant: str, name: str) -> JobId | None:
        return self._tables.job_names.get((tenant, name))

    async def ledger(self, job: JobId, since: Instant, until: Instant, limit: int) -> list[LedgerEntry]:
        ledger = self._tables.ledgers.get(job)
        return [] if ledger is None else ledger.between(since, until, limit)

    async def depths(self) -> list[Depth]:
        tables = self._tables
        running = Counter(tables.runs[run].queue for held in tables.held.values() for run in held)
        queued = {queue: index for queue, index in tables.ready.items() if index}
        return [
            Depth(
                queue=queue,
                queued=len(queued.get(queue, ())),
                running=running[queue],
                oldest_due=min(tables.runs[RunId(run)].due for _, run in queued[queue].entries)
                if queue in queued
                else None,
            )
            for queue in sorted(queued.keys() | running.keys())
        ]


class MemoryOutbox:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def attach_reader(self, name: str) -> None:
        self._tables.readers.setdefault(name, self._tables.position)

    async def detach_reader(self, name: str) -> None:
        self._tables.readers.pop(name, None)
        self._forget_what_all_have_seen()

    async def events(self, name: str, limit: int) -> list[EventBatch]:
        seen = self._tables.readers.get(name)
        if seen is None:
            return []
        return list(islice((batch for batch in self._tables.outbox if batch.position > seen), limit))

    async def acknowledge(self, name: str, position: int) -> None:
        readers = self._tables.readers
        if name in readers:
            readers[name] = max(readers[name], position)
            self._forget_what_all_have_seen()

    def _forget_what_all_have_seen(self) -> None:
        outbox = self._tables.outbox
        seen = min(self._tables.readers.values(), default=self._tables.position)
        while outbox and outbox[0].position <= seen:
            outbox.popleft()
