"""Upcoming ticks of a job, and the effect of calendars on them."""

from typing import NamedTuple

from mainspring.core.model.base.instant import Instant
from mainspring.core.model.schedules.calendar import WhenClosed
from mainspring.core.model.schedules.closed_periods import ClosedPeriods
from mainspring.core.model.schedules.job import Job
from mainspring.core.model.schedules.schedule import next_after


class UpcomingTick(NamedTuple):
    """A tick and the earliest start of its run; None: it is skipped for this reason."""

    tick: Instant
    starts: Instant | None
    reason: str = ""


def list_upcoming(job: Job, closed_periods: ClosedPeriods | None, count: int) -> list[UpcomingTick]:
    """Return the upcoming ticks of a job, as far as they are known now."""
    if closed_periods is None:
        return [UpcomingTick(tick, tick) for tick in job.next_fires(count)]
    return [UpcomingTick(tick, *closed_periods.place(tick)) for tick in job.next_fires(count)]


def next_starts(job: Job, closed_periods: ClosedPeriods | None, count: int = 5) -> list[Instant]:
    """Return when the next runs may start. Long closed periods are passed over in one step."""
    if closed_periods is None or closed_periods.rule is not WhenClosed.SKIP or job.spec.fixed_delay is not None:
        return [at for _, at, _ in list_upcoming(job, closed_periods, count) if at is not None]
    starts: list[Instant] = []
    tick = job.first_tick
    while tick is not None and len(starts) < count:
        opens = closed_periods.next_open(tick)
        if opens is None:
            break
        if opens == tick:
            starts.append(tick)
            opens = tick + 1
        tick = next_after(job.spec.schedule, opens - 1, job.id)
    return starts
