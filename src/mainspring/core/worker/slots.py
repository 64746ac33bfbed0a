"""Counts how many runs may be started right now, by queue, and decides when to claim more."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from mainspring.core.model.base.instant import Micros
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.wakeups import Wakeup
from mainspring.core.store import Demand

_NEVER = 1 << 62


class RoomReads(Protocol):
    """An executor that may run out of room before a queue runs out of slots."""

    @property
    def room(self) -> int: ...


class SlotGroup:
    """The slots of one queue, or of one priority in it."""

    __slots__ = ("free", "may_have_more", "narrow", "narrow_until", "priority", "queue", "slots", "weighted")

    def __init__(self, queue: str, slots: int, priority: int | None = None) -> None:
        self.queue = queue
        self.priority = priority
        self.slots = slots
        self.free = slots
        #: The store may have more runs for it: the last answer filled its demand, or a notification has come since.
        self.may_have_more = True
        #: Its runs had to wait for a thread recently, so its demand is limited to the room there.
        self.narrow: RoomReads | None = None
        self.narrow_until: Micros = 0
        #: It has had runs that take several slots: the next run may fit only when more are free.
        self.weighted = False

    def demand(self, now: Micros) -> int:
        """Return how many runs can be started right now."""
        if self.narrow is None:
            return self.free
        if now >= self.narrow_until:
            self.narrow = None
            return self.free
        return max(min(self.free, self.narrow.room), 0)

    def take(self, weight: int) -> None:
        """Take the slots of a run: as many as it weighs, but at most all of them, in which case it runs alone."""
        if weight > 1:
            self.weighted = True
            weight = min(weight, self.slots)
        self.free -= weight


class Slots:
    """Counts free slots, and notifies the claimer when it waits for some.

    Under load, claiming for each slot as it gets free would make batches of one. The claimer therefore waits until a
    quarter is free, or for 2 ms. An idle worker has far more than that free and never waits.
    """

    def __init__(
        self,
        queues: Mapping[str, int],
        clock: Clock,
        wakeup: Wakeup,
        gather: Micros,
        priorities: Mapping[int, int] | None = None,
    ) -> None:
        """``priorities``: the number of slots for each, in every queue. The slots of the queues are then ignored."""
        self.pooled = bool(priorities)
        #: By queue; or by queue and priority, if there is a pool of slots for each.
        self.groups: dict[str | tuple[str, int], SlotGroup] = (
            {(queue, one): SlotGroup(queue, slots, one) for queue in queues for one, slots in priorities.items()}
            if priorities
            else {queue: SlotGroup(queue, slots) for queue, slots in queues.items()}
        )
        self.woken = False
        #: It has had runs of a queue with a concurrency limit: there may be room again when some of them end.
        self.limited = False
        self._order = list(self.groups.values())
        self._clock = clock
        self._wakeup = wakeup
        self._gather = gather
        #: Free slots in groups that may have more runs, since when they are free, and how many trigger a notification.
        self._ready = self.total
        self._ready_since: Micros | None = None
        self._notify_at = _NEVER

    @property
    def total(self) -> int:
        return sum(group.slots for group in self._order)

    def by_queue(self) -> dict[str, tuple[int, int]]:
        """Return the slots of each queue and how many of them are taken."""
        found: dict[str, tuple[int, int]] = {}
        for group in self.groups.values():
            slots, used = found.get(group.queue, (0, 0))
            found[group.queue] = (slots + group.slots, used + group.slots - group.free)
        return found

    def give(self, group: SlotGroup, weight: int) -> None:
        """Return the slots of an attempt that has really ended."""
        freed = 1 if weight == 1 else min(weight, group.slots)
        group.free += freed
        if group.weighted and not group.may_have_more:
            # The next run may have been too large before.
            group.may_have_more = True
            freed = group.free
        if group.may_have_more:
            self._ready += freed
            if self._ready_since is None:
                self._ready_since = self._clock.monotonic()
            if self._ready >= self._notify_at:
                self._notify_at = _NEVER
                self.woken = True
                self._wakeup.notify()

    def look_again(self) -> None:
        """Prepare for a claim. Unless a freed slot woke the claimer, every queue may have new runs."""
        if self.woken:
            self.woken = False
            return
        for group in self._order:
            group.may_have_more = True
        self._ready = self._count_ready(self._clock.monotonic())

    def pause(self) -> Micros | None:
        """Return how long to wait before the next claim: 0, a short time for more slots, or None for a notification."""
        if self._ready == 0:
            # No free slot in a group that may have work: the first freed slot notifies.
            self._notify_at = 1
            self._ready_since = None
            return None
        worthwhile = sum(group.slots for group in self._order if group.may_have_more) // 4
        if self._ready < worthwhile and self._ready_since is not None:
            left = self._ready_since + self._gather - self._clock.monotonic()
            if left > 0:
                self._notify_at = worthwhile
                return left
        self._notify_at = _NEVER
        return 0

    def demands(self, largest: int) -> list[Demand]:
        """Return the demands of the next claim: at most what can be started at once, and at most ``largest`` runs.

        Every group with room is included, so that one claim serves all of them. If the demands exceed ``largest``,
        groups without more work expected ask for one run each, and the other groups share the rest.
        """
        now = self._clock.monotonic()
        demands = [(group, demand) for group in self._order if (demand := group.demand(now)) > 0]
        if sum(demand for _, demand in demands) > largest:
            demands.sort(key=lambda one: not one[0].may_have_more)
            demands = [(group, demand if group.may_have_more else 1) for group, demand in demands[:largest]]
            limits = share([demand for _, demand in demands], largest)
            demands = [(group, limit) for (group, _), limit in zip(demands, limits, strict=True)]
        # Rotate: if there are more groups than ``largest``, other groups come first next time.
        self._order.append(self._order.pop(0))
        return [Demand(group.queue, limit, slots=group.slots, priority=group.priority) for group, limit in demands]

    def answered(self, demands: Sequence[Demand], runs: Sequence[HeldRun]) -> None:
        """Process the answer of a claim whose runs have taken their slots.

        Groups that were not part of the claim are left unchanged.
        """
        wanted = {(demand.queue, demand.priority): demand.limit for demand in demands}
        got: Mapping[tuple[str, int | None], int]
        if len(demands) == 1:
            got = {(demands[0].queue, demands[0].priority): len(runs)}
        else:
            got = Counter((run.queue, run.priority if self.pooled else None) for run in runs)
        for group in self._order:
            key = group.queue, group.priority
            if key in wanted:
                group.may_have_more = got.get(key, 0) >= wanted[key]
        self._start_gathering()

    def expect_more(self, groups: Collection[tuple[str, int | None]], *, more: bool) -> None:
        """Set whether there may be more runs for these queues and priorities, as known from a broker."""
        if groups:
            for group in self._order:
                if (group.queue, group.priority) in groups:
                    group.may_have_more = more
            self._start_gathering()

    def _start_gathering(self) -> None:
        now = self._clock.monotonic()
        self._ready = self._count_ready(now)
        self._ready_since = now if self._ready else None

    def _count_ready(self, now: Micros) -> int:
        return sum(group.demand(now) for group in self._order if group.may_have_more)

    def notify_when_one_is_free(self) -> None:
        """Notify when the next slot is free: there are free slots now, but nothing that can be claimed for them."""
        self._notify_at = 1


def share(demands: Sequence[int], total: int) -> list[int]:
    """Divide ``total`` evenly; the unused part of a small demand goes to the larger ones."""
    shares = [0] * len(demands)
    left = total
    smallest_first = sorted(range(len(demands)), key=demands.__getitem__)
    for position, index in enumerate(smallest_first):
        shares[index] = min(demands[index], left // (len(demands) - position))
        left -= shares[index]
    return shares
