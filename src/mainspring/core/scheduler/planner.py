"""Plans the ticks of jobs in slices, so that cron arithmetic never blocks the loop that renews the leases."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mainspring.core.model.base.ids import JobId
from mainspring.core.model.base.instant import MILLISECOND, Instant, Micros
from mainspring.core.model.schedules.job import Fire, Job
from mainspring.core.model.schedules.plan import plan_job
from mainspring.core.ports.clock import Clock
from mainspring.core.scheduler.closed_times import ClosedTimes

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

#: The time after which other tasks get a turn: some hundred ordinary ticks, or one long catch-up.
_SLICE: Micros = 4 * MILLISECOND


class Planner:
    """Calls ``plan_job`` for many jobs. A job that cannot be planned is logged once and does not hold up the others."""

    def __init__(self, clock: Clock, closed: ClosedTimes, log: "FilteringBoundLogger") -> None:
        self._clock = clock
        self._closed = closed
        self._log = log
        self._broken: dict[JobId, int] = {}

    async def plan_ahead(self, jobs: Sequence[Job]) -> list[Fire]:
        """Plan each job's next tick, assuming that it fires in time."""
        return await self._plan(jobs, None, math.inf)

    async def plan_now(self, jobs: Sequence[Job], now: Instant, most_ticks: int) -> list[Fire]:
        """Plan every tick up to ``now``; only for the first jobs, if they have more than ``most_ticks``."""
        return await self._plan(jobs, now, most_ticks)

    async def _plan(self, jobs: Sequence[Job], now: Instant | None, most_ticks: float) -> list[Fire]:
        fires = []
        closed_periods = await self._closed.of(jobs)
        turn = self._clock.monotonic()
        for job in jobs:
            if job.next_fire is None or self._broken.get(job.id) == job.rev:
                continue
            try:
                fire = plan_job(
                    job, job.next_fire if now is None else max(now, job.next_fire), closed_periods.get(job.id)
                )
            except Exception:
                self._broken[job.id] = job.rev
                self._log.exception("cannot plan job", job=job.id, job_name=job.spec.name)
                continue
            fires.append(fire)
            most_ticks -= len(fire.ticks)
            if most_ticks <= 0:
                break
            if self._clock.monotonic() - turn > _SLICE:
                await self._clock.sleep(0)
                turn = self._clock.monotonic()
        return fires


def still_good(fire: Fire, now: Instant) -> bool:
    """Return whether a planned fire is still what would be planned now: no later tick is due, and it is not late."""
    tick = fire.job.next_fire
    assert tick is not None
    return (fire.next_fire is None or now < fire.next_fire) and now - tick <= fire.job.spec.catch_up.grace
