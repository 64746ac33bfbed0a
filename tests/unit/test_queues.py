"""Fair queues, weights and retry budgets: shares hold, no tenant starves, no retry is dropped."""

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.errors import Invalid
from mainspring.domain.ids import RunId
from mainspring.domain.instant import MINUTE, SECOND
from mainspring.domain.queues import Candidate, RetryBudget, Turns, choose, made, parse_budget, place_retry

TENANTS = "abcdef"
ENOUGH = 10_000


class Queue:
    """A fair queue in memory."""

    def __init__(self, shares: Mapping[str, int] | None = None) -> None:
        self.ready: dict[str, list[Candidate]] = {}
        self.shares = shares or {}
        self.clock = 0
        self.tags: dict[str, int] = {}
        self.number = 0

    def put(self, tenant: str, count: int, weight: int = 1) -> None:
        for _ in range(count):
            self.number += 1
            run = Candidate(RunId(f"{self.number:06}"), tenant, self.number, weight)
            self.ready.setdefault(tenant, []).append(run)

    def claim(
        self, limit: int, slots: int | None = None, most: int = ENOUGH, room: dict[str, int] | None = None
    ) -> list[Candidate]:
        turns = Turns(self.clock, self.tags, self.shares, self.ready)
        chosen = made(
            choose(limit, slots, most, turns, {} if room is None else room),
            lambda wanted: {
                tenant: [run for run in self.ready[tenant] if run.id not in wanted.seen and tenant not in wanted.full][
                    :count
                ]
                for tenant, count in wanted.most.items()
            },
        )
        self.clock, self.tags = turns.clock, turns.kept()
        for run in chosen:
            self.ready[run.tenant].remove(run)
            if not self.ready[run.tenant]:
                del self.ready[run.tenant]
        return chosen


@given(
    st.dictionaries(st.sampled_from(TENANTS), st.integers(1, 9), min_size=2),
    st.lists(st.integers(1, 17), min_size=5, max_size=40),
)
def test_shares_hold_for_claims_of_any_size(shares: dict[str, int], claims: list[int]) -> None:
    queue = Queue(shares)
    for tenant in shares:
        queue.put(tenant, sum(claims))
    taken = Counter(run.tenant for limit in claims for run in queue.claim(limit))
    total = sum(claims)
    assert sum(taken.values()) == total
    for tenant, share in shares.items():
        # A tenant deviates from its share by at most one run per tenant.
        assert abs(taken[tenant] - total * share / sum(shares.values())) <= len(shares)


@given(
    st.dictionaries(st.sampled_from(TENANTS), st.integers(1, 9)),
    st.lists(st.sampled_from(TENANTS), min_size=1, max_size=6, unique=True),
    st.lists(st.integers(1, 30), max_size=10),
    st.sampled_from(["0", "z"]),
)
def test_a_single_new_run_waits_for_at_most_one_run_of_each_other_tenant(
    shares: dict[str, int], others: list[str], claims: list[int], alone: str
) -> None:
    queue = Queue(shares)
    for tenant in others:
        queue.put(tenant, sum(claims) + 2)
    for limit in claims:
        queue.claim(limit)
    queue.put(alone, 1)
    before = 0
    while queue.claim(1)[0].tenant != alone:
        before += 1
    assert before <= len(others)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 12)), min_size=1, max_size=40),
    st.integers(1, 10),
    st.booleans(),
)
def test_weights_never_take_more_slots_than_are_free_and_every_run_starts(
    runs: list[tuple[str, int]], slots: int, fair: bool
) -> None:
    queue = Queue()
    for tenant, weight in runs:
        queue.put(tenant if fair else "a", 1, weight)
    running: list[int] = []
    started = 0
    for _ in range(4 * len(runs) + 1):
        free = slots - sum(running)
        chosen = queue.claim(free, slots) if free else []
        taken = [min(run.weight, slots) for run in chosen]
        assert sum(taken) <= free
        started += len(chosen)
        running = [*running[1:], *taken]
    assert started == len(runs)


@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 5))
def test_a_tenant_without_room_does_not_block_others(limit: int, most: int, room: int) -> None:
    queue = Queue()
    queue.put("a", 30)
    queue.put("b", 30)
    taken = Counter(run.tenant for run in queue.claim(limit, most=most, room={"a": room}))
    assert sum(taken.values()) == min(limit, most)
    assert taken["a"] <= room


@given(st.integers(1, 5), st.lists(st.integers(0, 20 * SECOND), max_size=200))
def test_a_retry_budget_is_never_exceeded_and_no_retry_is_dropped_or_early(most: int, wanted: list[int]) -> None:
    budget = RetryBudget(most=most, per=SECOND)
    counts: dict[int, int] = {}
    dues = [place_retry(budget, counts, due) for due in wanted]
    assert all(due >= asked for due, asked in zip(dues, wanted, strict=True))
    assert max(Counter(due // SECOND for due in dues).values(), default=0) <= most
    # Periods are aligned to the clock, so any other second overlaps two of them.
    in_order = sorted(dues)
    assert all(later - due >= SECOND for due, later in zip(in_order, in_order[2 * most :], strict=False))
    # No retry is delayed longer than the budget needs for all of them.
    for due, asked in zip(dues, wanted, strict=True):
        assert due - asked <= (len(wanted) // most + 1) * SECOND


@pytest.mark.parametrize(
    ("text", "most", "per"), [("10/s", 10, SECOND), ("600/5m", 600, 5 * MINUTE), ("1/1m", 1, MINUTE)]
)
def test_a_retry_budget_is_parsed(text: str, most: int, per: int) -> None:
    assert parse_budget(text) == RetryBudget(most=most, per=per)
    assert parse_budget(str(parse_budget(text))) == parse_budget(text)


@pytest.mark.parametrize("text", ["", "10", "/s", "0/s", "ten/s", "10/", "10/fortnight", "-1/s", "10/2d"])
def test_an_invalid_retry_budget_is_rejected(text: str) -> None:
    with pytest.raises(Invalid):
        parse_budget(text)
