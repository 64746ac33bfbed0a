"""A hierarchical timing wheel: insert and fire in constant time, to the millisecond."""

from operator import itemgetter
from typing import Generic, TypeVar

from mainspring.core.model.base.instant import MILLISECOND, Instant

T = TypeVar("T")

_BITS = 8
_SLOTS = 1 << _BITS
_MASK = _SLOTS - 1
#: Six levels of 256 slots of 1 ms, 256 ms, 65 s, 4.7 h, 50 days and 35 years reach beyond the year 9999.
_LEVELS = 6
_END = (1 << (_BITS * _LEVELS)) - 1

_when = itemgetter(0)


class TimingWheel(Generic[T]):
    """Holds items by the millisecond they are due in, rounded up, so that no item is taken out early.

    An item is on the level of the highest digit (base 256) in which its time differs from the time reached. Therefore
    every item of a lower level precedes every item of a higher one, and every used slot of a level lies ahead. The
    earliest slot is the lowest bit of the lowest level in use. An item moves down at most once per level.
    """

    def __init__(self, now: Instant) -> None:
        #: Everything up to this millisecond has been taken out.
        self._reached = now // MILLISECOND
        self._levels: list[list[list[tuple[int, T]]]] = [[[] for _ in range(_SLOTS)] for _ in range(_LEVELS)]
        #: For each level, the slots in use, as bits.
        self._used = [0] * _LEVELS
        #: Items that were due already when they were inserted.
        self._overdue: list[tuple[int, T]] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def insert(self, due: Instant, item: T) -> None:
        self._length += 1
        self._place(min(-(-due // MILLISECOND), _END), item)

    def advance(self, now: Instant) -> list[T]:
        """Take out everything that is due at or before ``now``, earliest first.

        A jump costs one step per slot in use.
        """
        moment = now // MILLISECOND
        due = self._take_overdue(moment)
        level = 0
        while level < _LEVELS:
            used = self._used[level]
            if not used:
                level += 1
                continue
            index, start = self._earliest(level, used)
            if start > moment:
                # Items on higher levels are later still.
                break
            slot = self._levels[level][index]
            self._levels[level][index] = []
            self._used[level] = used & (used - 1)
            end = start + (1 << (_BITS * level)) - 1
            if end <= moment:
                self._reached = end
            else:
                # Now lies inside this slot: its remaining items move down, relative to now.
                self._reached = moment
                ahead = slot
                slot = [entry for entry in ahead if entry[0] <= moment]
                for when, item in ahead:
                    if when > moment:
                        self._place(when, item)
            if level:
                slot.sort(key=_when)
            due += [item for _, item in slot]
        self._reached = max(self._reached, moment)
        self._length -= len(due)
        return due

    def next_due(self) -> Instant | None:
        """Return a time before which no item is due.

        It is exact within the next 256 ms; further away it is the start of a coarser slot.
        """
        if self._overdue:
            return min(when for when, _ in self._overdue) * MILLISECOND
        for level, used in enumerate(self._used):
            if used:
                return self._earliest(level, used)[1] * MILLISECOND
        return None

    def _place(self, when: int, item: T) -> None:
        if when <= self._reached:
            self._overdue.append((when, item))
            return
        level = ((when ^ self._reached).bit_length() - 1) // _BITS
        index = (when >> (_BITS * level)) & _MASK
        slot = self._levels[level][index]
        if not slot:
            self._used[level] |= 1 << index
        slot.append((when, item))

    def _earliest(self, level: int, used: int) -> tuple[int, int]:
        """Return the first slot in use on a level, and the millisecond it starts with."""
        index = (used & -used).bit_length() - 1
        above = self._reached >> (_BITS * (level + 1))
        return index, ((above << _BITS) | index) << (_BITS * level)

    def _take_overdue(self, moment: int) -> list[T]:
        if not self._overdue:
            return []
        overdue, self._overdue = self._overdue, []
        overdue.sort(key=_when)
        if moment < self._reached:
            # The clock was set back: items that were overdue are ahead again.
            self._overdue = [entry for entry in overdue if entry[0] > moment]
        return [item for when, item in overdue if when <= moment]
