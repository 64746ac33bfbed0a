"""Floors of claims: where the scan for runs starts after scans over many dead rows were slow."""

import pytest

from mainspring.stores.postgres.rank_floors import RankFloors

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
def floors(seconds: Seconds) -> RankFloors:
    return RankFloors(seconds)


def claim(floors: RankFloors, seconds: Seconds, took: float) -> bool:
    began = floors.read_clock()
    seconds.now += took
    return floors.needs_lookup(began)


def look(floors: RankFloors, seconds: Seconds, took: float, lowest: dict[int, int], dead: int = MANY) -> None:
    began = floors.read_clock()
    seconds.now += took
    floors.record_lookup(began, dead, lowest)


def test_claims_scan_from_the_front_while_they_are_fast(floors: RankFloors, seconds: Seconds) -> None:
    assert not claim(floors, seconds, 0.002)
    assert floors.get_start_ranks([1, 2]) == [0, 0]


def test_after_a_slow_claim_a_look_finds_the_row_where_claims_start(floors: RankFloors, seconds: Seconds) -> None:
    assert claim(floors, seconds, 0.05)
    look(floors, seconds, 0.05, {1: 40, 2: 7})
    assert floors.get_start_ranks([1, 2, 3]) == [40, 7, 0]


@pytest.mark.parametrize(("took", "dead"), [(0.05, 100), (0.002, MANY)])
def test_a_claim_that_is_slow_for_other_reasons_sets_no_floor(
    floors: RankFloors, seconds: Seconds, took: float, dead: int
) -> None:
    assert claim(floors, seconds, 0.05)
    look(floors, seconds, took, {1: 40}, dead)
    assert floors.get_start_ranks([1]) == [0]
    assert not claim(floors, seconds, 0.05), "the last look was just now"
    seconds.now += 1
    assert claim(floors, seconds, 0.05)


def test_a_look_is_repeated_after_ten_times_its_duration(floors: RankFloors, seconds: Seconds) -> None:
    look(floors, seconds, 0.05, {1: 40})
    seconds.now += 0.49
    assert not claim(floors, seconds, 0)
    seconds.now += 0.02
    assert claim(floors, seconds, 0)
    look(floors, seconds, 0.05, {1: 30})
    assert floors.get_start_ranks([1]) == [30], "a more urgent run was added"


def test_a_fast_look_resets_the_floors(floors: RankFloors, seconds: Seconds) -> None:
    look(floors, seconds, 0.05, {1: 40})
    look(floors, seconds, 0.001, {1: 90})
    assert floors.get_start_ranks([1]) == [0]


def test_a_queue_in_which_a_look_found_nothing_keeps_its_floor(floors: RankFloors, seconds: Seconds) -> None:
    look(floors, seconds, 0.05, {1: 40, 2: 7})
    look(floors, seconds, 0.05, {1: 90})
    assert floors.get_start_ranks([1, 2]) == [90, 7]


def test_claims_raise_the_floor_with_room_for_late_commits(floors: RankFloors, seconds: Seconds) -> None:
    floors.record_claim([(1, 5_000_000)])
    assert floors.get_start_ranks([1]) == [0], "nothing is slow"
    look(floors, seconds, 0.05, {1: 40})
    floors.record_claim([(1, 5_000_000), (1, 4_000_000), (2, 9_000_000)])
    assert floors.get_start_ranks([1, 2, 3]) == [3_900_000, 8_900_000, 0]
    floors.record_claim([(1, 3_950_000)])
    assert floors.get_start_ranks([1]) == [3_900_000], "a claim of an older row does not lower the floor"
    look(floors, seconds, 0.05, {1: 30})
    assert floors.get_start_ranks([1, 2]) == [30, 8_900_000], "a look lowers the floor"


def test_claims_set_the_floor_of_a_queue_that_was_empty_at_the_look(floors: RankFloors, seconds: Seconds) -> None:
    look(floors, seconds, 0.05, {})
    assert floors.get_start_ranks([1]) == [0]
    floors.record_claim([(1, 5_000_000)])
    assert floors.get_start_ranks([1]) == [4_900_000]
