"""A scheduler whose clock is wrong gives its shards up, and has them back when it is right: in virtual time."""

from mainspring.adapters.store.memory import MemoryStore
from mainspring.adapters.wakeups.local import LocalWakeups
from mainspring.control.clock_guard import ClockGuard
from mainspring.control.shards import ShardKeeper
from mainspring.domain.clock_guard import ClockRules
from mainspring.domain.ids import SessionId
from mainspring.domain.instant import HOUR, MILLISECOND, SECOND
from mainspring.runtime.supervisor import Supervisor
from mainspring.testing.virtual_time import VirtualClock, run_virtual

SHARDS = 16


class Site:
    def __init__(self) -> None:
        self.store = MemoryStore(VirtualClock(), SHARDS)
        self.wakeups = LocalWakeups()

    def node(self, rules: ClockRules | None = None) -> tuple[VirtualClock, ShardKeeper, Supervisor]:
        clock = VirtualClock()

        def sessions() -> list[SessionId]:
            return [] if keeper.member is None else [keeper.member]

        guard = ClockGuard(self.store, self.wakeups, clock, rules or ClockRules(), sessions)
        keeper = ShardKeeper(self.store, SHARDS, self.wakeups, clock, fit=guard.fit)
        return clock, keeper, Supervisor(guard, keeper)


def test_the_shards_of_a_node_whose_clock_is_set_go_to_the_others_at_once_and_come_back() -> None:
    async def scenario() -> None:
        site = Site()
        clock, keeper, services = site.node()
        _, other, others = site.node()
        async with services, others:
            await clock.sleep(SECOND)
            assert keeper.owned()
            assert len(keeper.owned()) + len(other.owned()) == SHARDS
            for ahead in (HOUR, -HOUR):
                clock.skew = ahead
                # At this very moment, before the store was asked again.
                assert keeper.owned() == {}
                await clock.sleep(300 * MILLISECOND)
                assert len(other.owned()) == SHARDS
                assert [session.shards for session in await site.store.sessions("scheduler")] == [SHARDS]
                clock.skew = 0
                await clock.sleep(SECOND)
                assert keeper.owned()
                assert len(keeper.owned()) + len(other.owned()) == SHARDS

    run_virtual(scenario())


def test_a_clock_that_is_a_little_off_is_told_and_nothing_else() -> None:
    async def scenario() -> None:
        site = Site()
        clock, keeper, services = site.node()
        clock.skew = 2 * SECOND
        async with services:
            await clock.sleep(6 * SECOND)
            assert len(keeper.owned()) == SHARDS
            [seen] = await site.store.sessions("scheduler")
            assert seen.clock is not None
            assert abs(seen.clock.offset - 2 * SECOND) < MILLISECOND

    run_virtual(scenario())


def test_a_node_that_starts_with_a_wrong_clock_owns_nothing_unless_nobody_minds() -> None:
    async def scenario() -> None:
        site = Site()
        clock, keeper, services = site.node()
        careless_clock, careless, others = site.node(ClockRules(fence=0))
        clock.skew = careless_clock.skew = -HOUR
        async with services:
            await clock.sleep(SECOND)
            assert keeper.member is None
            async with others:
                await clock.sleep(SECOND)
                assert len(careless.owned()) == SHARDS

    run_virtual(scenario())
