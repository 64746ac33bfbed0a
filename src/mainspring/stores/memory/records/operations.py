"""Memory store: changes by users other than submitting and cancelling."""

from collections.abc import Collection, Sequence

import msgspec

from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.limits.queues import QueuePolicy
from mainspring.core.model.runs.new_run import About, NewRun
from mainspring.core.model.runs.restored import KnownOutcome
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.answers import SubmitResult
from mainspring.core.ports.storage.catalog import Pause
from mainspring.stores.changes import Change, retagged, what_differs, words_of_run
from mainspring.stores.memory.tables import Tables
from mainspring.stores.memory.transitions.runs import sort_blocked_first


class MemoryOperations:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def edit_run(self, run: NewRun, author: Author, *, was: RunView | None = None) -> SubmitResult | None:
        tables = self._tables
        with tables.transaction():
            row = tables.runs.get(run.id)
            if row is None or row.tenant != run.tenant or row.job_id is not None or row.fence or row.state.ended:
                return None
            before = words_of_run(row.view(with_payload=True))
            if was is not None and words_of_run(was) != before:
                return SubmitResult(row.id, row.shown_state(), new=False, conflict=True)
            tables.edit(row, run)
            differs = what_differs(before, words_of_run(row.view(with_payload=True)))
            if differs is not None:
                tables.audit("runs.edit", author, [Change(row.tenant, row.id, *differs)])
            return SubmitResult(row.id, row.shown_state(), new=False)

    async def finish(self, ends: Sequence[KnownOutcome], author: Author) -> dict[RunId, RunState]:
        for end in ends:
            end.check()
        tables = self._tables
        with tables.transaction():
            known = {end.run: end for end in ends}
            rows = [tables.runs[run] for run in known if run in tables.runs]
            before = {row.id: row.shown_state().value for row in rows if not row.state.ended}
            for row in sort_blocked_first(rows):
                if row.id in before:
                    tables.end_as_known(row, known[row.id])
            changes = [
                Change(row.tenant, row.id, *(what_differs({"state": before[row.id]}, {"state": row.state.value}) or ()))
                for row in rows
                if row.id in before
            ]
            tables.audit("runs.finish", author, changes)
            return {row.id: row.state for row in rows}

    async def discard(self, runs: Collection[RunId], author: Author) -> int:
        tables = self._tables
        with tables.transaction():
            dead = [row for run in dict.fromkeys(runs) if (row := tables.runs.get(run)) is not None and row.dead]
            for row in dead:
                row.dealt_with = row.discarded = True
            tables.audit("runs.discard", author, [Change(row.tenant, row.id) for row in dead])
            return len(dead)

    async def bring_back(self, runs: Collection[RunId], author: Author) -> int:
        tables = self._tables
        with tables.transaction():
            back = [row for run in dict.fromkeys(runs) if (row := tables.runs.get(run)) is not None and row.discarded]
            for row in back:
                row.dealt_with = row.discarded = False
            tables.audit("runs.bring_back", author, [Change(row.tenant, row.id) for row in back])
            return len(back)

    async def purge(self, ids: Collection[RunId | JobId], author: Author) -> list[str]:
        tables = self._tables
        with tables.transaction():
            purged: list[Change] = []
            for identifier in dict.fromkeys(ids):
                run = tables.runs.get(RunId(identifier))
                if run is not None and run.state.ended:
                    tables.purge_run(run)
                    purged.append(Change(run.tenant, run.id))
                job = tables.jobs.get(JobId(identifier))
                if job is not None and not job.ticking:
                    tables.purge_job(job)
                    purged.append(Change(job.tenant, job.id))
            tables.audit("jobs.purge", author, purged)
            return [change.target for change in purged]

    async def retag(
        self, ids: Collection[RunId | JobId], add: Collection[str], remove: Collection[str], author: Author
    ) -> int:
        tables = self._tables
        with tables.transaction() as now:
            changes: list[Change] = []
            for identifier in dict.fromkeys(ids):
                run, job = tables.runs.get(RunId(identifier)), tables.jobs.get(JobId(identifier))
                if run is not None and run.job_id is None and author.tenant in (None, run.tenant):
                    about = run.about or About()
                    tags = retagged(about.tags, add, remove)
                    if tags is not None:
                        changes.append(_describe_retag(run.tenant, run.id, about.tags, tags))
                        changed = msgspec.structs.replace(about, tags=tags)
                        run.about = None if changed == About() else changed
                if job is not None and author.tenant in (None, job.tenant):
                    tags = retagged(job.spec.tags, add, remove)
                    if tags is not None:
                        changes.append(_describe_retag(job.tenant, job.id, job.spec.tags, tags))
                        job.spec = msgspec.structs.replace(job.spec, tags=tags)
                        tables.add_version(job, author.name, author.why)
                        job.updated_at = now
            tables.audit("jobs.retag", author, changes)
            return len(changes)

    async def pause(self, pause: Pause, author: Author) -> None:
        tables = self._tables
        with tables.transaction() as now:
            there = tables.pauses.get((pause.tenant, pause.queue))
            if there is not None and not there.is_over(now) and there.until == pause.until:
                return
            tables.pauses[pause.tenant, pause.queue] = msgspec.structs.replace(
                pause, since=now, author=author.name, why=author.why
            )
            tables.audit("queues.pause", author, [Change(pause.tenant or "", pause.queue or "*")])

    async def resume(self, tenant: str | None, queue: str | None, author: Author, *, back: Pause | None = None) -> bool:
        tables = self._tables
        with tables.transaction() as now:
            there = tables.pauses.get((tenant, queue))
            lifted = there is not None and not there.is_over(now)
            if there is not None and lifted:
                # Kept for a while: runs that it held back do not count as late.
                over = msgspec.structs.replace(there, until=now)
                tables.pauses[tenant, queue] = over if back is None or back.is_over(now) else back
                tables.audit("queues.resume", author, [Change(tenant or "", queue or "*")])
            return lifted

    async def put_queue_policy(self, queue: str, policy: QueuePolicy, author: Author) -> None:
        policy.check()
        tables = self._tables
        with tables.transaction():
            before = tables.get_queue_policy(queue)
            tables.queue_policies[queue] = policy
            differs = what_differs(before.words(), policy.words())
            if differs is not None:
                tables.audit("queues.set", author, [Change("", queue, *differs)])

    async def drain(self, worker: SessionId, author: Author) -> bool:
        tables = self._tables
        with tables.transaction():
            row = tables.find_live_session(worker)
            if row is None or row.kind != "worker":
                return False
            if not row.draining:
                row.draining = True
                tables.audit("workers.drain", author, [Change("", str(worker))])
            return True

    async def revoke_lease(self, scheduler: SessionId, author: Author) -> Instant | None:
        tables = self._tables
        with tables.transaction() as now:
            row = tables.find_live_session(scheduler)
            if row is None or row.kind != "scheduler":
                return None
            row.live = False
            tables.audit("schedulers.revoke", author, [Change("", str(scheduler))])
            return now


def _describe_retag(tenant: str, target: str, before: tuple[str, ...], after: tuple[str, ...]) -> Change:
    return Change(tenant, target, *(what_differs({"tags": before}, {"tags": after}) or ()))
