"""Queue policies: concurrency, retry rate and fair sharing between tenants.

Fair sharing uses tags (start-time fair queueing). Every tenant with ready runs has a tag. The lowest tag is served
next, and a run advances its tenant's tag by its price: its weight divided by the tenant's share. The queue's clock is
the highest tag that was served. An idle tenant accumulates no credit: its tag is at least the clock. A single new run
therefore starts after at most one run of each other tenant with ready runs.
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
#: The price of a run of weight 1 for a tenant with a share of 1. Divisible by the most common shares.
PRICE = 720_720


class RetryBudget(msgspec.Struct, frozen=True, kw_only=True):
    """At most ``most`` retries become due per period. Periods begin at multiples of their length since 1970."""

    most: int
    per: Micros

    def check(self) -> None:
        check_whole("retries", self.most, 1, MAX_RETRIES, f"1 to {MAX_RETRIES:,} in a period")
        check_whole("retries", self.per, MILLISECOND, DAY, "a period of a millisecond to a day")

    def place(self, period: int, number: int) -> Instant:
        """Return when the n-th retry moved to a period is due; moved retries are spread evenly."""
        return period * self.per + (number - 1) * self.per // self.most

    def __str__(self) -> str:
        return f"{self.most}/{format_duration(self.per)}"


class QueuePolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    #: The maximum number of concurrent runs, over all workers.
    concurrency: int | None = None
    retries: RetryBudget | None = None
    #: Tenants take turns.
    fair: bool = False
    #: The number of turns of a tenant where others get one.
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
        """Return the policy for the audit log, with texts and lists in place of structs."""
        return {
            "concurrency": self.concurrency,
            "retries": None if self.retries is None else str(self.retries),
            "fair": self.fair,
            "shares": [f"{tenant}={share}" for tenant, share in sorted(self.shares.items())],
        }

    @property
    def looks_closely(self) -> bool:
        """Whether a claim must evaluate the policy."""
        return self.concurrency is not None or self.fair


NO_POLICY = QueuePolicy()


def parse_budget(text: str, field: str = "retries") -> RetryBudget:
    """Parse ``10/s``, ``600/m`` or ``5/10s``."""
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


class TurnOrder:
    """The order of tenants in a fair queue: the tags of tenants with ready runs."""

    def __init__(self, clock: int, tags: Mapping[str, int], shares: Mapping[str, int], tenants: Iterable[str]) -> None:
        self.clock = clock
        self._shares = shares
        # Includes tenants that have no ready runs at the moment.
        self._tags = dict(tags)
        self._heap = [(max(clock, tags.get(tenant, 0)), tenant) for tenant in tenants]
        heapify(self._heap)

    @property
    def next(self) -> str | None:
        return self._heap[0][1] if self._heap else None

    def serve(self, weight: int) -> None:
        """Record that the next tenant has started a run."""
        tag, tenant = self._heap[0]
        self.clock = tag
        self._tags[tenant] = tag = tag + self.price(tenant, weight)
        heapreplace(self._heap, (tag, tenant))

    def leave(self) -> None:
        """Remove the next tenant, which has no more ready runs."""
        heappop(self._heap)

    def price(self, tenant: str, weight: int) -> int:
        return PRICE * weight // self._shares.get(tenant, 1)

    def ahead(self, turns: int) -> dict[str, int]:
        """Return how many runs of each tenant the next ``turns`` turns would serve, given enough runs of weight 1."""
        heap, counts = list(self._heap), dict[str, int]()
        for _ in range(turns if heap else 0):
            tag, tenant = heap[0]
            counts[tenant] = counts.get(tenant, 0) + 1
            heapreplace(heap, (tag + self.price(tenant, 1), tenant))
        return counts

    def kept(self) -> dict[str, int]:
        """Return the tags to store. Tenants that are not ahead of the clock start at the clock again."""
        return {tenant: tag for tenant, tag in self._tags.items() if tag > self.clock}


class SlotRequest(msgspec.Struct, frozen=True):
    """The candidates that a choice needs next: the best ``most`` of each tenant, or of all together ("") if not fair.

    Candidates in ``seen`` and the runs of tenants in ``full`` are excluded.
    """

    most: dict[str, int]
    seen: Collection[RunId]
    full: Collection[str]


Choice = Generator[SlotRequest, Mapping[str, Sequence[Candidate]], list[Candidate]]


def choose(limit: int, slots: int | None, most: int, turns: TurnOrder | None, room: dict[str, int]) -> Choice:
    """Choose the runs to start for ``limit`` free slots of a worker with ``slots`` slots. Yields requests for
    candidates.

    1. The order is that of the turns, or of the rank.
    2. A run takes as many slots as its weight, but at most all of the worker's: a heavier run executes alone.
    3. The first run that does not fit ends the choice, so that lighter runs cannot overtake it forever.
    4. ``most``: how many more runs of the queue may run. ``room``: how many more of each tenant; updated in place.
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
        found = yield SlotRequest(asked, seen, {tenant for tenant, left in room.items() if left <= 0})
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


def made(choice: Choice, find: Callable[[SlotRequest], Mapping[str, Sequence[Candidate]]]) -> list[Candidate]:
    """Run a choice with a function that finds candidates synchronously."""
    try:
        wanted = next(choice)
        while True:
            wanted = choice.send(find(wanted))
    except StopIteration as end:
        chosen: list[Candidate] = end.value
        return chosen


def place_retry(budget: RetryBudget, counts: dict[int, int], due: Instant) -> Instant:
    """Return when a retry due at ``due`` may run: in its period, or in the first later one with room.

    ``counts``: the number of retries in each period; updated in place. No retry is dropped.
    """
    period = due // budget.per
    moved = period
    while counts.get(moved, 0) >= budget.most:
        moved += 1
    counts[moved] = counts.get(moved, 0) + 1
    return due if moved == period else budget.place(moved, counts[moved])
