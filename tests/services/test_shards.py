"""Ownership of shards: several keepers on one store, in virtual time."""

from collections.abc import Collection

import msgspec
import pytest
from structlog.testing import capture_logs

from mainspring.core.cluster.shards import DEFAULT_TTL, SHORTEST_TTL, ShardKeeper
from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import HOUR, MILLISECOND, SECOND, Micros
from mainspring.core.ports.storage.coordination import Membership
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.stores.memory import MemoryStore
from mainspring.testing.virtual_time import VirtualClock
from tests.support.virtual import in_virtual_time

SHARDS = 40


class Line:
    """The connection of one keeper to the coordinator. It can be slow, lose answers, or be cut."""

    def __init__(self, coordinator: MemoryStore, clock: VirtualClock) -> None:
        self.coordinator = coordinator
        self.clock = clock
        self.latency: Micros = MILLISECOND
        self.cut = False
        self.answers_lost = False
        self.lease: Micros | None = None
        self.first_end: Micros | None = None

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
        first_end = membership.first_end if self.first_end is None else self.first_end
        return msgspec.structs.replace(membership, lease=self.lease, first_end=first_end)

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
        """Let time pass, and check every 10 ms that no shard has two owners."""
        end = self.clock.monotonic() + duration
        while self.clock.monotonic() < end:
            await self.clock.sleep(10 * MILLISECOND)
            owned = [shard for keeper in self.keepers for shard in keeper.owned()]
            assert len(owned) == len(set(owned))

    def all_owned(self) -> bool:
        return sorted(shard for keeper in self.keepers for shard in keeper.owned()) == list(range(SHARDS))


@in_virtual_time
async def test_a_single_keeper_owns_all_shards_at_once() -> None:
    world = World()
    (keeper,) = await world.start(1)
    await world.pass_time(20 * MILLISECOND)
    assert keeper.owned() == dict.fromkeys(range(SHARDS), 1)
    await world.pass_time(10 * SECOND)
    assert keeper.owned() == dict.fromkeys(range(SHARDS), 1)
    await world.stop()
    assert keeper.owned() == {}


@in_virtual_time
async def test_a_new_keeper_gets_its_shards_before_any_lease_expires() -> None:
    world = World()
    first, second = await world.start(2)
    await world.pass_time(100 * MILLISECOND)
    assert world.all_owned()
    before = [set(first.owned()), set(second.owned())]
    (third,) = await world.start(1)
    await world.pass_time(100 * MILLISECOND)
    assert world.all_owned()
    assert 5 <= len(third.owned()) <= 25
    # No shard moved between the first two.
    assert first.owned().keys() <= before[0]
    assert second.owned().keys() <= before[1]
    await world.stop()


@in_virtual_time
async def test_shards_move_within_two_renewals_without_notifications() -> None:
    world = World()
    await world.start(1)
    await world.pass_time(SECOND)
    world.wakeups = LocalWakeups()
    (second,) = await world.start(1)
    await world.pass_time(600 * MILLISECOND)
    assert world.all_owned()
    assert second.owned()
    await world.stop()


@pytest.mark.parametrize("cut_after", range(0, 250, 20))
@in_virtual_time
async def test_shards_of_an_expired_keeper_are_taken_at_once_under_a_new_epoch(cut_after: int) -> None:
    world = World()
    first, *_ = await world.start(3)
    await world.pass_time(3 * SECOND + cut_after * MILLISECOND)
    lost = first.owned()
    assert lost
    world.lines[0].cut = True
    cut_at = world.clock.monotonic()
    while not world.all_owned() or first.owned():
        await world.pass_time(10 * MILLISECOND)
    # Keepers do not wait for their next renewal.
    assert world.clock.monotonic() - cut_at <= DEFAULT_TTL + 50 * MILLISECOND
    for shard, epoch in lost.items():
        (taken,) = (keeper.owned()[shard] for keeper in world.keepers[1:] if shard in keeper.owned())
        assert taken == epoch + 1


@in_virtual_time
async def test_a_keeper_that_is_cut_off_drops_its_shards_before_another_one_takes_them() -> None:
    world = World()
    first, _ = await world.start(2)
    await world.pass_time(SECOND)
    world.lines[0].cut = True
    await world.pass_time(5 * SECOND)
    assert first.owned() == {}
    assert world.all_owned()
    world.lines[0].cut = False
    await world.pass_time(SECOND)
    # Its session expired, and it has joined again under another id.
    assert first.owned()
    assert world.all_owned()
    await world.stop()


@in_virtual_time
async def test_a_renewal_counts_from_when_it_was_sent_although_its_answer_was_late() -> None:
    world = World()
    (keeper,) = await world.start(1)
    await world.pass_time(SECOND)
    world.lines[0].latency = DEFAULT_TTL // 2
    await world.pass_time(2 * SECOND)
    assert keeper.owned() == {}


@pytest.mark.parametrize(("granted", "trusted"), [(SECOND, SECOND), (10 * SECOND, DEFAULT_TTL)])
@in_virtual_time
async def test_a_lease_is_trusted_for_the_shorter_of_its_granted_and_its_requested_time(
    granted: Micros, trusted: Micros
) -> None:
    world = World()
    (keeper,) = await world.start(1)
    world.lines[0].lease = granted
    await world.pass_time(SECOND)
    assert keeper.owned()
    world.lines[0].cut = True
    cut_at = world.clock.monotonic()
    while keeper.owned():
        await world.pass_time(10 * MILLISECOND)
    assert world.clock.monotonic() - cut_at < trusted


@pytest.mark.parametrize(
    ("ttl", "first_end", "pause", "margin"),
    [
        (SHORTEST_TTL, None, 125, 100),
        (990 * MILLISECOND, None, 247.5, 100),
        (1_010 * MILLISECOND, None, 250, 101),
        (DEFAULT_TTL, None, 250, 150),
        # Another member expires before the next renewal.
        (DEFAULT_TTL, 9, 10, 150),
        (DEFAULT_TTL, 11, 11, 150),
        (DEFAULT_TTL, 249, 249, 150),
        (DEFAULT_TTL, 251, 250, 150),
    ],
)
@in_virtual_time
async def test_a_keeper_acts_until_its_margin_before_the_lease_expires_and_renews_in_time(
    ttl: Micros, first_end: int | None, pause: float, margin: int
) -> None:
    clock = VirtualClock()
    line = Line(MemoryStore(clock, SHARDS), clock)
    line.latency = 0
    line.first_end = None if first_end is None else first_end * MILLISECOND
    keeper = ShardKeeper(line, SHARDS, LocalWakeups(), clock, ttl=ttl)
    assert keeper.margin == 0
    assert await keeper.tick() == pause * MILLISECOND
    assert keeper.margin == ttl - margin * MILLISECOND
    await clock.sleep(keeper.margin - 1)
    assert (len(keeper.owned()), keeper.margin) == (SHARDS, 1)
    await clock.sleep(1)
    assert (keeper.owned(), keeper.margin) == ({}, 0)
    await clock.sleep(1)
    assert keeper.margin == 0


@in_virtual_time
async def test_shards_taken_by_a_request_without_an_answer_are_found_at_the_next_renewal() -> None:
    world = World()
    (keeper,) = await world.start(1)
    # Joining and the first renewal take 4 ms. The next request takes the shards.
    await world.clock.sleep(4_500)
    world.lines[0].answers_lost = True
    await world.pass_time(100 * MILLISECOND)
    assert keeper.owned() == {}
    world.lines[0].answers_lost = False
    await world.pass_time(500 * MILLISECOND)
    assert len(keeper.owned()) == SHARDS
    await world.stop()


@in_virtual_time
async def test_a_keeper_stops_acting_on_shards_before_it_releases_them() -> None:
    world = World()
    (keeper,) = await world.start(1)
    await world.pass_time(SECOND)
    seen: list[tuple[set[int], set[int]]] = []
    line = world.lines[0]
    give_up = line.give_up

    async def note(member: SessionId, shards: Collection[int]) -> None:
        seen.append((set(keeper.owned()), set(shards)))
        await give_up(member, shards)

    line.give_up = note  # type: ignore[method-assign]
    await world.start(1)
    await world.pass_time(SECOND)
    ((kept, released),) = seen
    assert kept
    assert released
    assert kept | released == set(range(SHARDS))
    assert not kept & released
    await world.stop()


@in_virtual_time
async def test_an_unavailable_coordinator_is_logged_once() -> None:
    world = World()
    await world.start(1)
    await world.pass_time(SECOND)
    with capture_logs() as logs:
        for cut in (True, False, True):
            world.lines[0].cut = cut
            await world.pass_time(SECOND)
    events = [entry["event"] for entry in logs if "renew" in entry["event"]]
    assert events == ["cannot renew the lease", "lease renewed again", "cannot renew the lease"]


@in_virtual_time
async def test_a_keeper_that_stops_hands_over_its_shards_at_once() -> None:
    world = World()
    first, second = await world.start(2)
    await world.pass_time(SECOND)
    await first.stop()
    await world.pass_time(20 * MILLISECOND)
    assert len(second.owned()) == SHARDS
    await world.stop()


@in_virtual_time
async def test_a_keeper_stops_without_waiting_for_an_unavailable_coordinator() -> None:
    world = World()
    (keeper,) = await world.start(1)
    await world.pass_time(SECOND)
    world.lines[0].cut = True
    await world.stop()
    assert keeper.owned() == {}


@in_virtual_time
async def test_the_wall_clock_of_a_keeper_does_not_matter() -> None:
    world = World()
    await world.start(1, skew=-HOUR)
    await world.start(1, skew=HOUR)
    await world.pass_time(5 * SECOND)
    assert world.all_owned()
    assert all(keeper.owned() for keeper in world.keepers)
    await world.stop()


@in_virtual_time
async def test_listeners_are_called_when_shards_are_gained_or_lost() -> None:
    world = World()
    changes: list[int] = []
    (keeper,) = await world.start(1)
    keeper.on_change(lambda: changes.append(len(keeper.owned())))
    await world.pass_time(SECOND)
    assert changes == [SHARDS]
    world.lines[0].cut = True
    await world.pass_time(3 * SECOND)
    assert changes == [SHARDS, 0]
    world.lines[0].cut = False
    await world.pass_time(SECOND)
    assert changes == [SHARDS, 0, SHARDS]
