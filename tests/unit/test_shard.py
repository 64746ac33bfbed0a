"""Shards are spread evenly over members, and move only when they must."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.cluster.shard import choose_owner, choose_shards, freed, taken

SHARDS = 100

members = st.sets(st.integers(1, 10_000), min_size=1, max_size=8).map(lambda ids: sorted(map(SessionId, ids)))


@given(members)
def test_every_shard_has_exactly_one_owner(members: list[SessionId]) -> None:
    owned = [shard for member in members for shard in choose_shards(member, SHARDS, members)]
    assert sorted(owned) == list(range(SHARDS))


@given(members)
def test_the_order_in_which_members_are_listed_does_not_matter(members: list[SessionId]) -> None:
    assert all(choose_owner(shard, members) == choose_owner(shard, members[::-1]) for shard in range(SHARDS))


@given(members.filter(lambda members: len(members) > 1), st.data())
def test_removing_a_member_moves_only_its_shards(members: list[SessionId], data: st.DataObject) -> None:
    removed = data.draw(st.sampled_from(members))
    left = [member for member in members if member != removed]
    for shard in range(SHARDS):
        before = choose_owner(shard, members)
        assert before == removed or choose_owner(shard, left) == before


@given(members, st.integers(10_001, 20_000).map(SessionId))
def test_a_new_member_takes_shards_and_moves_no_others(members: list[SessionId], newcomer: SessionId) -> None:
    for shard in range(SHARDS):
        after = choose_owner(shard, [*members, newcomer])
        assert after == newcomer or after == choose_owner(shard, members)


def test_shards_are_spread_evenly() -> None:
    members = [SessionId(member) for member in range(1, 5)]
    share = Counter(choose_owner(shard, members) for shard in range(10_000))
    assert all(2_300 < share[member] < 2_700 for member in members)


def test_three_members_get_fair_shares_of_a_hundred_shards() -> None:
    for first in range(1, 200):
        members = [SessionId(first + step) for step in range(3)]
        share = Counter(choose_owner(shard, members) for shard in range(SHARDS))
        assert all(15 <= share[member] <= 55 for member in members)


def test_owners_are_the_same_on_every_machine() -> None:
    members = [SessionId(1), SessionId(2), SessionId(3)]
    assert "".join(str(choose_owner(shard, members)) for shard in range(10)) == "2233133211"


some_shards = st.sets(st.integers(0, SHARDS - 1), max_size=20)
owners = st.dictionaries(st.integers(0, SHARDS - 1), st.integers(1, 12).map(SessionId), max_size=40)
living = st.sets(st.integers(1, 12).map(SessionId), max_size=6)


@given(owners, living, st.integers(1, 12).map(SessionId), some_shards)
def test_only_shards_without_a_live_owner_are_taken(
    before: dict[int, SessionId], live: set[SessionId], member: SessionId, wanted: set[int]
) -> None:
    after = taken(before, live, member, wanted)
    for shard in range(SHARDS):
        free = before.get(shard) not in live
        assert after.get(shard) == (member if shard in wanted and free else before.get(shard))
    # Taking the same shards again changes nothing.
    assert taken(after, live | {member}, member, wanted) == after


@given(owners, st.integers(1, 12).map(SessionId), some_shards)
def test_a_member_frees_only_its_own_shards(before: dict[int, SessionId], member: SessionId, to_free: set[int]) -> None:
    after = freed(before, member, to_free)
    assert all(after.get(shard) == owner or (owner == member and shard in to_free) for shard, owner in before.items())
    assert not [shard for shard in to_free if after.get(shard) == member]
    assert after.items() <= before.items()
