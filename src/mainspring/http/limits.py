"""Rate limits of callers, and limits on concurrent work in this process."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable

from mainspring.core.model.access.access import Principal
from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.ports.clock import Clock
from mainspring.http.problems import RequestError

#: The number of callers that are remembered. The least recent one is dropped and starts again with a full bucket.
_REMEMBERED = 10_000
_COUNT_HOLDS: Micros = 2 * SECOND
_QUICKLY_COUNTED = 1_000


class TokenBuckets:
    """Token buckets: ``rate`` per second on average, ``burst`` at once. A rate of 0 disables the limit.

    Each API process has its own buckets: the total limit of a caller is the rate times the number of processes.
    """

    def __init__(self, clock: Clock, rate: float, burst: float) -> None:
        self._clock = clock
        self.rate = rate
        self._burst = max(burst, 1.0)
        self._buckets: OrderedDict[str, tuple[float, Micros]] = OrderedDict()

    def take(self, caller: str) -> None:
        """Take one token from the caller's bucket, or refuse and report when to retry."""
        if not self.take_up_to(caller, 1):
            raise RequestError(
                429, "Too many requests", f"more than {self.rate:g} a second", retry_after=self.wait(caller)
            )

    def take_up_to(self, caller: str, wanted: int) -> int:
        """Take up to ``wanted`` tokens. Return how many were taken."""
        if self.rate <= 0:
            return wanted
        level = self._level(caller)
        taken = min(wanted, int(level))
        self._buckets[caller] = (level - taken, self._clock.monotonic())
        self._buckets.move_to_end(caller)
        if len(self._buckets) > _REMEMBERED:
            self._buckets.popitem(last=False)
        return taken

    def wait(self, caller: str) -> int:
        """Return after how many whole seconds a token is available; at least 1."""
        missing = 1 - self._level(caller)
        return max(1, -int(-missing / self.rate // 1))

    def _level(self, caller: str) -> float:
        now = self._clock.monotonic()
        level, at = self._buckets.get(caller, (self._burst, now))
        return min(self._burst, level + (now - at) / SECOND * self.rate)


class _TenantCount:
    __slots__ = ("added", "asked", "at", "count", "counting", "took")

    def __init__(self) -> None:
        self.count = 0
        self.added = 0
        self.asked = -1
        self.at: Micros = 0
        self.took: Micros = 0
        self.counting = asyncio.Lock()


class CountedQuota:
    """How many objects each tenant has: the last count plus those admitted since.

    A count is valid for two seconds. If it leaves no room, it is refreshed early. A large count that was slow is
    refreshed only after ten times its duration. Objects that another process admits are included in the next count.
    """

    def __init__(self, count: Callable[[str, int], Awaitable[int]], clock: Clock) -> None:
        self._count = count
        self._clock = clock
        self._tenants: dict[str, _TenantCount] = {}

    async def count_left(self, tenant: str, most: int, wanted: int) -> int:
        """Return how many more objects a tenant may have."""
        known = self._tenants.setdefault(tenant, _TenantCount())
        if not self._is_fresh(known, most, wanted):
            async with known.counting:
                if not self._is_fresh(known, most, wanted):
                    before, began = known.added, self._clock.monotonic()
                    known.count = await self._count(tenant, most)
                    known.added -= before
                    known.asked, known.at, known.took = most, began, self._clock.monotonic() - began
        return max(most - known.count - known.added, 0)

    def add(self, tenant: str, amount: int) -> None:
        """Record that this many were admitted."""
        self._tenants[tenant].added += amount

    def _is_fresh(self, known: _TenantCount, most: int, wanted: int) -> bool:
        age = self._clock.monotonic() - known.at
        if known.asked != most or age > _COUNT_HOLDS:
            return False
        is_room = most - known.count - known.added >= wanted
        return is_room or (most > _QUICKLY_COUNTED and age < 10 * known.took)


class CapacityLimit:
    """A limit on what this process holds at once of one kind. Requests beyond it are refused with a time to retry.

    A principal may hold ``each``, and all principals of a tenant together half of the total.
    """

    def __init__(self, what: str, most: int, each: int | None = None) -> None:
        """Without ``each`` there are no shares."""
        self._what = what
        self._most = most
        self._each = most if each is None else each
        self._tenants = most if each is None else most // 2
        self.taken = 0
        self._by_name: Counter[str] = Counter()
        self._by_tenant: Counter[str] = Counter()

    def take(self, caller: Principal, amount: int = 1) -> None:
        if self.taken + amount > self._most:
            raise RequestError(503, "Overloaded", f"this process has as many {self._what} as it takes", retry_after=1)
        if self._by_name[caller.name] + amount > self._each:
            raise self._refuse_share("you hold", self._each)
        if caller.tenant is not None and self._by_tenant[caller.tenant] + amount > self._tenants:
            raise self._refuse_share("your tenant holds", self._tenants)
        self.taken += amount
        self._by_name[caller.name] += amount
        if caller.tenant is not None:
            self._by_tenant[caller.tenant] += amount

    def release(self, caller: Principal, amount: int = 1) -> None:
        self.taken -= amount
        _subtract(self._by_name, caller.name, amount)
        if caller.tenant is not None:
            _subtract(self._by_tenant, caller.tenant, amount)

    def _refuse_share(self, holder: str, share: int) -> RequestError:
        return RequestError(
            429, "Too many at once", f"{holder} the {share} {self._what} that one may have", retry_after=1
        )


def _subtract(counts: Counter[str], name: str, amount: int) -> None:
    """Subtract, and remove holders that hold nothing."""
    counts[name] -= amount
    if counts[name] <= 0:
        del counts[name]
