"""The timing wheel, compared with a heap."""

import heapq

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mainspring.core.model.base.instant import DAY, HOUR, LATEST, MILLISECOND, MINUTE, SECOND, Instant, Micros
from mainspring.core.scheduler.wheel import TimingWheel

START: Instant = 1_772_323_200_000_000

distances = st.one_of(
    st.integers(0, 20 * MILLISECOND),
    st.integers(0, SECOND),
    st.integers(0, 10 * MINUTE),
    st.integers(0, 100 * DAY),
    st.integers(0, 100 * 366 * DAY),
    st.sampled_from([1, 255, 256, 257, 65_535, 65_536, 65_537, 1 << 24, 1 << 32]).map(lambda ms: ms * MILLISECOND),
)


def round_up(due: Instant) -> Instant:
    return -(-due // MILLISECOND) * MILLISECOND


class WheelAgainstHeap(RuleBasedStateMachine):
    """Items leave the wheel at the same time and in the same order as a heap."""

    @initialize(start=st.integers(START, START + DAY))
    def begin(self, start: Instant) -> None:
        self.now = start
        self.wheel: TimingWheel[int] = TimingWheel(start)
        self.heap: list[tuple[Instant, int]] = []
        self.dues: dict[int, Instant] = {}

    def put(self, due: Instant) -> None:
        item = len(self.dues)
        self.dues[item] = round_up(due)
        self.wheel.insert(due, item)
        heapq.heappush(self.heap, (round_up(due), item))

    @rule(distance=distances)
    def insert_ahead(self, distance: Micros) -> None:
        self.put(self.now + distance)

    @rule(distance=distances, count=st.integers(2, 30))
    def insert_many(self, distance: Micros, count: int) -> None:
        for _ in range(count):
            self.put(self.now + distance)

    @rule(distance=distances)
    def insert_overdue(self, distance: Micros) -> None:
        self.put(self.now - distance)

    @rule(distance=distances)
    def advance(self, distance: Micros) -> None:
        self.now += distance
        self.compare()

    @rule()
    def advance_to_the_next_due(self) -> None:
        due = self.wheel.next_due()
        if due is not None:
            self.now = max(self.now, due)
            self.compare()

    @rule(distance=st.integers(0, 10 * SECOND))
    def set_the_clock_back(self, distance: Micros) -> None:
        self.now -= distance
        self.compare()

    def compare(self) -> None:
        came_out = self.wheel.advance(self.now)
        expected = []
        while self.heap and self.heap[0][0] <= self.now:
            expected.append(heapq.heappop(self.heap))
        assert [self.dues[item] for item in came_out] == [due for due, _ in expected]
        assert sorted(came_out) == sorted(item for _, item in expected)

    @invariant()
    def no_item_is_lost_and_the_next_due_is_not_late(self) -> None:
        if not hasattr(self, "wheel"):
            return
        assert len(self.wheel) == len(self.heap)
        due = self.wheel.next_due()
        assert (due is None) == (not self.heap)
        if due is not None:
            assert due <= self.heap[0][0]


TestWheelAgainstHeap = WheelAgainstHeap.TestCase


def test_an_item_comes_out_at_its_millisecond_and_not_before() -> None:
    wheel: TimingWheel[str] = TimingWheel(START)
    wheel.insert(START + 5_500, "a")
    assert wheel.advance(START + 5_999) == []
    assert wheel.advance(START + 6_000) == ["a"]
    assert len(wheel) == 0


def test_an_overdue_item_comes_out_at_the_next_advance() -> None:
    wheel: TimingWheel[str] = TimingWheel(START)
    wheel.insert(START - HOUR, "late")
    assert wheel.next_due() == START - HOUR
    assert wheel.advance(START) == ["late"]
    assert wheel.next_due() is None


def test_an_item_at_the_latest_instant_comes_out_on_time() -> None:
    wheel: TimingWheel[str] = TimingWheel(START)
    wheel.insert(LATEST, "last")
    assert wheel.advance(LATEST - MILLISECOND) == []
    assert wheel.advance(LATEST) == ["last"]


def test_items_far_apart_come_out_in_order_over_a_jump() -> None:
    wheel: TimingWheel[int] = TimingWheel(START)
    for day in reversed(range(100)):
        wheel.insert(START + day * DAY, day)
    assert wheel.advance(START + 1_000 * DAY) == list(range(100))


@given(st.lists(st.integers(0, 10 * SECOND), max_size=50))
def test_sleeping_until_the_next_due_finds_everything_in_few_steps(distances: list[Micros]) -> None:
    wheel: TimingWheel[Micros] = TimingWheel(START)
    for distance in distances:
        wheel.insert(START + distance, distance)
    came_out: list[Micros] = []
    steps = 0
    while (due := wheel.next_due()) is not None:
        came_out += wheel.advance(due)
        steps += 1
    assert sorted(came_out) == sorted(distances)
    assert steps <= 3 * len(distances)
