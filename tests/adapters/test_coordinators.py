"""Redis, etcd and ZooKeeper as coordinators: leases, watches, the table of owners, and servers that restart."""

import asyncio
import itertools
import signal
import struct
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress

import pytest

from mainspring.core.model.base.errors import Fenced, StoreUnavailable
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import MINUTE, SECOND, Micros
from mainspring.core.model.cluster.diagnosis import Level
from mainspring.core.ports.registry import Registry, View
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.features.doctor.coordinator_health import check_coordinator
from mainspring.integrations.zookeeper import wire
from mainspring.integrations.zookeeper.coordination import ZooKeeperRegistry
from tests.support.coordination_harness import OUTSIDE, expire, make_registry
from tests.support.servers import not_here, require
from tests.support.waiting import eventually
from tools.services.ensemble import Ensemble
from tools.services.etcd import Etcd
from tools.services.redis import Redis
from tools.services.zookeeper import ZooKeeper

ONE, OTHER = SessionId(1), SessionId(2)
#: No lease ends because the machine is slow. A client waits for an answer for a sixth of it.
LONG_LEASE: Micros = 10 * MINUTE
_DELETE = 2


@pytest.fixture(params=OUTSIDE)
def address(request: pytest.FixtureRequest, address_of: Callable[[str], str]) -> str:
    return address_of(request.param)


@pytest.fixture
def namespace() -> str:
    return uuid.uuid4().hex


@pytest.fixture
async def registry(address: str, namespace: str) -> AsyncIterator[Registry]:
    registry = make_registry(address)
    await registry.open(namespace)
    yield registry
    await registry.close()


async def test_a_lease_that_is_not_renewed_expires(registry: Registry, address: str, namespace: str) -> None:
    await registry.enter(ONE, MINUTE)
    # Apart: a client waits for an answer for a part of the lease, which is too short for a busy machine.
    impatient = make_registry(address)
    await impatient.open(namespace)
    other = await enter(impatient, 3 * SECOND)

    async def find_view_without_the_other() -> View | None:
        # Connections stay alive by themselves; only a look renews a lease.
        view = await registry.look(ONE)
        return view if view.members == {ONE} else None

    try:
        view = await eventually(find_view_without_the_other)
        assert view is not None
        assert not await is_member(impatient, other)
        assert not await registry.write(other, {1: other}, view.version)
    finally:
        await impatient.close()


async def test_watchers_are_notified_when_a_member_expires_or_the_table_changes(
    registry: Registry, address: str, namespace: str
) -> None:
    watching, notifications, counts = make_registry(address), 0, list[int]()

    def count() -> None:
        nonlocal notifications
        notifications += 1

    async def write_a_table() -> bool:
        # A watch takes a moment to begin; a change before that is found at the next look.
        view = await watching.look(ONE)
        assert await watching.write(ONE, {1: ONE}, view.version)
        return notifications > 0

    def has_become_quiet() -> bool:
        counts.append(notifications)
        return counts[-5:] == [notifications] * 5

    async def find_the_expired_member() -> bool:
        # Redis notifies when a member looks and finds an expired one.
        assert (await watching.look(ONE)).members == {ONE}
        return notifications > before

    await watching.open(namespace)
    try:
        watching.on_change(count)
        await watching.enter(ONE, MINUTE)
        await registry.enter(OTHER, MINUTE)
        await eventually(write_a_table)
        # Notifications of earlier writes may still be on their way.
        await eventually(has_become_quiet)
        await watching.look(ONE)
        before = notifications
        await expire(registry, address, OTHER)
        await eventually(find_the_expired_member)
    finally:
        await watching.close()


async def test_only_one_of_two_concurrent_writes_of_the_table_succeeds(registry: Registry) -> None:
    await registry.enter(ONE, MINUTE)
    await registry.enter(OTHER, MINUTE)
    mine, others = await registry.look(ONE), await registry.look(OTHER)
    assert mine.owners == others.owners == {}
    assert await registry.write(OTHER, {1: OTHER, 2: ONE}, others.version)
    assert not await registry.write(ONE, {1: ONE}, mine.version)
    view = await registry.look(ONE)
    assert view.owners == {1: OTHER, 2: ONE}
    assert await registry.write(ONE, {}, view.version)
    assert (await registry.look(OTHER)).owners == {}


async def test_namespaces_do_not_see_each_other(registry: Registry, address: str) -> None:
    other = make_registry(address)
    await other.open(uuid.uuid4().hex)
    try:
        await registry.enter(ONE, MINUTE)
        await other.enter(ONE, MINUTE)
        assert await other.write(ONE, {1: ONE}, (await other.look(ONE)).version)
        assert (await registry.look(ONE)).owners == {}
        await other.exit(ONE)
        assert (await registry.look(ONE)).members == {ONE}
    finally:
        await other.close()


async def test_a_table_of_16384_shards_fits(registry: Registry) -> None:
    owners = {shard: SessionId(10**9 + shard % 3) for shard in range(16_384)}
    await registry.enter(ONE, MINUTE)
    assert await registry.write(ONE, owners, (await registry.look(ONE)).version)
    assert (await registry.look(ONE)).owners == owners


async def test_nodes_that_were_deleted_in_zookeeper_are_created_again(
    address_of: Callable[[str], str], namespace: str
) -> None:
    registry = make_registry(address_of("zookeeper"))
    assert isinstance(registry, ZooKeeperRegistry)
    await registry.open(namespace)
    await registry.enter(ONE, MINUTE)
    await registry.enter(OTHER, MINUTE)
    session = registry._sessions[OTHER]
    for path in (f"members/{ONE}", f"members/{OTHER}", "members", "owners"):
        await session.ask((_DELETE, wire.text(f"/mainspring/{namespace}/{path}") + struct.pack(">i", -1)))
    for member in (ONE, OTHER):
        with pytest.raises(Fenced):
            await registry.look(member)
    assert not await registry.write(ONE, {1: ONE}, 0)
    await registry.enter(ONE, MINUTE)
    view = await registry.look(ONE)
    assert view.members == {ONE}
    assert view.owners == {}
    await registry.close()


async def test_doctor_reports_the_granted_lease(address: str) -> None:
    finding = await check_coordinator(make_registry(address), "it", 3 * SECOND // 2, SystemClock())
    assert finding.level is Level.OK
    assert "grants leases of" in finding.says


@pytest.fixture(scope="module", params=[Redis, Etcd, ZooKeeper], ids=lambda kind: kind.name)
def breakable(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """Servers that only this module uses, so that its tests may stop them."""
    require(request.param.name)
    ensemble: Ensemble = request.param(tmp_path_factory.mktemp("servers"))
    if not ensemble.installed():
        not_here(f"{ensemble.name} is not installed")
    ensemble.start()
    yield ensemble
    ensemble.remove()


async def is_member(registry: Registry, member: SessionId) -> bool:
    """Whether the coordinator still knows a member, once it answers."""

    async def look() -> str:
        try:
            await registry.look(member)
        except Fenced:
            return "expired"
        except StoreUnavailable:
            return ""
        return "member"

    return await eventually(look) == "member"


async def enter(registry: Registry, ttl: Micros) -> SessionId:
    """Enter as soon as the coordinator answers: servers that elect a leader accept no members. Return the member.

    Each try has its own id, as in production: the server may have taken a try whose answer was lost, and ZooKeeper
    keeps the node of that member until its lease ends.
    """
    members = map(SessionId, itertools.count(10))

    async def enters() -> SessionId | None:
        member = next(members)
        with suppress(StoreUnavailable):
            await registry.enter(member, ttl)
            return member
        return None

    member = await eventually(enters)
    assert member is not None
    return member


@pytest.mark.slow
@pytest.mark.xdist_group("registries")
async def test_a_registry_recovers_when_stopped_servers_answer_again(breakable: Ensemble, namespace: str) -> None:
    registry = make_registry(breakable.address())
    await registry.open(namespace)
    try:
        member = await enter(registry, 5 * SECOND)
        for node in breakable.nodes:
            node.signal(signal.SIGSTOP)
        # Each of these fails while the servers are still stopped.
        for asked in (
            registry.look(member),
            registry.enter(OTHER, 2 * SECOND),
            registry.write(member, {1: member}, 0),
        ):
            with pytest.raises(StoreUnavailable):
                await asked
        finding = await check_coordinator(make_registry(breakable.address()), "it", SECOND, SystemClock())
        assert finding.level is Level.PROBLEM
        for node in breakable.nodes:
            node.signal(signal.SIGCONT)

        async def writes() -> bool:
            nonlocal member
            try:
                view = await registry.look(member)
                return await registry.write(member, {1: member}, view.version)
            except Fenced:
                member = await enter(registry, LONG_LEASE)
            except StoreUnavailable:
                pass
            return False

        await eventually(writes)
    finally:
        for node in breakable.nodes:
            node.signal(signal.SIGCONT)
        await registry.close()


@pytest.mark.slow
@pytest.mark.xdist_group("registries")
async def test_a_lease_survives_the_loss_of_any_one_of_three_nodes(breakable: Ensemble, namespace: str) -> None:
    if breakable.size < 3:
        return  # Redis runs as one node.
    registry = make_registry(breakable.address())
    await registry.open(namespace)
    try:
        member = await enter(registry, LONG_LEASE)
        for node in breakable.nodes:
            node.signal(signal.SIGKILL)
            assert await is_member(registry, member), "the lease was lost with a node"
            node.start()
            await asyncio.to_thread(breakable.wait)
            assert await is_member(registry, member), "the lease was lost with a node"
    finally:
        await registry.close()
