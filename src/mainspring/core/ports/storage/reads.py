"""The port for reading runs, jobs and queues. Reads may be slightly behind concurrent writes."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.runs.view import AttemptView, RunView
from mainspring.core.model.schedules.job import Job, LedgerEntry


class PinnedDepth(msgspec.Struct, frozen=True, kw_only=True):
    """Queued runs of a queue that require a data center. The times are those of ``Depth``."""

    datacenter: str
    queued: int
    oldest_due: Instant | None = None
    oldest_ready: Instant | None = None


class QueueBacklog(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of a queue by state. The times leave out the runs in ``pinned``; the counts include them."""

    queue: str
    queued: int
    running: int
    #: Per data center: runs that only it may execute, or that it serves now because of a preference order.
    pinned: tuple[PinnedDepth, ...] = ()
    #: The due time of the oldest queued run.
    oldest_due: Instant | None = None
    #: Since when the longest-waiting startable run has been waiting for a worker. The wait begins when the run is due,
    #: when a limit, key or pause releases it, or when it returns from an attempt. None: no such run, or all are paused.
    oldest_ready: Instant | None = None


class RunViews(Protocol):
    async def runs(self, ids: Sequence[RunId], *, payloads: bool = False) -> list[RunView | None]:
        """Return runs by id from any state, in order. Payloads are included only on request."""
        ...

    async def attempts(self, run: RunId) -> list[AttemptView]:
        """Return the attempts of a run that did not succeed, in order."""
        ...

    async def jobs(self, ids: Sequence[JobId]) -> list[Job | None]:
        """Return jobs by id, with payloads, in order."""
        ...

    async def ledger(self, job: JobId, since: Instant, until: Instant, limit: int) -> list[LedgerEntry]:
        """Return the ticks of a job with ``since <= scheduled_at < until``, in order."""
        ...

    async def last_ticks(self, jobs: Sequence[JobId], limit: int) -> list[list[LedgerEntry]]:
        """Return the newest ``limit`` ledger rows of each job, oldest first, in the order of ``jobs``."""
        ...

    async def parents(self, run: RunId) -> list[RunView]:
        """Return the parents of a run, in the order they were named. Parents that are no longer kept are missing."""
        ...

    async def parent_ids(self, run: RunId) -> list[RunId]:
        """Return the ids of a run's parents, including those that are no longer kept."""
        ...

    async def children(self, run: RunId, after: RunId | None, limit: int) -> list[RunView]:
        """Return the children of a run by id, starting after the id ``after``."""
        ...

    async def depths(self, tenant: str | None = None) -> list[QueueBacklog]:
        """Return the depth of every queue with work, by name; for one tenant or for all."""
        ...


class StoreReads(RunViews, Protocol):
    async def now(self) -> Instant: ...


class JobNames(Protocol):
    async def job_named(self, tenant: str, name: str) -> JobId | None:
        """Return the id of the job with this name."""
        ...
