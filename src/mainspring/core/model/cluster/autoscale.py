"""How many workers and schedulers the load requires. Pure: measurements in, numbers out.

A worker has a number of slots in a queue, and a run occupies one for its duration. Arrivals therefore keep as many
slots busy as arrival rate × duration. A backlog needs more slots for a while: enough to process it within a target
time. Slots are planned at 80 % utilization, since arrivals are not even.
"""

from math import ceil

import msgspec

from mainspring.core.model.base.instant import MINUTE, SECOND, Instant, Micros

#: The time within which a backlog should be processed.
TARGET: Micros = 10 * SECOND
#: The planned utilization of slots.
UTILISATION = 0.8
#: A shorter lag says nothing about the arrival rate.
SHORT_LAG: Micros = 5 * SECOND
#: How long fewer workers must be sufficient before workers are removed.
CALM: Micros = MINUTE
#: The number of runs per second that one scheduler stages and fires, with room to spare.
SCHEDULED_A_SECOND = 5_000
#: A second scheduler takes over if the first one fails.
LEAST_SCHEDULERS = 2
MOST = 10_000


class QueueLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The measured load of a queue. Rates are per second."""

    queue: str
    queued: int = 0
    #: Queued runs that require a data center without a worker of the queue: workers elsewhere cannot run them.
    stranded: int = 0
    running: int = 0
    #: How long the oldest queued run has been due.
    lag: Micros = 0
    #: The longest time that a queued run has waited for a worker, excluding time blocked by a limit, key or pause.
    waited: Micros = 0
    #: The rate and the average duration of runs that ended in the last minutes; None: none ended.
    service_rate: float = 0.0
    took: Micros | None = None
    #: The live workers that serve the queue.
    workers: int = 0

    @property
    def waiting(self) -> int:
        """The number of queued runs that workers of the queue may run."""
        return self.queued - self.stranded

    @property
    def arrival_rate(self) -> float:
        """Queued runs arrived within the lag, as the oldest starts first. If it is short, completions count instead."""
        if self.waiting and self.lag > SHORT_LAG:
            return self.waiting * SECOND / self.lag
        return self.service_rate + self.waiting * SECOND / MINUTE


def slots_for(load: QueueLoad, target: Micros = TARGET) -> float:
    """Return how many slots the queue requires, not rounded; for callers that know the slots of a worker."""
    if load.took is None:
        # The duration is unknown: require more slots than are occupied, as long as runs are waiting.
        return max(load.running + 1, load.running / UTILISATION) if load.waiting else load.running
    took = load.took / SECOND
    steady = max(load.arrival_rate, load.service_rate) * took
    piled_up = load.waiting * took / (target / SECOND)
    # No more slots can be busy at once than there are runs.
    busy = min(steady + piled_up, steady + load.waiting + load.running)
    return max(busy / UTILISATION, 1 if load.waiting or load.running else 0)


def workers_for(load: QueueLoad, slots: int, target: Micros = TARGET) -> int:
    """Return how many workers with ``slots`` slots each the queue requires."""
    if load.took is None:
        # No run has ended yet: keep the workers for running runs, and add one at a time.
        held = ceil(load.running / slots)
        return min(MOST, max(held, load.workers) + 1 if load.waiting else held)
    return min(MOST, ceil(round(slots_for(load, target) / slots, 6)))


def schedulers_for(rate: float, lag: Micros, schedulers: int) -> int:
    """Return how many schedulers are required: one more than there are while they cannot keep up.

    ``rate`` is the number of runs that come due or end per second. ``lag`` is how long the oldest run that should be
    queued has been due.
    """
    needed = max(LEAST_SCHEDULERS, ceil(rate / SCHEDULED_A_SECOND))
    return min(MOST, max(needed, schedulers + 1) if lag > SECOND else needed)


class Bounds(msgspec.Struct, frozen=True):
    least: int
    most: int


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """The current scale of a group of workers."""

    workers: int
    #: Since when fewer workers have been sufficient, and the largest number required in that time.
    calm_since: Instant | None = None
    calm_most: int = 0


def rescale(scale: Scale, wanted: int, bounds: Bounds, now: Instant) -> Scale:
    """Return the next scale.

    Growth is immediate, at most to twice the current number. Workers are removed only after fewer have been sufficient
    for ``CALM``, so that a fluctuating load does not start and stop processes.
    """
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
