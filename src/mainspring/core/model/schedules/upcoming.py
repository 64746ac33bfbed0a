"""Upcoming ticks of a job, and the effect of calendars on them."""

from typing import NamedTuple

from mainspring.core.model.base.instant import Instant
from mainspring.core.model.schedules.calendar import WhenClosed
from mainspring.core.model.schedules.closed_periods import Closings
from mainspring.core.model.schedules.job import Job
from mainspring.core.model.schedules.schedule import next_after


class Coming(NamedTuple):
    """A tick and the earliest start of its run; None: it is skipped for this reason."""

    tick: Instant
    starts: Instant | None
    reason: str = ""


def coming(job: Job, closings: Closings | None, count: int) -> list[Coming]:
    """Return the upcoming ticks of a job, as far as they are known now."""
    if closings is None:
        return [Coming(tick, tick) for tick in job.next_fires(count)]
    return [Coming(tick, *closings.place(tick)) for tick in job.next_fires(count)]


def next_starts(job: Job, closings: Closings | None, count: int = 5) -> list[Instant]:
    """Return when the next runs may start. Long closed periods are passed over in one step."""
    if closings is None or closings.rule is not WhenClosed.SKIP or job.spec.fixed_delay is not None:
        return [at for _, at, _ in coming(job, closings, count) if at is not None]
    starts: list[Instant] = []
    tick = job.first_tick
    while tick is not None and len(starts) < count:
        opens = closings.next_open(tick)
        if opens is None:
            break
        if opens == tick:
            starts.append(tick)
            opens = tick + 1
        tick = next_after(job.spec.schedule, opens - 1, job.id)
    return starts
