"""How long the holder of a lease trusts it: from before the renewal was sent, and less a margin.

The store counts a lease from when the renewal arrives. A holder that counts from the answer, or without a margin, would
still act when another has taken over.
"""

from collections.abc import Collection

import pytest

from mainspring.core.cluster.shards import ShardKeeper
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.ports.storage.answers import HeartbeatAnswer
from mainspring.core.ports.storage.coordination import Membership
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.worker.attempt import Holding
from mainspring.core.worker.heartbeat import Heartbeat
from mainspring.core.worker.settings import WorkerSettings
from mainspring.stores.memory import MemoryStore
from tests.support.boundaries import around_the_boundary
from tests.support.builders import a_worker
from tests.support.clock import ManualClock

SHARDS = 4
TTL = 10 * SECOND
#: A tenth of the lease.
MARGIN = SECOND

#: How long a renewal takes to arrive, and its answer to come back.
THERE, BACK = 70 * MILLISECOND, 130 * MILLISECOND


class SlowStore(MemoryStore):
    """A store whose renewals and heartbeats take time on the way there and back."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock, shards=SHARDS)
        self.clock = clock

    async def renew(self, member: SessionId, ttl: Micros) -> Membership:
        self.clock.advance(THERE)
        membership = await super().renew(member, ttl)
        self.clock.advance(BACK)
        return membership

    async def heartbeat(
        self, session: SessionId, ttl: Micros, held: Collection[str], pending: Collection[int], last_claim: int
    ) -> HeartbeatAnswer:
        self.clock.advance(THERE)
        answer = await super().heartbeat(session, ttl, held, pending, last_claim)  # type: ignore[arg-type]
        self.clock.advance(BACK)
        return answer


@around_the_boundary
async def test_a_scheduler_trusts_its_lease_from_before_the_renewal_less_the_margin(offset: int) -> None:
    clock = ManualClock()
    store = SlowStore(clock)
    keeper = ShardKeeper(store, SHARDS, LocalWakeups(), clock, ttl=TTL)
    sent = clock.monotonic()
    await keeper.tick()
    assert len(keeper.owned()) == SHARDS
    clock.advance(sent + TTL - MARGIN + offset - clock.monotonic())
    assert len(keeper.owned()) == (SHARDS if offset < 0 else 0)
    assert keeper.margin == (1 if offset < 0 else 0)
    # No other scheduler could take the shards yet.
    other = await store.join("other", TTL)
    assert await store.take(other, range(SHARDS)) == {}


@around_the_boundary
async def test_a_scheduler_trusts_a_shorter_lease_that_was_granted(offset: int) -> None:
    class Granting(SlowStore):
        async def renew(self, member: SessionId, ttl: Micros) -> Membership:
            membership = await super().renew(member, ttl)
            return Membership(
                now=membership.now, members=membership.members, owned=membership.owned, lease=TTL - 2 * SECOND
            )

    clock = ManualClock()
    keeper = ShardKeeper(Granting(clock), SHARDS, LocalWakeups(), clock, ttl=TTL)
    await keeper.tick()
    clock.advance(TTL - 2 * SECOND - MARGIN + offset - clock.monotonic())
    assert len(keeper.owned()) == (SHARDS if offset < 0 else 0)


class Owner:
    """The worker as its heartbeat sees it."""

    failing_since: Micros | None = None

    def __init__(self, session: SessionId, renewed_at: Micros) -> None:
        self.holding = Holding(session, renewed_at)
        self.renewals = 0
        self.over: list[str] = []

    def lease_renewed(self) -> None:
        self.renewals += 1

    def heartbeat_answered(self, holding: Holding, answer: HeartbeatAnswer) -> None:
        raise AssertionError("nothing to answer")

    def lease_over(self, holding: Holding, why: str) -> None:
        self.over.append(why)


SETTINGS = WorkerSettings(lease=TTL, lease_margin=2 * SECOND)


async def a_owner(store: SlowStore) -> Owner:
    return Owner(await store.open_session(a_worker(ttl=TTL)), store.clock.monotonic())


@around_the_boundary
async def test_a_worker_stops_one_margin_before_the_end_of_its_lease(offset: int) -> None:
    clock = ManualClock()
    store = SlowStore(clock)
    owner = await a_owner(store)
    clock.advance(TTL - SETTINGS.lease_margin + offset)
    await Heartbeat(owner, store, clock, SETTINGS).send(store)
    assert (owner.renewals, len(owner.over)) == ((1, 0) if offset < 0 else (0, 1))


@around_the_boundary
async def test_a_worker_trusts_its_lease_from_before_the_heartbeat_was_sent(offset: int) -> None:
    clock = ManualClock()
    store = SlowStore(clock)
    owner = await a_owner(store)
    heartbeat = Heartbeat(owner, store, clock, SETTINGS)
    clock.advance(SECOND)
    sent = clock.monotonic()
    await heartbeat.send(store)
    assert owner.holding.renewed_at == sent
    clock.advance(sent + TTL - SETTINGS.lease_margin + offset - clock.monotonic())
    await heartbeat.send(store)
    assert (owner.renewals, len(owner.over)) == ((2, 0) if offset < 0 else (1, 1))


@around_the_boundary
async def test_a_worker_that_reports_nothing_for_a_lease_sends_no_heartbeat(offset: int) -> None:
    clock = ManualClock()
    store = SlowStore(clock)
    owner = await a_owner(store)
    owner.failing_since = clock.monotonic()
    clock.advance(TTL + offset)
    owner.holding.renewed_at = clock.monotonic()
    heartbeat = Heartbeat(owner, store, clock, SETTINGS)
    await heartbeat.send(store)
    assert (owner.renewals, heartbeat.withholding) == ((1, False) if offset < 0 else (0, True))


@pytest.mark.parametrize("ttl", [500 * MILLISECOND, SECOND - 1, SECOND, SECOND + 10])
async def test_the_margin_of_a_short_lease_is_never_less_than_100_ms(ttl: Micros) -> None:
    clock = ManualClock()
    store = MemoryStore(clock, shards=SHARDS)
    keeper = ShardKeeper(store, SHARDS, LocalWakeups(), clock, ttl=ttl)
    await keeper.tick()
    assert keeper.margin == ttl - max(ttl // 10, 100 * MILLISECOND)
