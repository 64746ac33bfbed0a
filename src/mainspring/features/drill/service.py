"""Drill service: revokes a scheduler's lease, or watches while its process is killed, and reports the effect."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from mainspring.core.model.base.errors import Conflict, Invalid, NotFound
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Instant, Micros
from mainspring.core.model.schedules.job import Job
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import Catalog, RunFilter, SessionView
from mainspring.core.ports.storage.operations import Operations
from mainspring.core.store import Store
from mainspring.features.drill.model import ObservedJob, TickOutcome, check_watch, judge_ticks, list_expected_ticks

#: Interval of the checks who owns the shards.
_POLL_INTERVAL: Micros = 20 * MILLISECOND
#: Ticks due in this last part of the watch are not judged, since they may not have fired yet.
_UNJUDGED_TAIL: Micros = 2 * SECOND
#: Recurring jobs watched: those with the earliest ticks.
_MAX_JOBS = 200
_MAX_ROWS = 1_000


class DrillStore(Store, Catalog, Operations, Protocol):
    """The store methods that a drill uses."""


class DrillReport(msgspec.Struct, frozen=True, kw_only=True):
    scheduler: SessionView
    #: Schedulers that were alive, including this one.
    schedulers: int
    #: How long its shards had no owner; None if they were not all taken over during the watch.
    without_owner: Micros | None
    #: Names of the other schedulers that owned shards then. Empty if only the same process took them back.
    taken_over_by: tuple[str, ...]
    jobs: int
    ticks: TickOutcome
    watched: Micros

    @property
    def passed(self) -> bool:
        return self.without_owner is not None and bool(self.taken_over_by) and self.ticks.passed


class Drill:
    """Runs drills. There is nothing to undo: the scheduler notices the lost lease at its next renewal, and rejoins."""

    def __init__(self, store: DrillStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def run(self, name: str | None, watch: Micros, author: Author, *, revoke: bool = True) -> DrillReport:
        """Run a drill and return its report.

        ``name``: a scheduler's name or number; None: the one with the most shards. Without ``revoke`` the drill only
        watches while the caller kills the process.
        """
        check_watch(watch)
        schedulers = await self._store.sessions("scheduler")
        target = _choose_scheduler(schedulers, name)
        now = await self._store.now()
        shards = list(range(self._store.shards))
        jobs = await self._store.due_jobs(shards, now + watch, _MAX_JOBS)
        ticks = {job.id: list_expected_ticks(job, now + watch - _UNJUDGED_TAIL) for job in jobs}
        deadline = self._clock.monotonic() + watch
        revoked_at: Instant | None = None
        if revoke:
            revoked_at = await self._store.revoke_lease(target.id, author)
            if revoked_at is None:
                raise Conflict(f"scheduler {target.name} ended meanwhile")
        without_owner, owners = await self._watch(target, revoked_at, deadline)
        # The revoked process joins again: as a new session of the same name.
        known = {session.id for session in schedulers}
        taken_over_by = [one.name for one in owners if one.shards and (one.id in known or one.name != target.name)]
        await self._clock.sleep(max(deadline - self._clock.monotonic(), 0))
        observed = [await self._read_observed(job, ticks[job.id]) for job in jobs if ticks[job.id]]
        return DrillReport(
            scheduler=target,
            schedulers=len(schedulers),
            without_owner=without_owner,
            taken_over_by=tuple(taken_over_by),
            jobs=len(observed),
            ticks=judge_ticks(observed),
            watched=watch,
        )

    async def _watch(
        self, target: SessionView, revoked_at: Instant | None, deadline: Micros
    ) -> tuple[Micros | None, list[SessionView]]:
        """Wait until other sessions own all shards.

        Return how long some had no owner, or None if time ran out, and these sessions.
        """
        renewed = target.lease_until - target.lease
        while self._clock.monotonic() < deadline:
            alive = await self._store.sessions("scheduler")
            others = [session for session in alive if session.id != target.id]
            if sum(session.shards for session in others) >= self._store.shards:
                # The time of a kill is unknown; it was after the last renewal.
                return max(await self._store.now() - (renewed if revoked_at is None else revoked_at), 0), others
            renewed = max(
                [renewed, *(session.lease_until - target.lease for session in _select_session(target.id, alive))]
            )
            await self._clock.sleep(_POLL_INTERVAL)
        return None, []

    async def _read_observed(self, job: Job, ticks: tuple[Instant, ...]) -> ObservedJob:
        ledger = await self._store.ledger(job.id, ticks[0], ticks[-1] + 1, _MAX_ROWS)
        # ``since`` filters by run id, and the id of a tick's run is derived from the time of the tick.
        wanted = RunFilter(tenant=job.tenant, job=job.id, since=ticks[0] - SECOND)
        runs = await self._store.list_runs(wanted, None, _MAX_ROWS)
        return ObservedJob(ticks=ticks, targets=job.spec.targets, ledger=tuple(ledger), runs=tuple(runs.items))


def _select_session(session: SessionId, alive: Sequence[SessionView]) -> list[SessionView]:
    return [one for one in alive if one.id == session]


def _choose_scheduler(schedulers: Sequence[SessionView], name: str | None) -> SessionView:
    if not schedulers:
        raise Conflict("no scheduler is alive")
    if name is None:
        return max(schedulers, key=lambda scheduler: scheduler.shards)
    matching = [scheduler for scheduler in schedulers if name in (str(scheduler.id), scheduler.name)]
    if len(matching) > 1:
        raise Invalid("scheduler", f"{name!r} is the name of several schedulers", "use the number")
    if not matching:
        raise NotFound(f"there is no scheduler {name!r}")
    return matching[0]
