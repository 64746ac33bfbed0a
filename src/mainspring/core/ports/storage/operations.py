"""What people change, beyond submitting. Each change and its audit row are one transaction."""

from collections.abc import Collection, Sequence
from typing import Protocol

from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.limits.queues import QueuePolicy
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.restored import KnownEnd
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import Pause
from mainspring.core.store import Accepted


class Operations(Protocol):
    async def edit_run(self, run: NewRun, author: Author, *, was: RunView | None = None) -> Accepted | None:
        """Change a one-off that has never started: everything but its id, tenant and time of making is taken from
        ``run``; its ``job``, ``replay_of``, ``idempotency`` and ``author`` are not looked at. None if it was ever
        claimed, has ended, is a recurring job's or another tenant's, or is not there.

        It gets the state that a submit would give it now. What stays queued keeps its age. What holds its ordering key
        keeps it as long as it is due and no other of its line comes before it by (due, id); otherwise it lets the next
        one go. Audited with what differs, if anything does. No event, but ``run.queued`` for what waited before.

        ``was``: the run as the caller read it, with its payload. If anything that can be edited is not so any more, the
        answer is a conflict, and nothing is done: somebody was quicker, and their change would be lost.
        """
        ...

    async def finish(self, ends: Sequence[KnownEnd], author: Author) -> dict[RunId, RunState]:
        """Give runs the ends that they are known to have had elsewhere, whatever they are here; what they are now.
        Unknown ids are missing in the answer, and what has ended stays what it is.

        It is no attempt: none is counted or charged, and when it began is not known any more. Otherwise it is an end
        like others: what waits for the run, its key or its limits goes on by it, and what failed is a dead letter.
        Whoever runs it just then finds out by its fence.
        """
        ...

    async def discard(self, runs: Collection[RunId], author: Author) -> int:
        """Mark dead letters as dealt with; how many were. They stay in history. The author says why. What is not a dead
        letter, or not any more, is passed over."""
        ...

    async def bring_back(self, runs: Collection[RunId], author: Author) -> int:
        """Those of them that were discarded, and not replayed since, are dead letters again; how many."""
        ...

    async def purge(self, ids: Collection[RunId | JobId], author: Author) -> list[str]:
        """Delete for good runs that have ended, with their attempts and logs, and jobs that are cancelled or finished,
        with versions and ledger, not their runs; which were there and are gone now, in the order given. A purged job's
        name is free; a run of it that is still on its way goes on."""
        ...

    async def retag(
        self, ids: Collection[RunId | JobId], add: Collection[str], remove: Collection[str], author: Author
    ) -> int:
        """Change tags; how many were changed. A recurring job gets a new version. What would have too many tags, or is
        another tenant's than the author's, is left alone; so are a recurring job's runs, which have no tags of their
        own. What is to be removed and added stays. Wherever a one-off is on its way, also when it has ended. One row
        a tenant in the audit, of a single change with the tags before and after."""
        ...

    async def pause(self, pause: Pause, author: Author) -> None:
        """Claim nothing of this any more; what runs goes on, ticks fire and runs are queued as ever. Idempotent: one
        that is there stays as it is, unless it ends at another time. One with an ``until`` is over by the store's
        clock, whoever looks."""
        ...

    async def resume(self, tenant: str | None, queue: str | None, author: Author, *, back: Pause | None = None) -> bool:
        """Lift exactly that pause; whether it was there. ``back``: the pause of the same that it had taken the place of
        is there again, with its time, author and reason, unless it is over."""
        ...

    async def put_queue_policy(self, queue: str, policy: QueuePolicy, author: Author) -> None:
        """Say how a queue works from now on; a policy without anything in it takes back what was said. Whoever is just
        claiming ends first. Nothing that runs is stopped, and nothing that waits is lost. Audited if it changes
        anything."""
        ...

    async def drain(self, worker: SessionId, author: Author) -> bool:
        """Ask a worker to finish what it runs and leave; its next beat says so. Idempotent. False: no such worker
        lives."""
        ...

    async def revoke_lease(self, scheduler: SessionId, author: Author) -> Instant | None:
        """Bury a scheduler as if its lease had run out this moment: others may take its shards at once, and whatever
        it still writes is refused. It finds out by its next renewal. When that was; None: no such scheduler lives."""
        ...
