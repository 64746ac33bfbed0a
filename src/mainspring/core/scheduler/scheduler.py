"""The scheduler: queues due runs and fires the ticks of recurring jobs, in the shards it owns.

Each pass of ``Scheduler.tick`` does up to four things:

1. ``_look`` asks the store to queue due runs (``stage``), at least every ``LOOK_EVERY``. The store's index is the
   source of truth: every look covers all that is due.
2. ``_fire_ready`` fires ticks that were planned in advance.
3. ``_fire_unforeseen`` fires due jobs that were not on the agenda: new, late or changed ones, or those of new shards.
4. ``_plan_following`` plans the next ticks of jobs that just fired.

The agenda is an optimization: it says when a look is worthwhile, and has the cron arithmetic done before many ticks
come due together. Without it the same work happens later.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from mainspring.core.cluster.shards import ShardKeeper
from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import MILLISECOND, Instant, Micros
from mainspring.core.model.schedules.job import Fire, Job
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.wakeups import Wakeups, queue_topic
from mainspring.core.runtime.metrics.run_metrics import RunMetrics
from mainspring.core.runtime.service import TickingService
from mainspring.core.scheduler.agenda import Agenda
from mainspring.core.scheduler.closed_times import ClosedTimes
from mainspring.core.scheduler.datacenter_choice import DatacenterChoice
from mainspring.core.scheduler.loader import HORIZON, Loader, SchedulerStore
from mainspring.core.scheduler.planner import Planner, still_good
from mainspring.core.scheduler.store_time import StoreTime

#: The longest pause between two looks, and so the greatest delay of a due time that was not on the agenda.
LOOK_EVERY: Micros = 50 * MILLISECOND
#: The shortest pause, so that a steady stream is staged in batches.
_LOOKS_APART: Micros = 2 * MILLISECOND
_STAGE_LIMIT = 1_000
_FIRE_LIMIT = 500
#: Keeps the transaction short even when catching up after a long outage.
_TICK_LIMIT = 2_000
_IN_FLIGHT = 2
#: At most this many fires are sent in one request; more are split.
_ALONE = 250
_FOLLOW_LIMIT = 100


class Scheduler(TickingService):
    """Stages and fires for the shards it owns. It asks the keeper before every request which shards those are."""

    def __init__(
        self,
        store: SchedulerStore,
        keeper: ShardKeeper,
        wakeups: Wakeups,
        clock: Clock,
        *,
        use_wheel: bool = True,
        metrics: RunMetrics | None = None,
    ) -> None:
        super().__init__("scheduler", clock, wakeups.listen([]))
        self._store = store
        self._keeper = keeper
        self._wakeups = wakeups
        self._agenda = Agenda()
        self._metrics = metrics
        self._planner = Planner(clock, ClosedTimes(store, self.log), self.log)
        self._datacenters = DatacenterChoice(store, clock)
        self._time = StoreTime(clock)
        self._loader = (
            Loader(
                store,
                self._agenda,
                self._planner,
                self._time,
                clock,
                wakeups,
                shards=self._shards,
                busy=lambda: bool(self._ready or self._more or self._unforeseen),
                loaded=self.wakeup.notify,
            )
            if use_wheel
            else None
        )
        #: Fires that are due.
        self._ready: deque[Fire] = deque()
        #: Jobs that have just fired and will fire again within the horizon.
        self._following: deque[Job] = deque()
        #: The last look left work due: runs, or recurring jobs that were not on the agenda.
        self._more = False
        self._unforeseen = False
        self._looked_at: Micros | None = None
        self._look_took: Micros = 0
        keeper.on_change(self._shards_changed)

    @property
    def foreseen(self) -> int:
        """The number of upcoming due times and ticks on the agenda."""
        return len(self._agenda)

    async def start(self) -> None:
        await super().start()
        if self._loader is not None:
            await self._loader.start()

    async def stop(self) -> None:
        if self._loader is not None:
            await self._loader.stop()
        await super().stop()

    async def tick(self) -> Micros:
        if not self._shards():
            self._forget()
            return LOOK_EVERY
        marks = self._take_due()
        if self._ready:
            marks += await self._fire_ready()
        if marks or self._more or self._next_look() <= self.clock.monotonic():
            await self._look(marks)
        if self._unforeseen and not self._ready:
            await self._fire_unforeseen()
        if self._following and not self._ready:
            await self._plan_following()
        return self._wait()

    def _take_due(self) -> list[Instant]:
        """Move due fires from the agenda to the ready queue, and return the due marks."""
        if not self._time.known:
            return []
        marks, fires = self._agenda.take_due(self._time.now())
        self._ready.extend(fires)
        return marks

    async def _look(self, marks: Sequence[Instant]) -> None:
        """Queue due runs, and check whether recurring jobs are due."""
        member, shards = self._keeper.member, self._shards()
        if member is None or not shards:
            return
        sent = self.clock.monotonic()
        with self._counting_failures("stage"):
            staged = await self._store.stage(member, shards, _STAGE_LIMIT)
        self._time.learn(sent, staged.now)
        self._looked_at = self.clock.monotonic()
        self._look_took = self._looked_at - sent
        if self._metrics is not None:
            self._metrics.staged += staged.runs
            self._metrics.called("stage", self._look_took, staged.runs)
        self._more = staged.more
        self._unforeseen = staged.schedules_due
        self._notify(staged.queues)
        for due in marks:
            if due > staged.now:
                # The estimate of the store's time was ahead: look again.
                self._agenda.mark(due, staged.now)

    async def _fire_ready(self) -> list[Instant]:
        """Fire one round of planned fires; returns when to look for those that were not applied.

        Fires that are late by now are left for ``_fire_unforeseen``, which plans them again.
        """
        now = self._time.now()
        fires = [self._ready.popleft() for _ in range(min(len(self._ready), _IN_FLIGHT * _FIRE_LIMIT))]
        good = [fire for fire in fires if still_good(fire, now)]
        if await self._fire(good) == len(fires):
            return []
        # A job was changed after it was planned, or the estimate of the store's time was ahead. A look finds what is
        # still due, and another one what will be due in a moment.
        self._looked_at = None
        return [fire.job.next_fire for fire in fires if fire.job.next_fire is not None]

    async def _fire_unforeseen(self) -> None:
        """Fire jobs that are due in the store but were not on the agenda: new, late or changed jobs, and new shards."""
        self._unforeseen = False
        shards = self._shards()
        if not shards:
            return
        now = self._time.now()
        jobs = await self._store.due_jobs(shards, now, _FIRE_LIMIT)
        for job in jobs:
            self._agenda.forget(job.id)
        fires = await self._planner.plan_now(jobs, now, _TICK_LIMIT)
        applied = await self._fire(fires)
        self._unforeseen = applied > 0 and (len(jobs) >= _FIRE_LIMIT or len(fires) < len(jobs))

    async def _fire(self, fires: Sequence[Fire]) -> int:
        """Fire in two concurrent requests; returns how many were applied. Failed fires stay due and are found again."""
        member, owned = self._keeper.member, self._keeper.owned()
        ours = [fire for fire in fires if fire.job.shard in owned]
        if member is None or not ours:
            return 0
        ours = list(await self._datacenters.apply(ours, self._time.now()))
        size = -(-len(ours) // _IN_FLIGHT) if len(ours) > _ALONE else len(ours)
        parts = [ours[at : at + size] for at in range(0, len(ours), size)]
        outcomes = await asyncio.gather(*(self._fire_part(member, part) for part in parts), return_exceptions=True)
        applied = 0
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            applied += outcome
        return applied

    async def _fire_part(self, member: SessionId, fires: Sequence[Fire]) -> int:
        sent = self.clock.monotonic()
        with self._counting_failures("fire"):
            answers = await self._store.fire(member, fires)
        self._notify(dict.fromkeys(queue for fired in answers for queue in fired.queues))
        applied = [fire for fire, fired in zip(fires, answers, strict=True) if fired.applied]
        if len(applied) < len(fires):
            self.log.debug("fires rejected, jobs or shards changed", jobs=len(fires) - len(applied))
        if self._metrics is not None:
            self._metrics.called("fire", self.clock.monotonic() - sent, len(applied))
            self._metrics.fire(applied, self._time.now())
        if self._loader is not None:
            self._foresee(applied)
        return len(applied)

    def _foresee(self, applied: Iterable[Fire]) -> None:
        """Note the consequences of fires within the horizon.

        Due times of runs go to the agenda, next ticks to the jobs that are planned next.
        """
        now = self._time.now()
        for fire in applied:
            for tick in fire.ticks:
                if now < tick.due <= now + HORIZON:
                    self._agenda.mark(tick.due, now)
            if fire.next_fire is not None and fire.next_fire <= now + HORIZON:
                # Firing changes the schedule's row once. If it changed more often, the store rejects this guess.
                job = fire.job
                following = msgspec.structs.replace(job, next_fire=fire.next_fire, next_tick=fire.next_tick)
                self._following.append(msgspec.structs.replace(following, rev=job.rev + 1))

    async def _plan_following(self) -> None:
        following = [self._following.popleft() for _ in range(min(_FOLLOW_LIMIT, len(self._following)))]
        for fire in await self._planner.plan_ahead(following):
            self._agenda.plan(fire, self._time.now())

    def _wait(self) -> Micros:
        if self._ready or self._more or self._unforeseen or self._following:
            return 0
        now = self.clock.monotonic()
        wait = self._next_look() - now
        due = self._agenda.next_due()
        if due is not None:
            wait = min(wait, due - self._time.now())
        if self._looked_at is not None:
            # Looks take at most half of the time, even if the store is slow.
            apart = max(_LOOKS_APART, min(self._look_took, LOOK_EVERY))
            wait = max(wait, self._looked_at + apart - now)
        return wait

    def _next_look(self) -> Micros:
        return 0 if self._looked_at is None else self._looked_at + LOOK_EVERY

    def _shards(self) -> list[int]:
        return sorted(self._keeper.owned())

    def _shards_changed(self) -> None:
        self._looked_at = None
        self.wakeup.notify()
        if self._loader is not None:
            self._loader.wakeup.notify()

    def _forget(self) -> None:
        """Clear all plans: no shard is owned, and their new owners plan for them."""
        self._ready.clear()
        self._following.clear()
        self._agenda.clear()
        self._more = self._unforeseen = False

    @contextmanager
    def _counting_failures(self, call: str) -> Iterator[None]:
        try:
            yield
        except StoreUnavailable:
            if self._metrics is not None:
                self._metrics.failed(call)
            raise

    def _notify(self, queues: Iterable[str]) -> None:
        topics = [queue_topic(queue) for queue in queues]
        if topics:
            self._wakeups.notify(topics)
