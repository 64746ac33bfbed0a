"""The slots of a worker: when a freed slot wakes the claimer, and how long the claimer gathers them."""

import msgspec
import pytest

from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.worker.slots import SlotGroup, Slots
from tests.support.builders import a_held_run
from tests.support.clock import ManualClock

GATHER: Micros = 2 * MILLISECOND


class Desk:
    """A claimer's slots, all of them taken by a claim that filled its demand."""

    def __init__(self, slots: int = 8) -> None:
        self.clock = ManualClock()
        self.clock.advance(SECOND)
        self.slots = Slots({"default": slots}, self.clock, LocalWakeups().listen([]), GATHER)
        demands = self.slots.demands(slots)
        for _ in range(slots):
            self.group.take(1)
        self.slots.answered(demands, [a_held_run() for _ in range(slots)])

    @property
    def group(self) -> SlotGroup:
        return self.slots.groups["default"]

    def free(self) -> bool:
        """Return a slot; returns whether it wakes the claimer."""
        self.slots.woken = False
        self.slots.give(self.group, 1)
        return self.slots.woken


def test_a_claimer_without_free_slots_is_woken_by_the_first_one_only() -> None:
    desk = Desk()
    assert desk.slots.pause() is None
    assert desk.free()
    assert not desk.free()


def test_a_claimer_waits_for_a_quarter_of_the_slots() -> None:
    desk = Desk()
    desk.free()
    assert desk.slots.pause() == GATHER
    assert desk.free()
    assert desk.slots.pause() == 0


@pytest.mark.parametrize(("waited", "pause", "woken"), [(GATHER - 1, 1, True), (GATHER, 0, False)])
def test_a_claimer_that_has_gathered_long_enough_claims_what_is_free(
    waited: Micros, pause: Micros, woken: bool
) -> None:
    desk = Desk()
    desk.free()
    desk.clock.advance(waited)
    assert desk.slots.pause() == pause
    # A claimer that is about to claim must not be woken for the slots that it will see.
    assert desk.free() is woken


@pytest.mark.parametrize(
    ("runs", "more"),
    [([0, 4], [False, True]), ([4, 0], [True, False]), ([3, 4], [False, True]), ([4, 4], [True, True])],
)
def test_a_queue_may_have_more_runs_if_the_answer_filled_its_own_demand(runs: list[int], more: list[bool]) -> None:
    clock = ManualClock()
    slots = Slots({"a": 4, "b": 4}, clock, LocalWakeups().listen([]), GATHER)
    answer = [
        msgspec.structs.replace(a_held_run(), queue=queue)
        for queue, count in zip("ab", runs, strict=True)
        for _ in range(count)
    ]
    slots.answered(slots.demands(8), answer)
    assert [slots.groups[queue].may_have_more for queue in "ab"] == more
