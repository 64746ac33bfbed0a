"""Where a claim begins to look, by how long a look from the front took, and why."""

import pytest

from mainspring.adapters.store.postgres.floors import Floors

MANY = 100_000


class Seconds:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def seconds() -> Seconds:
    return Seconds()


@pytest.fixture
def floors(seconds: Seconds) -> Floors:
    return Floors(seconds)


def claim(floors: Floors, seconds: Seconds, took: float) -> bool:
    began = floors.begin()
    seconds.now += took
    return floors.wants_look(began)


def look(floors: Floors, seconds: Seconds, took: float, lowest: dict[int, int], dead: int = MANY) -> None:
    began = floors.begin()
    seconds.now += took
    floors.looked(began, dead, lowest)


def test_claims_begin_at_the_front_while_they_are_quick(floors: Floors, seconds: Seconds) -> None:
    assert not claim(floors, seconds, 0.002)
    assert floors.of([1, 2]) == [0, 0]


def test_after_a_slow_claim_it_is_looked_and_claims_begin_at_what_is_first(floors: Floors, seconds: Seconds) -> None:
    assert claim(floors, seconds, 0.05)
    look(floors, seconds, 0.05, {1: 40, 2: 7})
    assert floors.of([1, 2, 3]) == [40, 7, 0]


@pytest.mark.parametrize(("took", "dead"), [(0.05, 100), (0.002, MANY)])
def test_a_claim_may_be_slow_for_other_reasons(floors: Floors, seconds: Seconds, took: float, dead: int) -> None:
    assert claim(floors, seconds, 0.05)
    look(floors, seconds, took, {1: 40}, dead)
    assert floors.of([1]) == [0]
    assert not claim(floors, seconds, 0.05), "it was just looked"
    seconds.now += 1
    assert claim(floors, seconds, 0.05)


def test_it_is_looked_again_after_ten_times_as_long_however_quick_claims_are(floors: Floors, seconds: Seconds) -> None:
    look(floors, seconds, 0.05, {1: 40})
    seconds.now += 0.49
    assert not claim(floors, seconds, 0)
    seconds.now += 0.02
    assert claim(floors, seconds, 0)
    look(floors, seconds, 0.05, {1: 30})
    assert floors.of([1]) == [30], "a more urgent one has come"


def test_all_is_as_before_when_the_front_is_quick_again(floors: Floors, seconds: Seconds) -> None:
    look(floors, seconds, 0.05, {1: 40})
    look(floors, seconds, 0.001, {1: 90})
    assert floors.of([1]) == [0]


def test_where_nothing_was_found_what_was_known_holds(floors: Floors, seconds: Seconds) -> None:
    look(floors, seconds, 0.05, {1: 40, 2: 7})
    look(floors, seconds, 0.05, {1: 90})
    assert floors.of([1, 2]) == [90, 7]


def test_what_claims_find_moves_the_floors_up_with_room_for_a_late_commit(floors: Floors, seconds: Seconds) -> None:
    floors.took([(1, 5_000_000)])
    assert floors.of([1]) == [0], "nothing is slow"
    look(floors, seconds, 0.05, {1: 40})
    floors.took([(1, 5_000_000), (1, 4_000_000), (2, 9_000_000)])
    assert floors.of([1, 2, 3]) == [3_900_000, 8_900_000, 0]
    floors.took([(1, 3_950_000)])
    assert floors.of([1]) == [3_900_000], "one that was there is no reason to go back"
    look(floors, seconds, 0.05, {1: 30})
    assert floors.of([1, 2]) == [30, 8_900_000], "a more urgent one is"


def test_an_empty_queue_whose_front_is_slow_is_told_by_claims_where_to_begin(floors: Floors, seconds: Seconds) -> None:
    look(floors, seconds, 0.05, {})
    assert floors.of([1]) == [0]
    floors.took([(1, 5_000_000)])
    assert floors.of([1]) == [4_900_000]
