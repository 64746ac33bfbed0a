"""How much one caller may ask for, and how much this process takes on at once."""

from collections import OrderedDict

from mainspring.api.problems import Refused
from mainspring.domain.instant import SECOND, Micros
from mainspring.ports.clock import Clock

#: So many callers are remembered; who was silent longest is forgotten, and starts with a full bucket.
_REMEMBERED = 10_000


class Buckets:
    """Token buckets: ``rate`` a second on average, ``burst`` at once; a rate of 0 is no limit.

    Each API process has its own: the limit of a caller is the rate times the number of processes.
    """

    def __init__(self, clock: Clock, rate: float, burst: float) -> None:
        self._clock = clock
        self.rate = rate
        self._burst = max(burst, 1.0)
        self._buckets: OrderedDict[str, tuple[float, Micros]] = OrderedDict()

    def take(self, who: str) -> None:
        """Take one from the caller's bucket, or refuse and say when to come again."""
        if not self.take_some(who, 1):
            raise Refused(429, "Too many requests", f"more than {self.rate:g} a second", retry_after=self.wait(who))

    def take_some(self, who: str, wanted: int) -> int:
        """Take as many as are wanted, or as there are; how many that is."""
        if self.rate <= 0:
            return wanted
        level = self._level(who)
        taken = min(wanted, int(level))
        self._buckets[who] = (level - taken, self._clock.monotonic())
        self._buckets.move_to_end(who)
        if len(self._buckets) > _REMEMBERED:
            self._buckets.popitem(last=False)
        return taken

    def wait(self, who: str) -> int:
        """In how many whole seconds there is one to be taken; 1 at least."""
        missing = 1 - self._level(who)
        return max(1, -int(-missing / self.rate // 1))

    def _level(self, who: str) -> float:
        now = self._clock.monotonic()
        level, at = self._buckets.get(who, (self._burst, now))
        return min(self._burst, level + (now - at) / SECOND * self.rate)


class Room:
    """What this process holds at once, of one kind. Who comes when it is full is told to come again."""

    def __init__(self, what: str, most: int) -> None:
        self._what = what
        self._most = most
        self.taken = 0

    def take(self, amount: int = 1) -> None:
        if self.taken + amount > self._most:
            raise Refused(503, "Overloaded", f"this process has as many {self._what} as it takes", retry_after=1)
        self.taken += amount

    def give_back(self, amount: int = 1) -> None:
        self.taken -= amount
