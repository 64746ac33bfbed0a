"""What an operator says of a queue: how much of it runs at once, how fast its retries come, and whose turn it is.

Shares between tenants are kept by tags (start-time fair queueing). Every tenant with something ready has a tag; the
lowest is served next, and a run moves its tenant's tag on by its price: its weight over the tenant's share. The queue's
clock is the highest tag that was served. A tenant that had nothing to do gets no credit for it: its tag is at least
the clock. So a run that comes alone is started after at most one run of each other tenant that has something ready.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace

import msgspec

from mainspring.core.model.base.checks import check_kind, check_whole
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import DAY, MILLISECOND, Instant, Micros, format_duration, parse_duration
from mainspring.core.model.runs.names import check_tenant

MAX_CONCURRENCY = 1_000_000
MAX_SHARE = 1_000
MAX_SHARES = 1_000
MAX_RETRIES = 1_000_000
#: What a run of weight 1 costs a tenant with a share of 1. A multiple of what it is divided by most.
PRICE = 720_720


class RetryBudget(msgspec.Struct, frozen=True, kw_only=True):
    """At most so many retries become due in a period. Periods begin at multiples of their length since 1970."""

    most: int
    per: Micros

    def check(self) -> None:
        check_whole("retries", self.most, 1, MAX_RETRIES, f"1 to {MAX_RETRIES:,} in a period")
        check_whole("retries", self.per, MILLISECOND, DAY, "a period of a millisecond to a day")

    def place(self, period: int, number: int) -> Instant:
        """When the so-many-th of a period is due that was moved there: they come evenly."""
        return period * self.per + (number - 1) * self.per // self.most

    def __str__(self) -> str:
        return f"{self.most}/{format_duration(self.per)}"


class QueuePolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    #: At most so many run at once, over all workers.
    concurrency: int | None = None
    retries: RetryBudget | None = None
    #: Tenants take turns.
    fair: bool = False
    #: How many turns a tenant gets where others get one.
    shares: dict[str, int] = {}

    def check(self) -> None:
        if self.concurrency is not None:
            check_whole("concurrency", self.concurrency, 1, MAX_CONCURRENCY, f"1 to {MAX_CONCURRENCY:,}")
        if self.retries is not None:
            check_kind("retries", self.retries, RetryBudget)
            self.retries.check()
        if len(self.shares) > MAX_SHARES:
            raise Invalid("shares", "are too many", f"at most {MAX_SHARES:,}")
        for tenant, share in self.shares.items():
            check_tenant("shares", tenant)
            check_whole("shares", share, 1, MAX_SHARE, f"1 to {MAX_SHARE:,}")
        if self.shares and not self.fair:
            raise Invalid("shares", "mean nothing in a queue that is not fair", "with fair")

    def words(self) -> dict[str, object]:
        """For the audit: what people wrote stands in texts and lists."""
        return {
            "concurrency": self.concurrency,
            "retries": None if self.retries is None else str(self.retries),
            "fair": self.fair,
            "shares": [f"{tenant}={share}" for tenant, share in sorted(self.shares.items())],
        }

    @property
    def looks_closely(self) -> bool:
        """Whether a claim must look at it."""
        return self.concurrency is not None or self.fair


NO_POLICY = QueuePolicy()


def parse_budget(text: str, field: str = "retries") -> RetryBudget:
    """Read ``10/s``, ``600/m`` or ``5/10s``."""
    most, _, per = text.partition("/")
    if not most.isascii() or not most.isdigit() or len(most) > 9 or not per:
        raise Invalid(field, f"{text[:40]!r} is not a rate", 'for example "10/s" or "600/5m"')
    per = per.strip()
    budget = RetryBudget(most=int(most), per=parse_duration(per if per[:1].isdigit() else f"1{per}", field))
    budget.check()
    return budget


class Candidate(msgspec.Struct, frozen=True):
    """A run that could be started."""

    id: RunId
    tenant: str
    rank: int
    weight: int = 1


class Turns:
    """Whose turn it is in a fair queue: the tags of tenants with something ready."""

    def __init__(self, clock: int, tags: Mapping[str, int], shares: Mapping[str, int], tenants: Iterable[str]) -> None:
        self.clock = clock
        self._shares = shares
        # Also of those that have nothing ready just now.
        self._tags = dict(tags)
        self._heap = [(max(clock, tags.get(tenant, 0)), tenant) for tenant in tenants]
        heapify(self._heap)

    @property
    def next(self) -> str | None:
        return self._heap[0][1] if self._heap else None

    def serve(self, weight: int) -> None:
        """The next one has started a run."""
        tag, tenant = self._heap[0]
        self.clock = tag
        self._tags[tenant] = tag = tag + self.price(tenant, weight)
        heapreplace(self._heap, (tag, tenant))

    def leave(self) -> None:
        """The next one has nothing more."""
        heappop(self._heap)

    def price(self, tenant: str, weight: int) -> int:
        return PRICE * weight // self._shares.get(tenant, 1)

    def ahead(self, places: int) -> dict[str, int]:
        """How many runs of each the next so many places would be, if all had enough and weighed 1."""
        heap, counts = list(self._heap), dict[str, int]()
        for _ in range(places if heap else 0):
            tag, tenant = heap[0]
            counts[tenant] = counts.get(tenant, 0) + 1
            heapreplace(heap, (tag + self.price(tenant, 1), tenant))
        return counts

    def kept(self) -> dict[str, int]:
        """The tags that must be remembered: whoever is not ahead of the clock starts there again."""
        return {tenant: tag for tenant, tag in self._tags.items() if tag > self.clock}


class Wanted(msgspec.Struct, frozen=True):
    """What a choice must know next: the best so many of each tenant; of a queue that is not fair of all together ("").

    Without those seen before, and without the runs of tenants that have no room.
    """

    most: dict[str, int]
    seen: Collection[RunId]
    full: Collection[str]


Choice = Generator[Wanted, Mapping[str, Sequence[Candidate]], list[Candidate]]


def choose(limit: int, slots: int | None, most: int, turns: Turns | None, room: dict[str, int]) -> Choice:
    """The runs to start for ``limit`` free slots, of a worker with so many. Asks for candidates as it goes.

    In the order of the turns, or of the rank. A run takes as many slots as it weighs, but never more than the worker
    has: what is heavier runs alone. The first that does not fit ends the choice, so that no lighter one goes ahead of
    it for ever. ``most``: how many more of the queue may run; ``room``: how many more of a tenant, changed here.
    """
    chosen: list[Candidate] = []
    seen: set[RunId] = set()
    lists: dict[str, list[Candidate]] = {}
    dry: set[str] = set()
    whole = limit if slots is None else slots
    while limit > 0 and most > 0:
        asked = {"": min(limit, most)} if turns is None else turns.ahead(min(limit, most))
        asked = {group: count for group, count in asked.items() if group not in dry and not lists.get(group)}
        if not asked:
            break
        found = yield Wanted(asked, seen, {tenant for tenant, left in room.items() if left <= 0})
        for group, count in asked.items():
            lists[group] = list(reversed(found.get(group, ())))
            seen.update(candidate.id for candidate in lists[group])
            if len(lists[group]) < count:
                dry.add(group)
        while limit > 0 and most > 0:
            turn = "" if turns is None else turns.next
            if turn is None or (turns is None and turn in dry and not lists[turn]):
                return chosen
            if not lists.get(turn):
                if turn not in dry:
                    break
                assert turns is not None
                turns.leave()
                continue
            candidate = lists[turn].pop()
            left = room.get(candidate.tenant)
            if left is not None and left <= 0:
                continue
            weight = min(candidate.weight, whole)
            if weight > limit:
                return chosen
            limit, most = limit - weight, most - 1
            if left is not None:
                room[candidate.tenant] = left - 1
            if turns is not None:
                turns.serve(weight)
            chosen.append(candidate)
    return chosen


def made(choice: Choice, find: Callable[[Wanted], Mapping[str, Sequence[Candidate]]]) -> list[Candidate]:
    """Make a choice where candidates can be found without waiting."""
    try:
        wanted = next(choice)
        while True:
            wanted = choice.send(find(wanted))
    except StopIteration as end:
        chosen: list[Candidate] = end.value
        return chosen


def place_retry(budget: RetryBudget, counts: dict[int, int], due: Instant) -> Instant:
    """When a retry that would be due then may come: in its period, or in the first one after it with room.

    ``counts``: how many come in each period; changed here. No retry is dropped.
    """
    period = due // budget.per
    moved = period
    while counts.get(moved, 0) >= budget.most:
        moved += 1
    counts[moved] = counts.get(moved, 0) + 1
    return due if moved == period else budget.place(moved, counts[moved])
