"""Coordination: a shard has one live owner, and its epoch grows with every new one. On every coordinator."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from mainspring.core.cluster.epoch_check import EpochCheckedCoordinator
from mainspring.core.model.base.errors import Fenced
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, SECOND
from mainspring.core.model.schedules.plan import plan
from tests.support.builders import a_job, a_run
from tests.support.coordination_harness import (
    IN_MEMORY,
    OUTSIDE,
    Coordination,
    InTheStore,
    OutsideTheStore,
    make_registry,
)
from tests.support.kept_connections import KeptConnections
from tests.support.kept_sqlite import KeptSqlite
from tests.support.store_harness import SHORT_LEASE, Harness, MemoryHarness, PostgresHarness, SqliteHarness


@pytest.fixture(
    params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres), "memory registry", *OUTSIDE]
)
def make_coordination(
    request: pytest.FixtureRequest,
    address_of: Callable[[str], str],
    kept_sqlite: KeptSqlite,
    kept_connections: KeptConnections,
) -> Callable[[], Coordination]:
    match request.param:
        case "memory":
            return lambda: InTheStore(MemoryHarness())
        case "sqlite":
            return lambda: InTheStore(SqliteHarness(kept_sqlite))
        case "postgres":
            dsn: str = request.getfixturevalue("contract_database")
            return lambda: InTheStore(PostgresHarness(dsn, kept_connections))
        case "memory registry":
            return lambda: OutsideTheStore(IN_MEMORY)
        case outside:
            address = address_of(outside)
            return lambda: OutsideTheStore(address)


@pytest.fixture
async def they(make_coordination: Callable[[], Coordination]) -> AsyncIterator[Coordination]:
    they = make_coordination()
    await they.open()
    await they.harness.freeze_clock()
    yield they
    await they.close()


async def test_every_member_gets_a_fresh_growing_id(they: Coordination) -> None:
    members = [await they.coordinator.join("same", HOUR) for _ in range(3)]
    assert members == sorted(set(members))


async def test_a_renewal_returns_the_live_members_in_ascending_order(they: Coordination) -> None:
    members = [await they.coordinator.join(name, HOUR) for name in ("c", "a", "b")]
    membership = await they.coordinator.renew(members[1], HOUR)
    assert membership.members == tuple(members)
    assert membership.owned == {}
    assert membership.now == await they.harness.now()


async def test_a_renewal_returns_when_the_next_lease_of_the_others_expires(they: Coordination) -> None:
    one = await they.coordinator.join("one", SHORT_LEASE)
    assert (await they.coordinator.renew(one, SHORT_LEASE)).first_end is None
    await they.coordinator.join("later", DAY)
    assert (await they.coordinator.renew(one, SHORT_LEASE)).first_end == DAY
    await they.coordinator.join("first", 2 * SHORT_LEASE)
    assert (await they.coordinator.renew(one, SHORT_LEASE)).first_end == 2 * SHORT_LEASE


async def test_workers_are_not_members(they: Coordination) -> None:
    await they.harness.worker()
    member = await they.coordinator.join("one", HOUR)
    assert (await they.coordinator.renew(member, HOUR)).members == (member,)


async def test_a_renewal_extends_the_lease(harness: Harness) -> None:
    member = await harness.store.join("one", SHORT_LEASE)
    other = await harness.store.join("other", DAY)
    for _ in range(4):
        await harness.advance(SHORT_LEASE - 2 * SECOND)
        assert (await harness.store.renew(member, SHORT_LEASE)).members == (member, other)


async def test_a_renewal_removes_members_whose_lease_has_expired(they: Coordination) -> None:
    dying = await they.coordinator.join("dying", SHORT_LEASE)
    other = await they.coordinator.join("other", DAY)
    await they.expire(dying)
    assert (await they.coordinator.renew(other, DAY)).members == (other,)
    for _ in range(2):
        with pytest.raises(Fenced):
            await they.coordinator.renew(dying, HOUR)
    assert (await they.coordinator.renew(other, DAY)).members == (other,)


async def test_a_late_renewal_extends_the_lease_or_raises_fenced(they: Coordination) -> None:
    member = await they.coordinator.join("one", SHORT_LEASE)
    taken = await they.coordinator.take(member, [1, 2])
    await they.expire(member)
    try:
        membership = await they.coordinator.renew(member, HOUR)
    except Fenced:
        again = await they.coordinator.join("one", HOUR)
        assert set(await they.coordinator.take(again, [1, 2])) == {1, 2}
    else:
        assert (membership.members, membership.owned) == ((member,), taken)


async def test_an_unknown_member_is_fenced(they: Coordination) -> None:
    with pytest.raises(Fenced):
        await they.coordinator.renew(SessionId(987_654_321), HOUR)


async def test_free_shards_are_taken_with_a_new_epoch(they: Coordination) -> None:
    member = await they.coordinator.join("one", HOUR)
    taken = await they.coordinator.take(member, [1, 2, 5])
    assert set(taken) == {1, 2, 5}
    assert min(taken.values()) > 0
    assert (await they.coordinator.renew(member, HOUR)).owned == taken


async def test_a_shard_already_owned_is_not_taken_again(they: Coordination) -> None:
    member = await they.coordinator.join("one", HOUR)
    first = await they.coordinator.take(member, [1, 2])
    assert set(await they.coordinator.take(member, [2, 3])) == {3}
    owned = (await they.coordinator.renew(member, HOUR)).owned
    assert {shard: owned[shard] for shard in (1, 2)} == first
    assert await they.coordinator.take(member, []) == {}


async def test_the_shards_of_a_live_owner_cannot_be_taken(they: Coordination) -> None:
    owner, other = await they.coordinator.join("owner", HOUR), await they.coordinator.join("other", HOUR)
    taken = await they.coordinator.take(owner, [1, 2])
    assert set(await they.coordinator.take(other, [1, 2, 3])) == {3}
    assert (await they.coordinator.renew(owner, HOUR)).owned == taken


async def test_the_shards_of_an_expired_owner_can_be_taken_under_a_new_epoch(they: Coordination) -> None:
    dying, other = await they.coordinator.join("dying", SHORT_LEASE), await they.coordinator.join("other", DAY)
    old = await they.coordinator.take(dying, [1, 2])
    await they.expire(dying)
    new = await they.coordinator.take(other, [1])
    assert new[1] > old[1]
    # Some coordinators have removed the member already, others have not.
    assert await they.owned(dying) in ({2: old[2]}, {})
    assert (await they.coordinator.renew(other, DAY)).owned == new


async def test_the_shards_of_a_removed_member_can_be_taken(they: Coordination) -> None:
    dying, other = await they.coordinator.join("dying", SHORT_LEASE), await they.coordinator.join("other", DAY)
    old = await they.coordinator.take(dying, [1])
    await they.expire(dying)
    await they.coordinator.renew(other, DAY)
    assert (await they.coordinator.take(other, [1]))[1] > old[1]


async def test_a_member_whose_own_lease_has_expired_takes_nothing(they: Coordination) -> None:
    slow, other = await they.coordinator.join("slow", SHORT_LEASE), await they.coordinator.join("other", DAY)
    await they.expire(slow)
    assert await they.coordinator.take(slow, [1]) == {}
    await they.coordinator.renew(other, DAY)
    assert await they.coordinator.take(slow, [1]) == {}
    assert set(await they.coordinator.take(other, [1])) == {1}


async def test_released_shards_can_be_taken_at_once(they: Coordination) -> None:
    giver, taker = await they.coordinator.join("giver", HOUR), await they.coordinator.join("taker", HOUR)
    old = await they.coordinator.take(giver, [1, 2])
    await they.coordinator.give_up(giver, [1])
    assert (await they.coordinator.renew(giver, HOUR)).owned == {2: old[2]}
    new = await they.coordinator.take(taker, [1, 2])
    assert set(new) == {1}
    assert new[1] > old[1]


async def test_releasing_a_shard_of_another_member_is_ignored(they: Coordination) -> None:
    owner, other = await they.coordinator.join("owner", HOUR), await they.coordinator.join("other", HOUR)
    taken = await they.coordinator.take(owner, [1])
    await they.coordinator.give_up(other, [1, 2])
    await they.coordinator.give_up(owner, [3])
    assert (await they.coordinator.renew(owner, HOUR)).owned == taken


async def test_a_member_takes_a_shard_back_under_a_new_epoch(they: Coordination) -> None:
    member = await they.coordinator.join("one", HOUR)
    old = await they.coordinator.take(member, [1])
    await they.coordinator.give_up(member, [1])
    assert (await they.coordinator.take(member, [1]))[1] > old[1]


async def test_a_leaving_member_releases_its_shards(they: Coordination) -> None:
    leaver, other = await they.coordinator.join("leaver", HOUR), await they.coordinator.join("other", HOUR)
    await they.coordinator.take(leaver, [1, 2])
    await they.coordinator.leave(leaver)
    await they.coordinator.leave(leaver)
    assert set(await they.coordinator.take(other, [1, 2])) == {1, 2}
    membership = await they.coordinator.renew(other, HOUR)
    assert membership.members == (other,)
    assert set(membership.owned) == {1, 2}
    with pytest.raises(Fenced):
        await they.coordinator.renew(leaver, HOUR)
    await they.coordinator.leave(SessionId(987_654_321))


async def test_concurrent_takes_give_each_shard_to_one_member(they: Coordination) -> None:
    members = [await they.coordinator.join(f"member-{number}", HOUR) for number in range(6)]
    shards = they.harness.all_shards
    taken = await asyncio.gather(*(they.coordinator.take(member, shards) for member in members))
    assert sorted(shard for part in taken for shard in part) == list(shards)
    owned = [set((await they.coordinator.renew(member, HOUR)).owned) for member in members]
    assert owned == [set(part) for part in taken]


async def test_the_store_rejects_writes_of_a_member_that_lost_its_shards(they: Coordination) -> None:
    harness, all_shards = they.harness, they.harness.all_shards
    # If a coordinator outside the store ends the lease, the store does not know it yet.
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
    assert (await harness.store.stage(other, all_shards, 100)).runs == 1
    assert [fired.applied for fired in await harness.store.fire(other, fires)] == [True]


async def test_epochs_grow_across_a_change_of_the_coordinator(
    harness: Harness, address_of: Callable[[str], str]
) -> None:
    first = await harness.store.join("in the store", DAY)
    epochs = [(await harness.store.take(first, [3]))[3]]
    # No member has left: for the store the previous one is still a live owner.
    for coordinator in OUTSIDE:
        registry = make_registry(address_of(coordinator))
        they = EpochCheckedCoordinator(harness.store, registry)
        await they.start()
        member = await they.join(coordinator, DAY)
        epochs.append((await they.take(member, [3]))[3])
        await they.stop()
    await harness.store.leave(member)
    assert (await harness.store.renew(first, DAY)).owned == {}
    epochs.append((await harness.store.take(first, [3]))[3])
    assert epochs == list(range(epochs[0], epochs[0] + len(epochs)))


async def test_an_epoch_is_raised_only_if_it_has_not_changed_since_it_was_read(harness: Harness) -> None:
    one, other = await harness.store.join("one", HOUR), await harness.store.join("other", HOUR)
    seen = await harness.store.epochs([1, 2, 3, 999])
    assert set(seen) == {1, 2, 3}
    assert await harness.store.seal(one, {1: seen[1]}) == {1: seen[1] + 1}
    # The epoch of shard 1 has changed since it was read.
    assert await harness.store.seal(other, seen) == {2: seen[2] + 1, 3: seen[3] + 1}
    # The owner of a shard does not raise its epoch again.
    assert await harness.store.seal(one, await harness.store.epochs([1, 2])) == {2: seen[2] + 2}
    assert (await harness.store.renew(one, HOUR)).owned == {1: seen[1] + 1, 2: seen[2] + 2}
    assert (await harness.store.renew(other, HOUR)).owned == {3: seen[3] + 1}
    assert await harness.store.seal(one, {}) == {}


async def test_a_member_without_a_live_lease_cannot_raise_an_epoch(harness: Harness) -> None:
    gone, late = await harness.store.join("gone", HOUR), await harness.store.join("late", SHORT_LEASE)
    await harness.store.leave(gone)
    await harness.advance(SHORT_LEASE + SECOND)
    epochs = await harness.store.epochs(harness.all_shards)
    for member in (gone, late, SessionId(987_654_321)):
        assert await harness.store.seal(member, epochs) == {}


async def test_of_concurrent_epoch_changes_of_a_shard_one_succeeds(harness: Harness) -> None:
    members = [await harness.store.join(f"member-{number}", HOUR) for number in range(6)]
    epochs = await harness.store.epochs(harness.all_shards)
    backwards = dict(reversed(epochs.items()))
    sealed = await asyncio.gather(
        *(harness.store.seal(member, backwards if member % 2 else epochs) for member in members)
    )
    assert sorted(shard for part in sealed for shard in part) == list(harness.all_shards)


async def test_a_store_has_a_stable_identity(harness: Harness) -> None:
    assert await harness.store.identity() == await harness.store.identity() != ""


@pytest.fixture(params=[IN_MEMORY, *OUTSIDE])
async def outside(request: pytest.FixtureRequest, address_of: Callable[[str], str]) -> AsyncIterator[OutsideTheStore]:
    outside = OutsideTheStore(IN_MEMORY if request.param == IN_MEMORY else address_of(request.param))
    await outside.open()
    yield outside
    await outside.close()


async def test_a_member_expired_in_the_store_is_fenced_even_if_the_coordinator_knows_it(
    outside: OutsideTheStore,
) -> None:
    cut_off, other = await outside.sealed.join("cut off", SHORT_LEASE), await outside.sealed.join("other", DAY)
    old = await outside.sealed.take(cut_off, [1, 2])
    await outside.harness.advance(SHORT_LEASE + SECOND)
    # The member reaches the coordinator but not the store.
    assert cut_off in (await outside.registry.look(cut_off)).members
    assert (await outside.sealed.renew(other, DAY)).members == (other,)
    new = await outside.sealed.take(other, [1, 2])
    assert all(new[shard] > old[shard] for shard in old)
    with pytest.raises(Fenced):
        await outside.sealed.renew(cut_off, SHORT_LEASE)


async def test_a_shard_granted_without_an_epoch_check_is_released(outside: OutsideTheStore) -> None:
    member, other = await outside.sealed.join("one", HOUR), await outside.sealed.join("other", HOUR)
    view = await outside.registry.look(member)
    # The process stopped between the grant and the epoch check.
    assert await outside.registry.write(member, {1: member}, view.version)
    assert (await outside.sealed.renew(member, HOUR)).owned == {}
    assert set(await outside.sealed.take(other, [1])) == {1}


async def test_a_member_overruled_in_the_store_takes_its_shards_again(outside: OutsideTheStore) -> None:
    member = await outside.sealed.join("one", HOUR)
    old = await outside.sealed.take(member, [1])
    # A scheduler that is configured with another coordinator.
    stranger = await outside.store.join("stranger", HOUR)
    await outside.store.seal(stranger, await outside.store.epochs([1]))
    assert (await outside.sealed.renew(member, HOUR)).owned == {}
    new = await outside.sealed.take(member, [1])
    assert new[1] == old[1] + 2
    assert (await outside.sealed.renew(member, HOUR)).owned == new
