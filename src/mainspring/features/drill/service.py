"""Takes a scheduler's lease away on purpose, or watches somebody kill it, and tells what that did."""

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

#: How often it is looked who owns the shards.
_LOOK_EVERY: Micros = 20 * MILLISECOND
#: What is due in the last moments of the watch is given this long to be fired.
_AFTERWARDS: Micros = 2 * SECOND
#: So many recurring jobs are watched, those that tick first.
_MOST_JOBS = 200
_MOST_ROWS = 1_000


class DrillStore(Store, Catalog, Operations, Protocol):
    """What a drill asks of a store."""


class DrillReport(msgspec.Struct, frozen=True, kw_only=True):
    scheduler: SessionView
    #: How many schedulers there were, it included.
    schedulers: int
    #: Nobody acted on its shards for so long; None: they were never all taken over while it was watched.
    without_owner: Micros | None
    jobs: int
    ticks: TickFigures
    watched: Micros

    @property
    def passed(self) -> bool:
        return self.without_owner is not None and self.ticks.harmless


class Drill:
    """Nothing has to be undone: a scheduler whose lease is gone notices at its next renewal, and joins again."""

    def __init__(self, store: DrillStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def run(self, name: str | None, watch: Micros, author: Author, *, revoke: bool = True) -> DrillReport:
        """``name``: a scheduler's name or number; without one, that with the most shards. Without ``revoke`` the drill
        only watches: whoever asks kills the process meanwhile."""
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
        """Until others own all shards; how long nobody acted on some of them."""
        renewed = victim.lease_until - victim.lease
        while self._clock.monotonic() < ends:
            alive = await self._store.sessions("scheduler")
            others = [session for session in alive if session.id != victim.id]
            if sum(session.shards for session in others) >= self._store.shards:
                # Of one that was killed it is not known when, but that it was after its last renewal.
                return max(await self._store.now() - (renewed if gone is None else gone), 0)
            renewed = max([renewed, *(session.lease_until - victim.lease for session in _only(victim.id, alive))])
            await self._clock.sleep(_LOOK_EVERY)
        return None

    async def _observe(self, job: Job, ticks: tuple[Instant, ...]) -> Observed:
        ledger = await self._store.ledger(job.id, ticks[0], ticks[-1] + 1, _MOST_ROWS)
        # The id of a tick's run is made of its tick.
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
