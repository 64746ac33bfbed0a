"""Who owns which shard: several keepers on one store, in virtual time."""

from collections.abc import Collection

import msgspec

from mainspring.adapters.store.memory import MemoryStore
from mainspring.adapters.wakeups.local import LocalWakeups
from mainspring.control.shards import DEFAULT_TTL, ShardKeeper
from mainspring.domain.errors import StoreUnavailable
from mainspring.domain.ids import SessionId
from mainspring.domain.instant import HOUR, MILLISECOND, SECOND, Micros
from mainspring.ports.coordination import Membership
from mainspring.testing.virtual_time import VirtualClock, run_virtual

SHARDS = 40


class Line:
    """One keeper's line to the coordinator: it can be slow, lose answers, or be cut."""

    def __init__(self, coordinator: MemoryStore, clock: VirtualClock) -> None:
        self.coordinator = coordinator
        self.clock = clock
        self.latency: Micros = MILLISECOND
        self.cut = False
        self.answers_lost = False
        self.lease: Micros | None = None

    async def there(self) -> None:
        await self.clock.sleep(self.latency)
        if self.cut:
            raise StoreUnavailable("the line is cut")

    async def back(self) -> None:
        await self.clock.sleep(self.latency)
        if self.cut or self.answers_lost:
            raise StoreUnavailable("the answer was lost")

    async def join(self, name: str, ttl: Micros) -> SessionId:
        await self.there()
        member = await self.coordinator.join(name, ttl)
        await self.back()
        return member

    async def renew(self, member: SessionId, ttl: Micros) -> Membership:
        await self.there()
        membership = await self.coordinator.renew(member, ttl)
        await self.back()
        return msgspec.structs.replace(membership, lease=self.lease)

    async def take(self, member: SessionId, shards: Collection[int]) -> dict[int, int]:
        await self.there()
        taken = await self.coordinator.take(member, shards)
        await self.back()
        return taken

    async def give_up(self, member: SessionId, shards: Collection[int]) -> None:
        await self.there()
        await self.coordinator.give_up(member, shards)
        await self.back()

    async def leave(self, member: SessionId) -> None:
        await self.there()
        await self.coordinator.leave(member)
        await self.back()


class World:
    """A coordinator and the keepers that share it."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = MemoryStore(self.clock, SHARDS)
        self.wakeups = LocalWakeups()
        self.lines: list[Line] = []
        self.keepers: list[ShardKeeper] = []

    async def start(self, number: int, *, skew: Micros = 0) -> list[ShardKeeper]:
        fresh = []
        for _ in range(number):
            clock = VirtualClock(skew=skew)
            self.lines.append(Line(self.store, clock))
            fresh.append(ShardKeeper(self.lines[-1], SHARDS, self.wakeups, clock))
        self.keepers += fresh
        for keeper in fresh:
            await keeper.start()
        return fresh

    async def stop(self) -> None:
        for keeper in self.keepers:
            await keeper.stop()

    async def pass_time(self, duration: Micros) -> None:
        """Time passes, and at no moment do two keepers own one shard."""
        end = self.clock.monotonic() + duration
        while self.clock.monotonic() < end:
            await self.clock.sleep(10 * MILLISECOND)
            owned = [shard for keeper in self.keepers for shard in keeper.owned()]
            assert len(owned) == len(set(owned))

    def all_owned(self) -> bool:
        return sorted(shard for keeper in self.keepers for shard in keeper.owned()) == list(range(SHARDS))


def test_one_alone_owns_everything_at_once() -> None:
    async def scenario() -> None:
        world = World()
        (keeper,) = await world.start(1)
        await world.pass_time(20 * MILLISECOND)
        assert keeper.owned() == dict.fromkeys(range(SHARDS), 1)
        await world.pass_time(10 * SECOND)
        assert keeper.owned() == dict.fromkeys(range(SHARDS), 1)
        await world.stop()
        assert keeper.owned() == {}

    run_virtual(scenario())


def test_several_share_and_a_newcomer_gets_its_part_without_waiting_for_a_lease_to_end() -> None:
    async def scenario() -> None:
        world = World()
        first, second = await world.start(2)
        await world.pass_time(100 * MILLISECOND)
        assert world.all_owned()
        before = [set(first.owned()), set(second.owned())]
        (third,) = await world.start(1)
        await world.pass_time(100 * MILLISECOND)
        assert world.all_owned()
        assert 5 <= len(third.owned()) <= 25
        # Nothing moved between the two that were there.
        assert first.owned().keys() <= before[0]
        assert second.owned().keys() <= before[1]
        await world.stop()

    run_virtual(scenario())


def test_without_a_single_wakeup_shards_move_within_two_renewals() -> None:
    async def scenario() -> None:
        world = World()
        await world.start(1)
        await world.pass_time(SECOND)
        world.wakeups = LocalWakeups()
        (second,) = await world.start(1)
        await world.pass_time(600 * MILLISECOND)
        assert world.all_owned()
        assert second.owned()
        await world.stop()

    run_virtual(scenario())


def test_the_shards_of_the_dead_are_taken_as_soon_as_its_lease_is_over_and_under_a_new_epoch() -> None:
    async def scenario(dies_after: Micros) -> Micros:
        world = World()
        first, *_ = await world.start(3)
        await world.pass_time(3 * SECOND + dies_after)
        lost = first.owned()
        assert lost
        world.lines[0].cut = True
        died_at = world.clock.monotonic()
        while not world.all_owned() or first.owned():
            await world.pass_time(10 * MILLISECOND)
        for shard, epoch in lost.items():
            (taken,) = (keeper.owned()[shard] for keeper in world.keepers[1:] if shard in keeper.owned())
            assert taken == epoch + 1
        return world.clock.monotonic() - died_at

    # Not at the next renewal after that: what a busy machine takes for the rest has to fit into two seconds.
    for dies_after in range(0, 250, 20):
        assert run_virtual(scenario(dies_after * MILLISECOND)) <= DEFAULT_TTL + 50 * MILLISECOND


def test_one_that_is_cut_off_owns_nothing_before_anybody_else_can() -> None:
    async def scenario() -> None:
        world = World()
        first, _ = await world.start(2)
        await world.pass_time(SECOND)
        world.lines[0].cut = True
        # pass_time checks every 10 ms that nothing is owned twice.
        await world.pass_time(5 * SECOND)
        assert first.owned() == {}
        assert world.all_owned()
        world.lines[0].cut = False
        await world.pass_time(SECOND)
        # It was buried meanwhile, and has come back under another id.
        assert first.owned()
        assert world.all_owned()
        await world.stop()

    run_virtual(scenario())


def test_a_renewal_whose_answer_came_late_is_trusted_from_when_it_was_sent() -> None:
    async def scenario() -> None:
        world = World()
        (keeper,) = await world.start(1)
        await world.pass_time(SECOND)
        world.lines[0].latency = DEFAULT_TTL // 2
        await world.pass_time(2 * SECOND)
        assert keeper.owned() == {}

    run_virtual(scenario())


def test_a_lease_is_trusted_for_no_longer_than_it_was_granted() -> None:
    async def scenario(lease: Micros) -> Micros:
        world = World()
        (keeper,) = await world.start(1)
        world.lines[0].lease = lease
        await world.pass_time(SECOND)
        assert keeper.owned()
        world.lines[0].cut = True
        begun = world.clock.monotonic()
        while keeper.owned():
            await world.pass_time(10 * MILLISECOND)
        return world.clock.monotonic() - begun

    assert run_virtual(scenario(SECOND)) < SECOND
    # Nor for longer than it was asked for: that is what the store goes by.
    assert run_virtual(scenario(10 * SECOND)) < DEFAULT_TTL


def test_what_was_taken_by_a_request_whose_answer_was_lost_is_found_at_the_next_renewal() -> None:
    async def scenario() -> None:
        world = World()
        (keeper,) = await world.start(1)
        # Joining and the first renewal take 4 ms; then it takes its shards.
        await world.clock.sleep(4_500)
        world.lines[0].answers_lost = True
        await world.pass_time(100 * MILLISECOND)
        assert keeper.owned() == {}
        world.lines[0].answers_lost = False
        await world.pass_time(500 * MILLISECOND)
        assert len(keeper.owned()) == SHARDS
        await world.stop()

    run_virtual(scenario())


def test_one_that_leaves_hands_over_at_once() -> None:
    async def scenario() -> None:
        world = World()
        first, second = await world.start(2)
        await world.pass_time(SECOND)
        await first.stop()
        await world.pass_time(20 * MILLISECOND)
        assert len(second.owned()) == SHARDS
        await world.stop()

    run_virtual(scenario())


def test_leaving_is_not_held_up_by_a_coordinator_that_is_away() -> None:
    async def scenario() -> None:
        world = World()
        (keeper,) = await world.start(1)
        await world.pass_time(SECOND)
        world.lines[0].cut = True
        await world.stop()
        assert keeper.owned() == {}

    run_virtual(scenario())


def test_the_wall_clock_of_a_member_does_not_matter() -> None:
    async def scenario() -> None:
        world = World()
        await world.start(1, skew=-HOUR)
        await world.start(1, skew=HOUR)
        await world.pass_time(5 * SECOND)
        assert world.all_owned()
        assert all(keeper.owned() for keeper in world.keepers)
        await world.stop()

    run_virtual(scenario())


def test_whoever_wants_to_know_is_told_of_gains_and_losses() -> None:
    async def scenario() -> None:
        world = World()
        told: list[int] = []
        (keeper,) = await world.start(1)
        keeper.on_change(lambda: told.append(len(keeper.owned())))
        await world.pass_time(SECOND)
        assert told == [SHARDS]
        world.lines[0].cut = True
        await world.pass_time(3 * SECOND)
        assert told == [SHARDS, 0]
        world.lines[0].cut = False
        await world.pass_time(SECOND)
        assert told == [SHARDS, 0, SHARDS]

    run_virtual(scenario())
