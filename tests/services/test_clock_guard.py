"""The clock guard in virtual time: a scheduler with a wrong clock owns no shards."""

import pytest
from structlog.testing import capture_logs

from mainspring.core.cluster.clock_guard import ClockGuard
from mainspring.core.cluster.shards import ShardKeeper
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import HOUR, MILLISECOND, SECOND
from mainspring.core.model.cluster.clock_guard import ClockRules
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.runtime.supervisor import Supervisor
from mainspring.stores.memory import MemoryStore
from mainspring.testing.virtual_time import VirtualClock
from tests.support.virtual import in_virtual_time

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


@in_virtual_time
async def test_a_scheduler_loses_its_shards_while_its_wall_clock_is_wrong() -> None:
    site = Site()
    clock, keeper, services = site.node()
    _, other, others = site.node()
    async with services, others:
        await clock.sleep(SECOND)
        assert keeper.owned()
        assert len(keeper.owned()) + len(other.owned()) == SHARDS
        for ahead in (HOUR, -HOUR):
            clock.skew = ahead
            # This takes effect before the next request to the store.
            assert keeper.owned() == {}
            await clock.sleep(300 * MILLISECOND)
            assert len(other.owned()) == SHARDS
            assert [session.shards for session in await site.store.sessions("scheduler")] == [SHARDS]
            clock.skew = 0
            await clock.sleep(SECOND)
            assert keeper.owned()
            assert len(keeper.owned()) + len(other.owned()) == SHARDS


@in_virtual_time
async def test_a_small_clock_offset_is_reported_and_costs_no_shard() -> None:
    site = Site()
    clock, keeper, services = site.node()
    clock.skew = 2 * SECOND
    async with services:
        await clock.sleep(6 * SECOND)
        assert len(keeper.owned()) == SHARDS
        [seen] = await site.store.sessions("scheduler")
        assert seen.clock is not None
        assert abs(seen.clock.offset - 2 * SECOND) < MILLISECOND


@in_virtual_time
async def test_a_scheduler_that_starts_with_a_wrong_clock_joins_only_without_a_clock_fence() -> None:
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


@pytest.mark.parametrize("schedules", [True, False])
@in_virtual_time
async def test_only_a_scheduler_says_that_it_stops_because_of_its_clock(schedules: bool) -> None:
    site = Site()
    clock = VirtualClock()
    guard = ClockGuard(site.store, site.wakeups, clock, ClockRules(), schedules=schedules)
    with capture_logs() as logs:
        async with Supervisor(guard):
            await clock.sleep(SECOND)
            clock.skew = HOUR
            guard.fit()
    (line,) = [line["event"] for line in logs if line["log_level"] == "error"]
    assert line.startswith("clock is far from the store's: ")
    assert ("scheduler" in line) == schedules
