"""Fills the agenda with due times within the horizon, so that the scheduler looks at the right moments."""

from collections.abc import Callable, Sequence
from typing import Protocol

from mainspring.core.model.base.instant import MILLISECOND, SECOND, Instant, Micros
from mainspring.core.model.schedules.job import Job
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.calendars import SchedulerCalendars
from mainspring.core.ports.storage.datacenters import DatacenterReads
from mainspring.core.ports.storage.reads import StoreReads
from mainspring.core.ports.wakeups import SCHEDULES, Wakeups
from mainspring.core.runtime.service import TickingService
from mainspring.core.scheduler.agenda import Agenda
from mainspring.core.scheduler.planner import Planner
from mainspring.core.scheduler.store_time import StoreTime
from mainspring.core.store import DueWork

#: How far ahead the agenda reaches.
HORIZON: Micros = 5 * SECOND

_LOAD_EVERY: Micros = SECOND
#: The shortest interval between loads after notifications, longer after a large load. Where much work comes due, the
#: scheduler looks every few milliseconds anyway and needs no marks.
_REST: Micros = 20 * MILLISECOND
_REST_PER_ROW: Micros = 200
_MARKS = 2_000
_JOBS = 1_000


class SchedulerStore(DueWork, StoreReads, SchedulerCalendars, DatacenterReads, Protocol):
    """The part of the store that a scheduler uses."""


class Loader(TickingService):
    """Loads ahead. Due times it misses are late by at most the scheduler's longest pause between two looks."""

    def __init__(
        self,
        store: SchedulerStore,
        agenda: Agenda,
        planner: Planner,
        time: StoreTime,
        clock: Clock,
        wakeups: Wakeups,
        *,
        shards: Callable[[], Sequence[int]],
        busy: Callable[[], bool],
        loaded: Callable[[], None],
    ) -> None:
        super().__init__("loader", clock, wakeups.listen([SCHEDULES]))
        self._store = store
        self._agenda = agenda
        self._planner = planner
        self._time = time
        self._shards = shards
        self._busy = busy
        self._loaded = loaded
        self._resting_until: Micros = 0

    async def tick(self) -> Micros:
        resting = self._resting_until - self.clock.monotonic()
        if resting > 0:
            return resting
        shards = self._shards()
        if not shards or self._busy():
            # While the scheduler is working off a backlog, due work is found without being loaded.
            return _REST if shards else _LOAD_EVERY
        if not self._time.known:
            sent = self.clock.monotonic()
            self._time.learn(sent, await self._store.now())
        until = self._time.now() + HORIZON
        marks, covered_until = await self._load_marks(shards, until)
        jobs = await self._load_jobs(shards, until)
        self._loaded()
        rest = max(_REST, (marks + jobs) * _REST_PER_ROW)
        self._resting_until = self.clock.monotonic() + rest
        return max(rest, min(_LOAD_EVERY, (covered_until - self._time.now()) // 2))

    async def _load_marks(self, shards: Sequence[int], until: Instant) -> tuple[int, Instant]:
        """Load the marks; returns their number, and the time up to which they are complete."""
        marks = await self._store.upcoming(shards, until, _MARKS)
        now = self._time.now()
        for _, due in marks:
            self._agenda.mark(due, now)
        return len(marks), marks[-1][1] if len(marks) >= _MARKS else until

    async def _load_jobs(self, shards: Sequence[int], until: Instant) -> int:
        jobs = await self._store.due_jobs(shards, until, _JOBS)
        await self._plan(jobs)
        if len(jobs) < _JOBS or len(shards) == 1:
            return len(jobs)
        # There is no second page, but half of the shards have about half of the jobs.
        middle = len(shards) // 2
        return await self._load_jobs(shards[:middle], until) + await self._load_jobs(shards[middle:], until)

    async def _plan(self, jobs: Sequence[Job]) -> None:
        now = self._time.now()
        # Jobs that are due already belong to the scheduler: it may be firing this very job.
        ahead = [
            job
            for job in jobs
            if job.next_fire is not None and job.next_fire > now and not self._agenda.knows(job.id, job.rev)
        ]
        for fire in await self._planner.plan_ahead(ahead):
            self._agenda.plan(fire, now)
