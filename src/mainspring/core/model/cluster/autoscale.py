"""How many workers and schedulers the load asks for. Pure: figures in, numbers out.

A worker has so many slots in a queue, and a run holds one for as long as it takes. So what arrives keeps
``arrival rate × time taken`` slots busy, and what has piled up needs more for a while: as many as work it off within a
target time. Slots are planned four fifths full, since arrivals are not even.
"""

from math import ceil

import msgspec

from mainspring.core.model.base.instant import MINUTE, SECOND, Instant, Micros

#: A backlog is to be gone within this time.
TARGET: Micros = 10 * SECOND
#: So much of its slots a worker is counted on for.
UTILISATION = 0.8
#: A shorter lag says nothing about the rate at which runs arrive.
SHORT_LAG: Micros = 5 * SECOND
#: Fewer workers are wanted for as long as this before one goes.
CALM: Micros = MINUTE
#: One scheduler stages and fires that many runs a second, with room to spare.
SCHEDULED_A_SECOND = 5_000
#: A second scheduler takes over when one dies.
LEAST_SCHEDULERS = 2
MOST = 10_000


class QueueLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a queue. Rates are per second."""

    queue: str
    queued: int = 0
    #: Of these require a data center without a worker of the queue: more workers elsewhere would not run them.
    stranded: int = 0
    running: int = 0
    #: How long the oldest queued run has been due.
    lag: Micros = 0
    #: How long the one has waited for a worker that has waited longest: not what a limit, a key or a pause held back.
    waited: Micros = 0
    #: How many ended, over the last minutes, and how long they took; none: none did.
    service_rate: float = 0.0
    took: Micros | None = None
    #: Those that are alive and take it.
    workers: int = 0

    @property
    def waiting(self) -> int:
        """How many queued runs the workers of the queue may run."""
        return self.queued - self.stranded

    @property
    def arrival_rate(self) -> float:
        """What is queued has arrived within the lag, since the oldest goes first; without one as much comes as goes."""
        if self.waiting and self.lag > SHORT_LAG:
            return self.waiting * SECOND / self.lag
        return self.service_rate + self.waiting * SECOND / MINUTE


def slots_for(load: QueueLoad, target: Micros = TARGET) -> float:
    """How many slots the queue asks for, for whoever knows how many of them a worker has; not rounded."""
    if load.took is None:
        # Nobody knows how long these take: more slots than are held, as long as something waits for one.
        return max(load.running + 1, load.running / UTILISATION) if load.waiting else load.running
    took = load.took / SECOND
    steady = max(load.arrival_rate, load.service_rate) * took
    piled_up = load.waiting * took / (target / SECOND)
    # No more can be busy at once than there are.
    busy = min(steady + piled_up, steady + load.waiting + load.running)
    return max(busy / UTILISATION, 1 if load.waiting or load.running else 0)


def workers_for(load: QueueLoad, slots: int, target: Micros = TARGET) -> int:
    """How many workers with so many slots each the queue asks for."""
    if load.took is None:
        # Nothing has ended yet: they get what they hold, and one more at a time.
        held = ceil(load.running / slots)
        return min(MOST, max(held, load.workers) + 1 if load.waiting else held)
    return min(MOST, ceil(round(slots_for(load, target) / slots, 6)))


def schedulers_for(rate: float, lag: Micros, schedulers: int) -> int:
    """``rate``: of what comes due and ends each second; ``lag``: how long the oldest run that should be queued has been
    due. One more than there are while they cannot keep up."""
    needed = max(LEAST_SCHEDULERS, ceil(rate / SCHEDULED_A_SECOND))
    return min(MOST, max(needed, schedulers + 1) if lag > SECOND else needed)


class Bounds(msgspec.Struct, frozen=True):
    least: int
    most: int


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """Where a number of workers stands."""

    workers: int
    #: Since when fewer have been wanted, and the most that were in that time.
    calm_since: Instant | None = None
    calm_most: int = 0


def rescale(scale: Scale, wanted: int, bounds: Bounds, now: Instant) -> Scale:
    """The next number. More come at once, at most twice as many as there are; fewer only when that has been enough for
    a while, so that a load that goes up and down does not start and stop processes."""
    wanted = min(max(wanted, bounds.least), bounds.most)
    current = min(max(scale.workers, bounds.least), bounds.most)
    if wanted > current:
        return Scale(workers=min(wanted, max(2 * current, 1)))
    if wanted == current:
        return Scale(workers=current)
    since = scale.calm_since if scale.calm_since is not None else now
    most = max(scale.calm_most, wanted)
    if now - since < CALM:
        return Scale(workers=current, calm_since=since, calm_most=most)
    return Scale(workers=most)
