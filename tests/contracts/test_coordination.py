"""Coordination: one live owner of a shard, and an epoch that grows with every new one. On every engine there is."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from mainspring.control.sealing import SealedCoordinator
from mainspring.domain.errors import Fenced
from mainspring.domain.ids import SessionId
from mainspring.domain.instant import DAY, MINUTE, SECOND
from mainspring.domain.plan import plan
from tests.support.builders import a_job, a_run
from tests.support.coordination_harness import OUTSIDE, Coordination, InTheStore, OutsideTheStore, make_registry
from tests.support.store_harness import SHORT_LEASE, Harness, MemoryHarness, PostgresHarness, SqliteHarness


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres), *OUTSIDE])
def make_coordination(
    request: pytest.FixtureRequest, address_of: Callable[[str], str], tmp_path: Path
) -> Callable[[], Coordination]:
    match request.param:
        case "memory":
            return lambda: InTheStore(MemoryHarness())
        case "sqlite":
            return lambda: InTheStore(SqliteHarness(tmp_path / "mainspring.db"))
        case "postgres":
            dsn: str = request.getfixturevalue("contract_database")
            return lambda: InTheStore(PostgresHarness(dsn))
        case outside:
            address = address_of(outside)
            return lambda: OutsideTheStore(address)


@pytest.fixture
async def they(make_coordination: Callable[[], Coordination]) -> AsyncIterator[Coordination]:
    they = make_coordination()
    await they.open()
    yield they
    await they.close()


async def test_every_member_gets_a_fresh_growing_id(they: Coordination) -> None:
    members = [await they.coordinator.join("same", MINUTE) for _ in range(3)]
    assert members == sorted(set(members))


async def test_a_renewal_tells_who_is_alive_in_ascending_order(they: Coordination) -> None:
    members = [await they.coordinator.join(name, MINUTE) for name in ("c", "a", "b")]
    before = await they.harness.now()
    membership = await they.coordinator.renew(members[1], MINUTE)
    assert membership.members == tuple(members)
    assert membership.owned == {}
    assert before <= membership.now <= await they.harness.now()


async def test_a_renewal_tells_when_the_first_of_the_others_would_be_dead(they: Coordination) -> None:
    one = await they.coordinator.join("one", SHORT_LEASE)
    assert (await they.coordinator.renew(one, SHORT_LEASE)).first_end is None
    await they.coordinator.join("later", DAY)
    first_end = (await they.coordinator.renew(one, SHORT_LEASE)).first_end
    assert first_end is not None
    assert DAY - MINUTE < first_end <= DAY
    await they.coordinator.join("first", 2 * SHORT_LEASE)
    first_end = (await they.coordinator.renew(one, SHORT_LEASE)).first_end
    assert first_end is not None
    assert SHORT_LEASE < first_end <= 2 * SHORT_LEASE


async def test_workers_are_no_members(they: Coordination) -> None:
    await they.harness.worker()
    member = await they.coordinator.join("one", MINUTE)
    assert (await they.coordinator.renew(member, MINUTE)).members == (member,)


async def test_a_renewal_extends_the_lease(harness: Harness) -> None:
    member = await harness.store.join("one", SHORT_LEASE)
    other = await harness.store.join("other", DAY)
    for _ in range(4):
        await harness.advance(SHORT_LEASE - 2 * SECOND)
        assert (await harness.store.renew(member, SHORT_LEASE)).members == (member, other)


async def test_a_member_whose_lease_has_run_out_is_buried_by_another(they: Coordination) -> None:
    dying = await they.coordinator.join("dying", SHORT_LEASE)
    other = await they.coordinator.join("other", DAY)
    await they.expire(dying)
    assert (await they.coordinator.renew(other, DAY)).members == (other,)
    for _ in range(2):
        with pytest.raises(Fenced):
            await they.coordinator.renew(dying, MINUTE)
    assert (await they.coordinator.renew(other, DAY)).members == (other,)


async def test_a_lease_that_ran_out_unnoticed_is_extended_or_the_member_is_told(they: Coordination) -> None:
    member = await they.coordinator.join("one", SHORT_LEASE)
    taken = await they.coordinator.take(member, [1, 2])
    await they.expire(member)
    try:
        membership = await they.coordinator.renew(member, MINUTE)
    except Fenced:
        again = await they.coordinator.join("one", MINUTE)
        assert set(await they.coordinator.take(again, [1, 2])) == {1, 2}
    else:
        assert (membership.members, membership.owned) == ((member,), taken)


async def test_a_member_nobody_knows_is_fenced(they: Coordination) -> None:
    with pytest.raises(Fenced):
        await they.coordinator.renew(SessionId(987_654_321), MINUTE)


async def test_free_shards_are_taken_with_a_new_epoch(they: Coordination) -> None:
    member = await they.coordinator.join("one", MINUTE)
    taken = await they.coordinator.take(member, [1, 2, 5])
    assert set(taken) == {1, 2, 5}
    assert min(taken.values()) > 0
    assert (await they.coordinator.renew(member, MINUTE)).owned == taken


async def test_what_one_owns_already_is_not_newly_taken(they: Coordination) -> None:
    member = await they.coordinator.join("one", MINUTE)
    first = await they.coordinator.take(member, [1, 2])
    assert set(await they.coordinator.take(member, [2, 3])) == {3}
    owned = (await they.coordinator.renew(member, MINUTE)).owned
    assert {shard: owned[shard] for shard in (1, 2)} == first
    assert await they.coordinator.take(member, []) == {}


async def test_a_live_owners_shards_cannot_be_taken(they: Coordination) -> None:
    owner, other = await they.coordinator.join("owner", MINUTE), await they.coordinator.join("other", MINUTE)
    taken = await they.coordinator.take(owner, [1, 2])
    assert set(await they.coordinator.take(other, [1, 2, 3])) == {3}
    assert (await they.coordinator.renew(owner, MINUTE)).owned == taken


async def test_an_expired_lease_can_be_taken_and_raises_the_epoch(they: Coordination) -> None:
    dying, other = await they.coordinator.join("dying", SHORT_LEASE), await they.coordinator.join("other", DAY)
    old = await they.coordinator.take(dying, [1, 2])
    await they.expire(dying)
    new = await they.coordinator.take(other, [1])
    assert new[1] > old[1]
    # Where nobody has buried it yet, what was not taken is still its own.
    assert await they.owned(dying) in ({2: old[2]}, {})
    assert (await they.coordinator.renew(other, DAY)).owned == new


async def test_the_shards_of_a_buried_member_can_be_taken(they: Coordination) -> None:
    dying, other = await they.coordinator.join("dying", SHORT_LEASE), await they.coordinator.join("other", DAY)
    old = await they.coordinator.take(dying, [1])
    await they.expire(dying)
    await they.coordinator.renew(other, DAY)
    assert (await they.coordinator.take(other, [1]))[1] > old[1]


async def test_a_member_whose_own_lease_has_run_out_takes_nothing(they: Coordination) -> None:
    slow, other = await they.coordinator.join("slow", SHORT_LEASE), await they.coordinator.join("other", DAY)
    await they.expire(slow)
    assert await they.coordinator.take(slow, [1]) == {}
    await they.coordinator.renew(other, DAY)
    assert await they.coordinator.take(slow, [1]) == {}
    assert set(await they.coordinator.take(other, [1])) == {1}


async def test_shards_given_up_can_be_taken_at_once(they: Coordination) -> None:
    giver, taker = await they.coordinator.join("giver", MINUTE), await they.coordinator.join("taker", MINUTE)
    old = await they.coordinator.take(giver, [1, 2])
    await they.coordinator.give_up(giver, [1])
    assert (await they.coordinator.renew(giver, MINUTE)).owned == {2: old[2]}
    new = await they.coordinator.take(taker, [1, 2])
    assert set(new) == {1}
    assert new[1] > old[1]


async def test_giving_up_what_is_not_owned_is_ignored(they: Coordination) -> None:
    owner, other = await they.coordinator.join("owner", MINUTE), await they.coordinator.join("other", MINUTE)
    taken = await they.coordinator.take(owner, [1])
    await they.coordinator.give_up(other, [1, 2])
    await they.coordinator.give_up(owner, [3])
    assert (await they.coordinator.renew(owner, MINUTE)).owned == taken


async def test_whoever_takes_a_shard_back_does_so_under_a_new_epoch(they: Coordination) -> None:
    member = await they.coordinator.join("one", MINUTE)
    old = await they.coordinator.take(member, [1])
    await they.coordinator.give_up(member, [1])
    assert (await they.coordinator.take(member, [1]))[1] > old[1]


async def test_who_leaves_gives_everything_back(they: Coordination) -> None:
    leaver, other = await they.coordinator.join("leaver", MINUTE), await they.coordinator.join("other", MINUTE)
    await they.coordinator.take(leaver, [1, 2])
    await they.coordinator.leave(leaver)
    await they.coordinator.leave(leaver)
    assert set(await they.coordinator.take(other, [1, 2])) == {1, 2}
    membership = await they.coordinator.renew(other, MINUTE)
    assert membership.members == (other,)
    assert set(membership.owned) == {1, 2}
    with pytest.raises(Fenced):
        await they.coordinator.renew(leaver, MINUTE)
    await they.coordinator.leave(SessionId(987_654_321))


async def test_of_many_who_reach_for_a_shard_at_once_one_gets_it(they: Coordination) -> None:
    members = [await they.coordinator.join(f"member-{number}", MINUTE) for number in range(6)]
    shards = they.harness.all_shards
    taken = await asyncio.gather(*(they.coordinator.take(member, shards) for member in members))
    assert sorted(shard for part in taken for shard in part) == list(shards)
    owned = [set((await they.coordinator.renew(member, MINUTE)).owned) for member in members]
    assert owned == [set(part) for part in taken]


async def test_one_that_comes_back_after_its_lease_has_its_writes_refused_by_the_store(they: Coordination) -> None:
    harness, all_shards = they.harness, they.harness.all_shards
    # Where another engine ends the lease, the store has not noticed anything yet.
    frozen = await they.coordinator.join("frozen", SHORT_LEASE if isinstance(they, InTheStore) else DAY)
    other = await they.coordinator.join("other", DAY)
    await they.coordinator.take(frozen, all_shards)
    await harness.submit(a_run(delay=SECOND))
    job = await harness.put(a_job())
    await they.expire(frozen)
    await they.coordinator.take(other, all_shards)
    await harness.advance(2 * MINUTE)
    fires = plan(await harness.store.due_jobs(all_shards, await harness.now(), 100), await harness.now())
    assert (await harness.store.stage(frozen, all_shards, 100)).runs == 0
    assert [fired.applied for fired in await harness.store.fire(frozen, fires)] == [False]
    assert await harness.ticks(job.id) == []
    # Whoever owns them now finds all that was due.
    assert (await harness.store.stage(other, all_shards, 100)).runs == 1
    assert [fired.applied for fired in await harness.store.fire(other, fires)] == [True]


async def test_epochs_grow_from_one_engine_to_the_next(harness: Harness, address_of: Callable[[str], str]) -> None:
    first = await harness.store.join("in the store", DAY)
    epochs = [(await harness.store.take(first, [3]))[3]]
    # Nobody has left in good order: the store knows the one before as a live owner.
    for engine in OUTSIDE:
        registry = make_registry(address_of(engine))
        they = SealedCoordinator(harness.store, registry)
        await they.start()
        member = await they.join(engine, DAY)
        epochs.append((await they.take(member, [3]))[3])
        await they.stop()
    await harness.store.leave(member)
    assert (await harness.store.renew(first, DAY)).owned == {}
    epochs.append((await harness.store.take(first, [3]))[3])
    assert epochs == list(range(epochs[0], epochs[0] + len(epochs)))


async def test_only_what_was_not_sealed_meanwhile_is_sealed(harness: Harness) -> None:
    one, other = await harness.store.join("one", MINUTE), await harness.store.join("other", MINUTE)
    seen = await harness.store.epochs([1, 2, 3, 999])
    assert set(seen) == {1, 2, 3}
    assert await harness.store.seal(one, {1: seen[1]}) == {1: seen[1] + 1}
    # It saw the epochs before, and comes second to one of them.
    assert await harness.store.seal(other, seen) == {2: seen[2] + 1, 3: seen[3] + 1}
    # What is sealed already is not sealed anew.
    assert await harness.store.seal(one, await harness.store.epochs([1, 2])) == {2: seen[2] + 2}
    assert (await harness.store.renew(one, MINUTE)).owned == {1: seen[1] + 1, 2: seen[2] + 2}
    assert (await harness.store.renew(other, MINUTE)).owned == {3: seen[3] + 1}
    assert await harness.store.seal(one, {}) == {}


async def test_who_is_not_alive_seals_nothing(harness: Harness) -> None:
    gone, late = await harness.store.join("gone", MINUTE), await harness.store.join("late", SHORT_LEASE)
    await harness.store.leave(gone)
    await harness.advance(SHORT_LEASE + SECOND)
    epochs = await harness.store.epochs(harness.all_shards)
    for member in (gone, late, SessionId(987_654_321)):
        assert await harness.store.seal(member, epochs) == {}


async def test_of_many_who_seal_at_once_one_does(harness: Harness) -> None:
    members = [await harness.store.join(f"member-{number}", MINUTE) for number in range(6)]
    epochs = await harness.store.epochs(harness.all_shards)
    backwards = dict(reversed(epochs.items()))
    sealed = await asyncio.gather(
        *(harness.store.seal(member, backwards if member % 2 else epochs) for member in members)
    )
    assert sorted(shard for part in sealed for shard in part) == list(harness.all_shards)


async def test_a_store_knows_who_it_is(harness: Harness) -> None:
    assert await harness.store.identity() == await harness.store.identity() != ""


@pytest.fixture(params=OUTSIDE)
async def outside(request: pytest.FixtureRequest, address_of: Callable[[str], str]) -> AsyncIterator[OutsideTheStore]:
    outside = OutsideTheStore(address_of(request.param))
    await outside.open()
    yield outside
    await outside.close()


async def test_who_is_buried_in_the_store_is_dead_though_the_engine_still_knows_it(outside: OutsideTheStore) -> None:
    cut_off, other = await outside.sealed.join("cut off", SHORT_LEASE), await outside.sealed.join("other", DAY)
    old = await outside.sealed.take(cut_off, [1, 2])
    await outside.harness.advance(SHORT_LEASE + SECOND)
    # It still reaches the engine, but the store no more: half of a renewal.
    assert cut_off in (await outside.registry.look(cut_off)).members
    assert (await outside.sealed.renew(other, DAY)).members == (other,)
    new = await outside.sealed.take(other, [1, 2])
    assert all(new[shard] > old[shard] for shard in old)
    with pytest.raises(Fenced):
        await outside.sealed.renew(cut_off, SHORT_LEASE)


async def test_a_grant_that_was_never_sealed_is_given_back(outside: OutsideTheStore) -> None:
    member, other = await outside.sealed.join("one", MINUTE), await outside.sealed.join("other", MINUTE)
    view = await outside.registry.look(member)
    # As when the process was frozen, or the answer lost, between the grant and the seal.
    assert await outside.registry.write(member, {1: member}, view.version)
    assert (await outside.sealed.renew(member, MINUTE)).owned == {}
    assert set(await outside.sealed.take(other, [1])) == {1}


async def test_whoever_was_overruled_in_the_store_takes_its_shards_anew(outside: OutsideTheStore) -> None:
    member = await outside.sealed.join("one", MINUTE)
    old = await outside.sealed.take(member, [1])
    # A scheduler that was set up with another engine.
    stranger = await outside.store.join("stranger", MINUTE)
    await outside.store.seal(stranger, await outside.store.epochs([1]))
    assert (await outside.sealed.renew(member, MINUTE)).owned == {}
    new = await outside.sealed.take(member, [1])
    assert new[1] == old[1] + 2
    assert (await outside.sealed.renew(member, MINUTE)).owned == new
