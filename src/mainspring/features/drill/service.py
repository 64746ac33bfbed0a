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
from mainspring.features.drill.model import Observed, TickFigures, check_watch, coming_ticks, judge_ticks

#: Interval of the checks who owns the shards.
_LOOK_EVERY: Micros = 20 * MILLISECOND
#: Ticks due in this last part of the watch are not judged, since they may not have fired yet.
_AFTERWARDS: Micros = 2 * SECOND
#: Recurring jobs watched: those with the earliest ticks.
_MOST_JOBS = 200
_MOST_ROWS = 1_000


class DrillStore(Store, Catalog, Operations, Protocol):
    """The store methods that a drill uses."""


class DrillReport(msgspec.Struct, frozen=True, kw_only=True):
    scheduler: SessionView
    #: Schedulers that were alive, including this one.
    schedulers: int
    #: How long its shards had no owner; None if they were not all taken over during the watch.
    without_owner: Micros | None
    jobs: int
    ticks: TickFigures
    watched: Micros

    @property
    def passed(self) -> bool:
        return self.without_owner is not None and self.ticks.harmless


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
        victim = _chosen(schedulers, name)
        now = await self._store.now()
        shards = list(range(self._store.shards))
        jobs = await self._store.due_jobs(shards, now + watch, _MOST_JOBS)
        ticks = {job.id: coming_ticks(job, now + watch - _AFTERWARDS) for job in jobs}
        ends = self._clock.monotonic() + watch
        gone: Instant | None = None
        if revoke:
            gone = await self._store.revoke_lease(victim.id, author)
            if gone is None:
                raise Conflict(f"scheduler {victim.name} has just ended")
        without_owner = await self._watch(victim, gone, ends)
        await self._clock.sleep(max(ends - self._clock.monotonic(), 0))
        observed = [await self._observe(job, ticks[job.id]) for job in jobs if ticks[job.id]]
        return DrillReport(
            scheduler=victim,
            schedulers=len(schedulers),
            without_owner=without_owner,
            jobs=len(observed),
            ticks=judge_ticks(observed),
            watched=watch,
        )

    async def _watch(self, victim: SessionView, gone: Instant | None, ends: Micros) -> Micros | None:
        """Wait until others own all shards; return how long some had no owner, or None if time ran out."""
        renewed = victim.lease_until - victim.lease
        while self._clock.monotonic() < ends:
            alive = await self._store.sessions("scheduler")
            others = [session for session in alive if session.id != victim.id]
            if sum(session.shards for session in others) >= self._store.shards:
                # The time of a kill is unknown; it was after the last renewal.
                return max(await self._store.now() - (renewed if gone is None else gone), 0)
            renewed = max([renewed, *(session.lease_until - victim.lease for session in _only(victim.id, alive))])
            await self._clock.sleep(_LOOK_EVERY)
        return None

    async def _observe(self, job: Job, ticks: tuple[Instant, ...]) -> Observed:
        ledger = await self._store.ledger(job.id, ticks[0], ticks[-1] + 1, _MOST_ROWS)
        # ``since`` filters by run id, and the id of a tick's run is derived from the time of the tick.
        wanted = RunFilter(tenant=job.tenant, job=job.id, since=ticks[0] - SECOND)
        runs = await self._store.list_runs(wanted, None, _MOST_ROWS)
        return Observed(ticks=ticks, targets=job.spec.targets, ledger=tuple(ledger), runs=tuple(runs.items))


def _only(session: SessionId, alive: Sequence[SessionView]) -> list[SessionView]:
    return [one for one in alive if one.id == session]


def _chosen(schedulers: Sequence[SessionView], name: str | None) -> SessionView:
    if not schedulers:
        raise Conflict("no scheduler is alive: there is nothing to drill")
    if name is None:
        return max(schedulers, key=lambda scheduler: scheduler.shards)
    meant = [scheduler for scheduler in schedulers if name in (str(scheduler.id), scheduler.name)]
    if len(meant) > 1:
        raise Invalid("scheduler", f"{name!r} is the name of several", "their numbers")
    if not meant:
        raise NotFound(f"there is no scheduler {name!r}")
    return meant[0]
