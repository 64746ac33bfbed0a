"""Coordination: one live owner of a shard, and an epoch that grows with every new one."""

import asyncio

import pytest

from mainspring.domain.errors import Fenced
from mainspring.domain.ids import SessionId
from mainspring.domain.instant import DAY, MINUTE, SECOND
from tests.support.store_harness import SHORT_LEASE, Harness


async def test_every_member_gets_a_fresh_growing_id(harness: Harness) -> None:
    members = [await harness.store.join("same", MINUTE) for _ in range(3)]
    assert members == sorted(set(members))


async def test_a_renewal_tells_who_is_alive_in_ascending_order(harness: Harness) -> None:
    members = [await harness.store.join(name, MINUTE) for name in ("c", "a", "b")]
    before = await harness.now()
    membership = await harness.store.renew(members[1], MINUTE)
    assert membership.members == tuple(members)
    assert membership.owned == {}
    assert before <= membership.now <= await harness.now()


async def test_workers_are_no_members(harness: Harness) -> None:
    await harness.worker()
    member = await harness.store.join("one", MINUTE)
    assert (await harness.store.renew(member, MINUTE)).members == (member,)


async def test_a_renewal_extends_the_lease(harness: Harness) -> None:
    member = await harness.store.join("one", SHORT_LEASE)
    other = await harness.store.join("other", DAY)
    for _ in range(4):
        await harness.advance(SHORT_LEASE - 2 * SECOND)
        assert (await harness.store.renew(member, SHORT_LEASE)).members == (member, other)


async def test_a_member_whose_lease_has_run_out_is_buried_by_another(harness: Harness) -> None:
    dying = await harness.store.join("dying", SHORT_LEASE)
    other = await harness.store.join("other", DAY)
    await harness.advance(SHORT_LEASE + SECOND)
    assert (await harness.store.renew(other, DAY)).members == (other,)
    for _ in range(2):
        with pytest.raises(Fenced):
            await harness.store.renew(dying, MINUTE)
    assert (await harness.store.renew(other, DAY)).members == (other,)


async def test_a_lease_that_ran_out_unnoticed_is_extended(harness: Harness) -> None:
    member = await harness.store.join("one", SHORT_LEASE)
    taken = await harness.store.take(member, [1, 2])
    await harness.advance(SHORT_LEASE + SECOND)
    membership = await harness.store.renew(member, MINUTE)
    assert (membership.members, membership.owned) == ((member,), taken)


async def test_a_member_nobody_knows_is_fenced(harness: Harness) -> None:
    with pytest.raises(Fenced):
        await harness.store.renew(SessionId(987_654_321), MINUTE)


async def test_free_shards_are_taken_with_a_new_epoch(harness: Harness) -> None:
    member = await harness.store.join("one", MINUTE)
    taken = await harness.store.take(member, [1, 2, 5])
    assert set(taken) == {1, 2, 5}
    assert min(taken.values()) > 0
    assert (await harness.store.renew(member, MINUTE)).owned == taken


async def test_what_one_owns_already_is_not_newly_taken(harness: Harness) -> None:
    member = await harness.store.join("one", MINUTE)
    first = await harness.store.take(member, [1, 2])
    assert set(await harness.store.take(member, [2, 3])) == {3}
    owned = (await harness.store.renew(member, MINUTE)).owned
    assert {shard: owned[shard] for shard in (1, 2)} == first
    assert await harness.store.take(member, []) == {}


async def test_a_live_owners_shards_cannot_be_taken(harness: Harness) -> None:
    owner, other = await harness.store.join("owner", MINUTE), await harness.store.join("other", MINUTE)
    taken = await harness.store.take(owner, [1, 2])
    assert set(await harness.store.take(other, [1, 2, 3])) == {3}
    assert (await harness.store.renew(owner, MINUTE)).owned == taken


async def test_an_expired_lease_can_be_taken_and_raises_the_epoch(harness: Harness) -> None:
    dying, other = await harness.store.join("dying", SHORT_LEASE), await harness.store.join("other", DAY)
    old = await harness.store.take(dying, [1, 2])
    await harness.advance(SHORT_LEASE + SECOND)
    new = await harness.store.take(other, [1])
    assert new[1] > old[1]
    # Nobody has buried it yet: what was not taken is still its own.
    assert (await harness.store.renew(dying, MINUTE)).owned == {2: old[2]}
    assert (await harness.store.renew(other, DAY)).owned == new


async def test_the_shards_of_a_buried_member_can_be_taken(harness: Harness) -> None:
    dying, other = await harness.store.join("dying", SHORT_LEASE), await harness.store.join("other", DAY)
    old = await harness.store.take(dying, [1])
    await harness.advance(SHORT_LEASE + SECOND)
    await harness.store.renew(other, DAY)
    assert (await harness.store.take(other, [1]))[1] > old[1]


async def test_a_member_whose_own_lease_has_run_out_takes_nothing(harness: Harness) -> None:
    slow, other = await harness.store.join("slow", SHORT_LEASE), await harness.store.join("other", DAY)
    await harness.advance(SHORT_LEASE + SECOND)
    assert await harness.store.take(slow, [1]) == {}
    await harness.store.renew(other, DAY)
    assert await harness.store.take(slow, [1]) == {}
    assert set(await harness.store.take(other, [1])) == {1}


async def test_shards_given_up_can_be_taken_at_once(harness: Harness) -> None:
    giver, taker = await harness.store.join("giver", MINUTE), await harness.store.join("taker", MINUTE)
    old = await harness.store.take(giver, [1, 2])
    await harness.store.give_up(giver, [1])
    assert (await harness.store.renew(giver, MINUTE)).owned == {2: old[2]}
    new = await harness.store.take(taker, [1, 2])
    assert set(new) == {1}
    assert new[1] > old[1]


async def test_giving_up_what_is_not_owned_is_ignored(harness: Harness) -> None:
    owner, other = await harness.store.join("owner", MINUTE), await harness.store.join("other", MINUTE)
    taken = await harness.store.take(owner, [1])
    await harness.store.give_up(other, [1, 2])
    await harness.store.give_up(owner, [3])
    assert (await harness.store.renew(owner, MINUTE)).owned == taken


async def test_whoever_takes_a_shard_back_does_so_under_a_new_epoch(harness: Harness) -> None:
    member = await harness.store.join("one", MINUTE)
    old = await harness.store.take(member, [1])
    await harness.store.give_up(member, [1])
    assert (await harness.store.take(member, [1]))[1] > old[1]


async def test_who_leaves_gives_everything_back(harness: Harness) -> None:
    leaver, other = await harness.store.join("leaver", MINUTE), await harness.store.join("other", MINUTE)
    await harness.store.take(leaver, [1, 2])
    await harness.store.leave(leaver)
    await harness.store.leave(leaver)
    assert set(await harness.store.take(other, [1, 2])) == {1, 2}
    membership = await harness.store.renew(other, MINUTE)
    assert membership.members == (other,)
    assert set(membership.owned) == {1, 2}
    with pytest.raises(Fenced):
        await harness.store.renew(leaver, MINUTE)
    await harness.store.leave(SessionId(987_654_321))


async def test_of_many_who_reach_for_a_shard_at_once_one_gets_it(harness: Harness) -> None:
    members = [await harness.store.join(f"member-{number}", MINUTE) for number in range(6)]
    taken = await asyncio.gather(*(harness.store.take(member, harness.all_shards) for member in members))
    shards = [shard for part in taken for shard in part]
    assert sorted(shards) == list(harness.all_shards)
    owned = [set((await harness.store.renew(member, MINUTE)).owned) for member in members]
    assert owned == [set(part) for part in taken]
