"""The port for user operations other than submits. Each change and its audit row are one transaction."""

from collections.abc import Collection, Sequence
from typing import Protocol

from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.limits.queues import QueuePolicy
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.restored import KnownOutcome
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.answers import SubmitResult
from mainspring.core.ports.storage.catalog import Pause


class Operations(Protocol):
    async def edit_run(self, run: NewRun, author: Author, *, was: RunView | None = None) -> SubmitResult | None:
        """Edit a one-off run that has never started.

        1. Everything but its id, tenant and creation time is taken from ``run``. The fields ``job``, ``replay_of``,
           ``idempotency`` and ``author`` of ``run`` are ignored.
        2. Returns None if the run was ever claimed, has ended, belongs to a recurring job or another tenant, or does
           not exist.
        3. The run gets the state that a submit would give it now. A run that stays queued keeps its age.
        4. A run that holds its ordering key keeps it as long as it is due and no other run of its line precedes it by
           (due, id). Otherwise the next run of the line is released.
        5. Differences are audited. No event is emitted, except ``run.queued`` for a run that was waiting.
        6. ``was``: the run as the caller read it, with its payload. If any editable field has changed since, the answer
           is a conflict and nothing is done, so that no concurrent change is lost.
        """
        ...

    async def finish(self, ends: Sequence[KnownOutcome], author: Author) -> dict[RunId, RunState]:
        """Apply ends that runs are known to have had elsewhere, in any state here, and return their states.

        1. Unknown ids are missing in the answer. Runs that have ended keep their state.
        2. No attempt is counted or charged, and the start time becomes unknown.
        3. Otherwise it is an end like others: dependents, the ordering key and limits are released, and a failed run is
           a dead letter.
        4. A worker that is executing the run finds out by its fence.
        """
        ...

    async def discard(self, runs: Collection[RunId], author: Author) -> int:
        """Mark dead letters as discarded, and return how many were marked.

        They stay in history. The author gives the reason. Runs that are not, or no longer, dead letters are skipped.
        """
        ...

    async def bring_back(self, runs: Collection[RunId], author: Author) -> int:
        """Restore discarded dead letters that were not replayed since, and return how many were restored."""
        ...

    async def purge(self, ids: Collection[RunId | JobId], author: Author) -> list[str]:
        """Delete ended runs and cancelled or finished jobs for good.

        Returns the ids that were deleted, in the given order.

        1. Runs are deleted with their attempts and logs.
        2. Jobs are deleted with their versions and ledger, but not their runs.
        3. The name of a deleted job is free. Its active runs continue.
        """
        ...

    async def retag(
        self, ids: Collection[RunId | JobId], add: Collection[str], remove: Collection[str], author: Author
    ) -> int:
        """Change tags, and return how many objects were changed.

        1. A recurring job gets a new version. Its runs have no tags of their own and are left alone.
        2. Objects that would have too many tags, or belong to another tenant than the author's, are left alone.
        3. A tag in both ``add`` and ``remove`` stays.
        4. A one-off run is changed in any state, even if it has ended.
        5. Audited with one row per tenant; a single change with the tags before and after.
        """
        ...

    async def pause(self, pause: Pause, author: Author) -> None:
        """Stop claiming these runs. Running runs continue, ticks fire and runs are queued as usual.

        1. Idempotent: an existing pause is left unchanged, unless ``until`` differs.
        2. A pause with an ``until`` expires at that time by the store's clock, even if no scheduler is running.
        """
        ...

    async def resume(self, tenant: str | None, queue: str | None, author: Author, *, back: Pause | None = None) -> bool:
        """Remove exactly this pause, and return whether it existed.

        ``back``: restore the pause that it had replaced, with its time, author and reason, unless that one has expired.
        """
        ...

    async def put_queue_policy(self, queue: str, policy: QueuePolicy, author: Author) -> None:
        """Replace the policy of a queue; an empty policy removes it.

        1. Concurrent claims finish first.
        2. No running run is stopped, and no waiting run is lost.
        3. Audited if anything changes.
        """
        ...

    async def drain(self, worker: SessionId, author: Author) -> bool:
        """Ask a worker to drain; it learns of it with its next heartbeat. Idempotent. False: no such live worker."""
        ...

    async def revoke_lease(self, scheduler: SessionId, author: Author) -> Instant | None:
        """Expire a scheduler's lease at once.

        1. Other schedulers may take its shards at once, and its later writes are rejected.
        2. The scheduler finds out with its next renewal.
        3. Returns the time. None: no such live scheduler.
        """
        ...
