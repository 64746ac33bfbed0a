"""Placement groups: arithmetic that every process and every server must agree on."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.ids import IdMaker
from mainspring.core.model.cluster.placement import (
    MOST_PLACES,
    choose_placement_group,
    count_placement_groups,
    find_placement_group,
    moves_for_balance,
    shard_in,
)

shards = st.integers(1, 500)


@given(shards, st.text(min_size=1, max_size=20), st.text(max_size=20), st.text(max_size=10), st.integers(0, 10**9))
def test_an_id_carries_the_placement_group_of_its_tenant(
    number: int, tenant: str, placement: str, key: str, chance: int
) -> None:
    group = choose_placement_group(tenant, placement, count_placement_groups(number))
    shard = shard_in(group, number, key, chance)
    assert 0 <= shard < number
    assert find_placement_group(IdMaker(Random(0)).make(0, shard), count_placement_groups(number)) == group


@given(shards)
def test_the_placement_groups_together_contain_every_shard(number: int) -> None:
    groups = count_placement_groups(number)
    assert groups <= MOST_PLACES
    reachable = [{shard_in(group, number, "", chance) for chance in range(number)} for group in range(groups)]
    assert sorted(shard for group in reachable for shard in group) == list(range(number))


def test_tenants_are_spread_over_all_placement_groups() -> None:
    groups = count_placement_groups(100)
    assert {choose_placement_group(f"tenant-{number}", "", groups) for number in range(1_000)} == set(range(groups))
    assert {choose_placement_group("one", f"part-{number}", groups) for number in range(1_000)} == set(range(groups))


@given(st.integers(1, 32), st.sets(st.integers(0, 9), min_size=1), st.sets(st.integers(0, 9), min_size=1))
def test_rebalancing_evens_out_the_servers_with_the_fewest_moves(
    groups: int, before: set[int], after: set[int]
) -> None:
    homes = {group: sorted(before)[group % len(before)] for group in range(groups)}
    moves = moves_for_balance(homes, sorted(after))
    assert all(homes[group] != server for group, server in moves)
    assert len({group for group, _ in moves}) == len(moves)
    moved = homes | dict(moves)
    counts = [list(moved.values()).count(server) for server in after]
    assert set(moved.values()) <= after
    assert max(counts) - min(counts) <= 1
    assert moves_for_balance(moved, sorted(after)) == []
    # The fewest moves: a removed server loses all its groups, the others at most their surplus.
    least = len(homes) // len(after)
    surplus = [list(homes.values()).count(server) - least for server in after if server in before]
    assert len(moves) <= sum(server not in after for server in homes.values()) + sum(max(more, 0) for more in surplus)
