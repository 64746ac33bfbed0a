"""How many runs may be started right now, by queue, and when it is worth asking for more."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from mainspring.domain.instant import Micros
from mainspring.domain.run import HeldRun
from mainspring.ports.clock import Clock
from mainspring.ports.store import Want
from mainspring.ports.wakeups import Bell

_NEVER = 1 << 62


class Room(Protocol):
    """Something that may run out of places before a queue runs out of slots."""

    @property
    def room(self) -> int: ...


class Lane:
    """The slots of one queue."""

    __slots__ = ("free", "narrow", "narrow_until", "queue", "slots", "thirsty")

    def __init__(self, queue: str, slots: int) -> None:
        self.queue = queue
        self.slots = slots
        self.free = slots
        #: The store may have more for it: the last answer was as large as the want, or somebody rang since.
        self.thirsty = True
        #: Its runs had to wait for a thread lately, so it asks for no more than there is room there.
        self.narrow: Room | None = None
        self.narrow_until: Micros = 0


class Slots:
    """Counts free slots, and rings the bell of whoever waits for some.

    Under load claiming for each slot as it gets free would make batches of one, so the claimer waits until a quarter is
    free, or for two milliseconds. An idle worker has far more than that free and never waits.
    """

    def __init__(self, queues: Mapping[str, int], clock: Clock, bell: Bell, gather: Micros) -> None:
        self.lanes = {queue: Lane(queue, slots) for queue, slots in queues.items()}
        self.rang = False
        self._order = list(self.lanes.values())
        self._clock = clock
        self._bell = bell
        self._gather = gather
        #: Free slots of thirsty lanes, since when there are any, and how many are worth a ring.
        self._ready = sum(queues.values())
        self._ready_since: Micros | None = None
        self._ring_at = _NEVER

    @property
    def total(self) -> int:
        return sum(lane.slots for lane in self._order)

    def give(self, lane: Lane) -> None:
        """A run of this lane has really ended."""
        lane.free += 1
        if lane.thirsty:
            self._ready += 1
            if self._ready_since is None:
                self._ready_since = self._clock.monotonic()
            if self._ready >= self._ring_at:
                self._ring_at = _NEVER
                self.rang = True
                self._bell.ring()

    def look_again(self) -> None:
        """The claimer woke up. Unless it was a freed slot that rang, there may be something new in every queue."""
        if self.rang:
            self.rang = False
            return
        for lane in self._order:
            lane.thirsty = True
        self._ready = sum(lane.free for lane in self._order)

    def pause(self) -> Micros | None:
        """How long to wait before the next claim: 0 now, a moment for more slots, None until the bell rings."""
        if self._ready == 0:
            # Nothing is free where there may be work: the first slot rings.
            self._ring_at = 1
            self._ready_since = None
            return None
        worthwhile = sum(lane.slots for lane in self._order if lane.thirsty) // 4
        if self._ready < worthwhile and self._ready_since is not None:
            left = self._ready_since + self._gather - self._clock.monotonic()
            if left > 0:
                self._ring_at = worthwhile
                return left
        self._ring_at = _NEVER
        return 0

    def wants(self, largest: int) -> list[Want]:
        """What to claim: at most what can be started at once."""
        wants = []
        now = self._clock.monotonic()
        for lane in self._order:
            limit = min(lane.free, largest)
            if lane.narrow is not None:
                if now < lane.narrow_until:
                    limit = min(limit, lane.narrow.room)
                else:
                    lane.narrow = None
            if limit > 0:
                wants.append(Want(lane.queue, limit))
                largest -= limit
        # Another queue comes first next time, or a large one would always eat the batch.
        self._order.append(self._order.pop(0))
        return wants

    def answered(self, wants: Sequence[Want], runs: Sequence[HeldRun]) -> None:
        """A claim was answered, and its runs have taken their slots."""
        wanted = {want.queue: want.limit for want in wants}
        got: Mapping[str, int]
        if len(wants) == 1:
            got = {wants[0].queue: len(runs)}
        else:
            got = Counter(run.queue for run in runs)
        for lane in self._order:
            lane.thirsty = got.get(lane.queue, 0) >= wanted.get(lane.queue, 0)
        self._ready = sum(lane.free for lane in self._order if lane.thirsty)
        self._ready_since = self._clock.monotonic() if self._ready else None

    def ring_when_one_is_free(self) -> None:
        """There are free slots, but nothing can be asked for: the next one may change that."""
        self._ring_at = 1
