"""Places: arithmetic that every process and every server must agree on."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.ids import IdMaker
from mainspring.domain.placement import (
    MOST_PLACES,
    moves_for_balance,
    place_for,
    place_of,
    places_of,
    shard_in,
    shards_in,
)

shards = st.integers(1, 500)


@given(shards, st.text(min_size=1, max_size=20), st.text(max_size=20), st.text(max_size=10), st.integers(0, 10**9))
def test_an_id_carries_the_place_of_its_tenant(number: int, tenant: str, placement: str, key: str, chance: int) -> None:
    place = place_for(tenant, placement, places_of(number))
    shard = shard_in(place, number, key, chance)
    assert 0 <= shard < number
    assert place_of(IdMaker(Random(0)).make(0, shard), places_of(number)) == place


@given(shards)
def test_the_shards_of_all_places_are_all_shards(number: int) -> None:
    places = places_of(number)
    assert places <= MOST_PLACES
    assert sorted(shard for place in range(places) for shard in shards_in([place], number)) == list(range(number))
    for place in range(places):
        assert {shard_in(place, number, "", chance) for chance in range(number)} == set(shards_in([place], number))


def test_tenants_are_spread() -> None:
    places = places_of(100)
    assert {place_for(f"tenant-{number}", "", places) for number in range(1_000)} == set(range(places))
    assert {place_for("one", f"part-{number}", places) for number in range(1_000)} == set(range(places))


@given(st.integers(1, 32), st.sets(st.integers(0, 9), min_size=1), st.sets(st.integers(0, 9), min_size=1))
def test_after_the_moves_servers_are_even_and_no_move_was_idle(places: int, before: set[int], after: set[int]) -> None:
    homes = {place: sorted(before)[place % len(before)] for place in range(places)}
    moves = moves_for_balance(homes, sorted(after))
    assert all(homes[place] != server for place, server in moves)
    assert len({place for place, _ in moves}) == len(moves)
    moved = homes | dict(moves)
    counts = [list(moved.values()).count(server) for server in after]
    assert set(moved.values()) <= after
    assert max(counts) - min(counts) <= 1
    assert moves_for_balance(moved, sorted(after)) == []
    # No more than must be: who leaves gives up all, the others at most what they have too much.
    least = len(homes) // len(after)
    surplus = [list(homes.values()).count(server) - least for server in after if server in before]
    assert len(moves) <= sum(server not in after for server in homes.values()) + sum(max(more, 0) for more in surplus)
