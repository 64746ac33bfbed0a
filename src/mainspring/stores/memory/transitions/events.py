"""Events and audit entries of a transaction."""

from collections.abc import Iterable

from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.events.events import id_of_worker
from mainspring.core.ports.storage.access import AuditEntry, Author
from mainspring.core.ports.storage.outbox import EVENTS_KEPT, EventBatch
from mainspring.stores.changes import Change, sum_up
from mainspring.stores.memory.data import StoreData
from mainspring.stores.memory.rows import RunRow, SessionRow


class EventTransitions(StoreData):
    """Records what a transaction did, for event readers and for the audit."""

    def record_run_event(self, kind: str, run: RunRow) -> None:
        self._run_events.setdefault((kind, run.tenant), []).append(run.id)
        if kind == "run.queued":
            self._queues_with_work[run.queue] = None

    def record_job_event(self, kind: str, tenant: str, job: JobId) -> None:
        """Record a job event. The job id replaces the run id; the kind distinguishes them."""
        self._job_events.append((kind, tenant, job))

    def record_event(self, kind: str, tenant: str, subject: str) -> None:
        """Record an event about a subject that is not a run."""
        self._run_events.setdefault((kind, tenant), []).append(RunId(subject))

    def record_worker_event(self, kind: str, session: SessionRow) -> None:
        """Record an event about a worker, which belongs to no tenant; ignore schedulers."""
        if session.kind == "worker":
            self.record_event(kind, "", id_of_worker(session.id))

    def write_events(self) -> None:
        """Write the recorded events to the outbox, one batch per kind and tenant; drop them if there is no reader."""
        if not self.readers:
            return
        batches = [(kind, tenant, runs) for (kind, tenant), runs in self._run_events.items()]
        batches += [(kind, tenant, [RunId(job)]) for kind, tenant, job in self._job_events]
        for kind, tenant, runs in batches:
            self._position += 1
            self.outbox.append(
                EventBatch(position=self.position, at=self.now, kind=kind, runs=tuple(runs), tenant=tenant)
            )

    def start_outbox(self) -> None:
        """Start writing events at a new horizon. A reader with an earlier cursor may have missed events."""
        self._position += 1
        self.horizon = self.position

    def remove_reader(self, name: str) -> None:
        self.readers.pop(name, None)
        self.readers_until.pop(name, None)
        self.drop_old_events()

    def drop_old_events(self) -> None:
        """Drop the batches that every reader has read and that are older than ``EVENTS_KEPT``.

        Without readers drop all batches.
        """
        read_by_all = min(self.readers.values(), default=self.position)
        old = self.now - EVENTS_KEPT
        while self.outbox and self.outbox[0].position <= read_by_all and (self.outbox[0].at < old or not self.readers):
            self.horizon = self.outbox.popleft().position

    def audit(self, action: str, author: Author | None, changes: Iterable[Change]) -> None:
        """Write one audit entry per tenant; write none without an author or without changes."""
        if author is None:
            return
        for tenant, change, count in sum_up(author, changes):
            self.audit_entries.append(
                AuditEntry(
                    position=len(self.audit_entries) + 1,
                    at=self.now,
                    tenant=tenant,
                    author=author.name,
                    action=action,
                    target=change.target,
                    count=count,
                    before=change.before,
                    after=change.after,
                    why=author.why,
                )
            )
