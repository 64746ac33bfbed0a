"""Fair queues, weights and retry budgets: shares hold, no tenant starves, no retry is dropped."""

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import DAY, MILLISECOND, MINUTE, SECOND
from mainspring.core.model.limits.queues import (
    MAX_CONCURRENCY,
    MAX_RETRIES,
    MAX_SHARE,
    MAX_SHARES,
    NO_POLICY,
    PRICE,
    Candidate,
    QueuePolicy,
    RetryBudget,
    SlotRequest,
    TurnOrder,
    choose,
    made,
    parse_budget,
    place_retry,
)

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
        turns = TurnOrder(self.clock, self.tags, self.shares, self.ready)
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
    ("text", "most", "per"),
    [("10/s", 10, SECOND), ("600/5m", 600, 5 * MINUTE), ("1/1m", 1, MINUTE), ("000000001/ms", 1, MILLISECOND)],
)
def test_a_retry_budget_is_parsed(text: str, most: int, per: int) -> None:
    assert parse_budget(text) == RetryBudget(most=most, per=per)
    assert parse_budget(str(parse_budget(text))) == parse_budget(text)


@pytest.mark.parametrize(
    "text", ["", "10", "/s", "0/s", "ten/s", "١/s", "10/", "10/fortnight", "-1/s", "10/2d", "1000001/s", "1/999us"]
)
def test_an_invalid_retry_budget_is_rejected(text: str) -> None:
    with pytest.raises(Invalid):
        parse_budget(text)


def test_a_number_with_more_than_nine_digits_is_no_budget() -> None:
    with pytest.raises(Invalid, match="is not a rate"):
        parse_budget("0000000001/s")


MANY_SHARES = {f"t{number}": 1 for number in range(MAX_SHARES)}


@pytest.mark.parametrize(
    "policy",
    [
        NO_POLICY,
        QueuePolicy(concurrency=1),
        QueuePolicy(concurrency=MAX_CONCURRENCY),
        QueuePolicy(retries=RetryBudget(most=1, per=MILLISECOND)),
        QueuePolicy(retries=RetryBudget(most=MAX_RETRIES, per=DAY)),
        QueuePolicy(fair=True, shares={"a": 1, "b": MAX_SHARE}),
        QueuePolicy(fair=True, shares=MANY_SHARES),
    ],
)
def test_a_policy_at_its_limits_is_accepted(policy: QueuePolicy) -> None:
    policy.check()


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        (QueuePolicy(concurrency=0), "concurrency"),
        (QueuePolicy(concurrency=MAX_CONCURRENCY + 1), "concurrency"),
        (QueuePolicy(retries=RetryBudget(most=0, per=SECOND)), "retries"),
        (QueuePolicy(retries=RetryBudget(most=MAX_RETRIES + 1, per=SECOND)), "retries"),
        (QueuePolicy(retries=RetryBudget(most=1, per=MILLISECOND - 1)), "retries"),
        (QueuePolicy(retries=RetryBudget(most=1, per=DAY + 1)), "retries"),
        (QueuePolicy(fair=True, shares={"a": 0}), "shares"),
        (QueuePolicy(fair=True, shares={"a": MAX_SHARE + 1}), "shares"),
        (QueuePolicy(fair=True, shares={"*": 1}), "shares"),
        (QueuePolicy(fair=True, shares=MANY_SHARES | {"more": 1}), "shares"),
        (QueuePolicy(shares={"a": 1}), "shares"),
    ],
)
def test_an_invalid_policy_is_rejected_by_field(policy: QueuePolicy, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        policy.check()
    assert refused.value.field == field


def test_the_audit_shows_a_policy_as_it_was_written() -> None:
    unset: dict[str, object] = {"concurrency": None, "retries": None, "fair": False, "shares": []}
    assert NO_POLICY.words() == unset
    policy = QueuePolicy(retries=RetryBudget(most=5, per=SECOND), fair=True, shares={"b": 2, "a": 1})
    assert policy.words() == unset | {"retries": "5/1s", "fair": True, "shares": ["a=1", "b=2"]}


def test_only_a_concurrency_or_fairness_makes_claims_read_the_policy() -> None:
    budget = RetryBudget(most=1, per=SECOND)
    policies = (NO_POLICY, QueuePolicy(retries=budget), QueuePolicy(concurrency=1), QueuePolicy(fair=True))
    assert [policy.looks_closely for policy in policies] == [False, False, True, True]


def test_retries_that_are_moved_are_spread_evenly_over_their_period() -> None:
    budget, counts = RetryBudget(most=4, per=SECOND), {5: 4}
    dues = [place_retry(budget, counts, 5 * SECOND + 1) for _ in range(5)]
    assert [due - 6 * SECOND for due in dues] == [0, SECOND // 4, SECOND // 2, 3 * SECOND // 4, SECOND]
    assert place_retry(budget, {5: 3}, 5 * SECOND + 1) == 5 * SECOND + 1


def test_a_tag_is_kept_only_while_it_is_ahead_of_the_clock() -> None:
    turns = TurnOrder(10, {"a": 10, "b": 11, "c": 9}, {}, ())
    assert turns.kept() == {"b": 11}
    assert turns.next is None
    assert turns.ahead(3) == {}


def test_the_next_turns_are_counted_by_share() -> None:
    turns = TurnOrder(0, {"b": 1}, {"a": 2}, ("a", "b"))
    assert turns.ahead(0) == {}
    assert turns.ahead(3) == {"a": 2, "b": 1}
    assert [turns.price(tenant, 3) for tenant in "ab"] == [3 * PRICE // 2, 3 * PRICE]
    assert TurnOrder(0, {"b": 3 * PRICE // 2}, {}, ("a", "b")).ahead(2) == {"a": 2}
    turns.serve(3)
    assert (turns.clock, turns.next, turns.kept()) == (0, "b", {"a": 3 * PRICE // 2, "b": 1})


class Plain:
    """A queue that is not fair. It records what a choice asks for."""

    def __init__(self, *runs: Candidate) -> None:
        self.runs = list(runs)
        self.asked: list[tuple[int, set[str]]] = []

    def claim(
        self, limit: int, slots: int | None = None, most: int = ENOUGH, room: dict[str, int] | None = None
    ) -> list[str]:
        def find(wanted: SlotRequest) -> dict[str, list[Candidate]]:
            self.asked.append((wanted.most[""], set(wanted.full)))
            left = [run for run in self.runs if run.id not in wanted.seen and run.tenant not in wanted.full]
            return {"": left[: wanted.most[""]]}

        return [run.id for run in made(choose(limit, slots, most, None, {} if room is None else room), find)]


def a_candidate(name: str, tenant: str = "a", weight: int = 1) -> Candidate:
    return Candidate(RunId(name), tenant, 1, weight)


@pytest.mark.parametrize(("limit", "most", "asks"), [(0, 5, []), (5, 0, []), (2, 5, [2]), (5, 2, [2]), (3, 3, [3])])
def test_a_choice_asks_for_no_more_than_it_can_start(limit: int, most: int, asks: list[int]) -> None:
    queue = Plain(*(a_candidate(str(number)) for number in range(9)))
    assert len(queue.claim(limit, most=most)) == min(limit, most)
    assert [count for count, _ in queue.asked] == asks


def test_a_choice_ends_when_fewer_runs_are_found_than_asked_for() -> None:
    queue = Plain(a_candidate("1"), a_candidate("2"))
    assert queue.claim(3) == ["1", "2"]
    assert len(queue.asked) == 1


def test_a_choice_asks_again_while_runs_of_a_full_tenant_took_places() -> None:
    queue = Plain(a_candidate("1"), a_candidate("2"), a_candidate("3", "b"), a_candidate("4", "b"))
    room = {"a": 1}
    assert queue.claim(2, room=room) == ["1", "3"]
    assert (queue.asked, room) == ([(2, set()), (1, {"a"})], {"a": 0})


def test_a_run_that_does_not_fit_ends_the_choice() -> None:
    queue = Plain(a_candidate("1", weight=2), a_candidate("2", weight=2), a_candidate("3"))
    assert queue.claim(3, slots=4) == ["1"]
    assert queue.claim(4, slots=4) == ["1", "2"]


def test_a_run_heavier_than_its_worker_runs_alone() -> None:
    queue = Plain(a_candidate("1", weight=9), a_candidate("2"))
    assert queue.claim(4, slots=4) == ["1"]
    assert queue.claim(3, slots=4) == []
    assert queue.claim(4) == ["1"]


def test_a_fair_choice_keeps_the_runs_that_it_has_read() -> None:
    queue = Queue()
    queue.put("a", 9)
    queue.put("b", 9)
    chosen = queue.claim(6, room={"b": 1})
    assert [run.id for run in chosen if run.tenant == "a"] == [f"{number:06}" for number in range(1, 6)]
    assert sum(run.tenant == "b" for run in chosen) == 1


def test_a_fair_choice_starts_no_more_than_the_queue_allows() -> None:
    queue = Queue()
    queue.put("a", 9, weight=5)
    queue.put("b", 9)
    chosen = queue.claim(100, most=6)
    assert [run.tenant for run in chosen] == ["a", "b", "b", "b", "b", "b"]


@pytest.mark.parametrize(("limit", "most"), [(2, 5), (5, 2)])
def test_a_fair_choice_asks_for_no_more_than_it_can_start(limit: int, most: int) -> None:
    choice = choose(limit, None, most, TurnOrder(0, {}, {}, ("a",)), {})
    assert next(choice).most == {"a": 2}
