"""Memory store: reads of runs, jobs, ticks and queues, and the event outbox."""

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import chain, islice

from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import Instant, Micros
from mainspring.core.model.cluster.datacenters import find_datacenter
from mainspring.core.model.cluster.hints import Hint
from mainspring.core.model.events.events import MAX_EVENT_ERROR, RunFacts, WorkerFacts
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import AttemptView, RunView
from mainspring.core.model.schedules.job import Job, LedgerEntry
from mainspring.core.ports.events_out import ReaderView
from mainspring.core.ports.storage.outbox import EventBatch
from mainspring.core.ports.storage.reads import QueueBacklog
from mainspring.stores.depths import DepthRow, fold_depths
from mainspring.stores.memory.records.datacenters import find_required_data_center
from mainspring.stores.memory.rows import LabelSet, RunRow
from mainspring.stores.memory.tables import Tables


class MemoryReads:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def now(self) -> Instant:
        with self._tables.transaction() as now:
            return now

    async def runs(self, ids: Sequence[RunId], *, payloads: bool = False) -> list[RunView | None]:
        rows = (self._tables.runs.get(run) for run in ids)
        return [None if row is None else row.view(with_payload=payloads) for row in rows]

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

    async def last_ticks(self, jobs: Sequence[JobId], limit: int) -> list[list[LedgerEntry]]:
        ledgers = [self._tables.ledgers.get(job) for job in jobs]
        return [[] if ledger is None else ledger.newest(limit) for ledger in ledgers]

    async def parents(self, run: RunId) -> list[RunView]:
        found = (self._tables.runs.get(parent) for parent in self._tables.dependencies.parents.get(run, ()))
        return [row.view() for row in found if row is not None]

    async def parent_ids(self, run: RunId) -> list[RunId]:
        return list(self._tables.dependencies.parents.get(run, ()))

    async def children(self, run: RunId, after: RunId | None, limit: int) -> list[RunView]:
        named = sorted(self._tables.dependencies.children.get(run, ()))
        found = (self._tables.runs[child] for child in named if after is None or child > after)
        return [row.view() for row in islice(found, limit)]

    async def depths(self, tenant: str | None = None) -> list[QueueBacklog]:
        tables, now = self._tables, await self.now()
        held = (tables.runs[run] for runs in tables.running_by_session.values() for run in runs)
        running = Counter(run.queue for run in held if tenant in (None, run.tenant))
        rows: list[DepthRow] = [(queue, None, 0, count, None, None) for queue, count in running.items()]
        for queue, label_sets in tables.ready.items():
            for _, row in chain.from_iterable(index.entries for index in label_sets.values()):
                run = tables.runs[RunId(row)]
                if tenant in (None, run.tenant):
                    is_paused = tables.is_paused(run, now)
                    ready = None if is_paused else max(run.due, run.ready_at, tables.find_resume_time(run, now))
                    rows.append((queue, find_required_data_center(tables, run.policy.requires), 1, 0, run.due, ready))
        return fold_depths(rows)


class MemoryOutbox:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def hint_key(self) -> str:
        return self._tables.hint_key

    async def find_hints(self, runs: Sequence[RunId]) -> list[Hint]:
        found = (self._tables.runs.get(run) for run in runs)
        return [
            _build_hint(run)
            for run in found
            if run is not None and run.state is RunState.QUEUED and _find_data_center(run.label_set) is not None
        ]

    async def find_ready_hints(self, queues: Collection[str] | None, limit: int) -> list[Hint]:
        tables = self._tables
        return [
            _build_hint(tables.runs[RunId(run)])
            for queue, label_sets in tables.ready.items()
            if queues is None or queue in queues
            for label_set, index in label_sets.items()
            if _find_data_center(label_set) is not None
            for _, run in index.entries[:limit]
        ]

    async def read_run_facts(self, runs: Sequence[RunId], since: Instant) -> list[RunFacts]:
        found = (self._tables.runs.get(run) for run in runs)
        return [_build_facts(run) for run in found if run is not None]

    async def read_worker_facts(self, sessions: Sequence[SessionId]) -> list[WorkerFacts]:
        found = (self._tables.sessions.get(session) for session in sessions)
        return [
            WorkerFacts(id=row.id, name=row.name, version=row.version, datacenter=row.datacenter, queues=row.queues)
            for row in found
            if row is not None
        ]

    async def readers(self) -> list[ReaderView]:
        tables = self._tables
        return [
            ReaderView(name, next((batch.at for batch in tables.outbox if batch.position > cursor), None))
            for name, cursor in sorted(tables.readers.items())
        ]

    async def attach_reader(self, name: str, ttl: Micros | None = None) -> None:
        tables = self._tables
        with tables.transaction() as now:
            if not tables.readers:
                tables.start_outbox()
            tables.readers.setdefault(name, tables.position)
            if ttl is None:
                tables.readers_until.pop(name, None)
            else:
                tables.readers_until[name] = now + ttl

    async def detach_reader(self, name: str) -> None:
        with self._tables.transaction():
            self._tables.remove_reader(name)

    async def events(self, name: str, limit: int) -> list[EventBatch]:
        cursor = self._tables.readers.get(name)
        if cursor is None:
            return []
        return list(islice((batch for batch in self._tables.outbox if batch.position > cursor), limit))

    async def acknowledge(self, name: str, position: str) -> None:
        readers = self._tables.readers
        if name in readers:
            readers[name] = max(readers[name], position)


def _build_hint(run: RunRow) -> Hint:
    return Hint(
        run.id,
        run.queue,
        run.rank,
        run.priority,
        "" if run.key_lock is None else str(run.key_lock),
        run.attempt + 1,
        _find_data_center(run.label_set) or "",
    )


def _find_data_center(label_set: LabelSet) -> str | None:
    """Return the data center whose workers may take runs of a label set.

    "" stands for any worker, None for a label set whose runs get no hints.
    """
    if not isinstance(label_set, tuple) or len(label_set) > 1:
        return None
    return find_datacenter(label_set) if label_set else ""


def _build_facts(run: RunRow) -> RunFacts:
    ended = run.state.ended
    return RunFacts(
        id=run.id,
        task=run.task,
        queue=run.queue,
        job_id=run.job_id,
        scheduled_at=run.scheduled_at,
        ended=ended,
        attempt=run.attempt if ended else 0,
        reason=run.reason if ended else "",
        error=run.error[-MAX_EVENT_ERROR:] if ended and run.error is not None else None,
        tags=() if run.about is None else run.about.tags,
    )
