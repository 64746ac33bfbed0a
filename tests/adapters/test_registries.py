"""Redis, etcd and ZooKeeper as registries: leases that end, watches, tables, and servers that go and come back."""

import asyncio
import signal
import struct
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from mainspring.adapters.clock.system import SystemClock
from mainspring.adapters.coordination import zookeeper_wire as wire
from mainspring.adapters.coordination.zookeeper import ZooKeeperRegistry
from mainspring.control.registry_health import examine_registry
from mainspring.domain.diagnosis import Level
from mainspring.domain.errors import Fenced, StoreUnavailable
from mainspring.domain.ids import SessionId
from mainspring.domain.instant import MINUTE, SECOND
from mainspring.ports.registry import Registry
from tests.support.coordination_harness import OUTSIDE, expire, make_registry
from tests.support.servers import not_here
from tools.services.ensemble import Ensemble
from tools.services.etcd import Etcd
from tools.services.redis import Redis
from tools.services.zookeeper import ZooKeeper

ONE, OTHER = SessionId(1), SessionId(2)
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


async def test_a_lease_that_nobody_renews_ends_by_itself(registry: Registry, address: str) -> None:
    await registry.enter(ONE, MINUTE)
    await registry.enter(OTHER, SECOND)
    assert (await registry.look(ONE)).members == {ONE, OTHER}
    # A ping is not enough: only who looks is alive.
    until = time.monotonic() + 20
    while (view := await registry.look(ONE)).members != {ONE}:
        assert time.monotonic() < until, view
        await asyncio.sleep(0.1)
    with pytest.raises(Fenced):
        await registry.look(OTHER)
    assert not await registry.write(OTHER, {1: OTHER}, view.version)


async def test_others_are_told_when_a_member_dies_or_the_table_changes(
    registry: Registry, address: str, namespace: str
) -> None:
    watching, told = make_registry(address), asyncio.Event()
    await watching.open(namespace)
    try:
        watching.on_change(told.set)
        await watching.enter(ONE, MINUTE)
        await registry.enter(OTHER, MINUTE)
        # A watch takes a moment to begin; whatever happens before it does is found at the next look.
        view = await watching.look(ONE)
        while not told.is_set():
            assert await watching.write(ONE, {1: ONE}, view.version)
            view = await watching.look(ONE)
            await asyncio.sleep(0.05)
        told.clear()
        await asyncio.sleep(0.1)
        await watching.look(ONE)
        told.clear()
        await expire(registry, address, OTHER)
        # Redis tells when somebody finds the dead.
        assert (await watching.look(ONE)).members == {ONE}
        await asyncio.wait_for(told.wait(), 10)
    finally:
        await watching.close()


async def test_a_table_is_written_by_one_of_two(registry: Registry) -> None:
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


async def test_a_large_table_fits(registry: Registry) -> None:
    owners = {shard: SessionId(10**9 + shard % 3) for shard in range(16_384)}
    await registry.enter(ONE, MINUTE)
    assert await registry.write(ONE, owners, (await registry.look(ONE)).version)
    assert (await registry.look(ONE)).owners == owners


async def test_what_was_deleted_in_zookeeper_is_made_anew(address_of: Callable[[str], str], namespace: str) -> None:
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


async def test_doctor_says_what_leases_there_are(address: str) -> None:
    finding = await examine_registry(make_registry(address), "it", 3 * SECOND // 2, SystemClock())
    assert finding.level is Level.OK
    assert "grants leases of" in finding.says


@pytest.fixture(scope="module", params=[Redis, Etcd, ZooKeeper], ids=lambda kind: kind.name)
def breakable(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """Servers of this module alone."""
    ensemble: Ensemble = request.param(tmp_path_factory.mktemp("servers"))
    if not ensemble.installed():
        not_here(f"{ensemble.name} is not installed")
    ensemble.start()
    yield ensemble
    ensemble.remove()


async def soon(registry: Registry, member: SessionId) -> bool:
    """Whether a member is one, once it is answered again."""
    until = time.monotonic() + 30
    while True:
        try:
            await registry.look(member)
        except Fenced:
            return False
        except StoreUnavailable:
            assert time.monotonic() < until
            await asyncio.sleep(0.05)
        else:
            return True


async def enter_soon(registry: Registry, member: SessionId) -> None:
    """Servers that are looking for a leader take nobody in."""
    until = time.monotonic() + 30
    while True:
        try:
            await registry.enter(member, 5 * SECOND)
        except StoreUnavailable:
            assert time.monotonic() < until
            await asyncio.sleep(0.05)
        else:
            return


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.xdist_group("registries")
async def test_servers_that_are_gone_are_waited_for_and_found_again(breakable: Ensemble, namespace: str) -> None:
    registry = make_registry(breakable.address())
    await registry.open(namespace)
    try:
        await enter_soon(registry, ONE)
        for node in breakable.nodes:
            node.signal(signal.SIGSTOP)
        begun = time.monotonic()
        for asked in (registry.look(ONE), registry.enter(OTHER, 2 * SECOND), registry.write(ONE, {1: ONE}, 0)):
            with pytest.raises(StoreUnavailable):
                await asked
        assert time.monotonic() - begun < 15
        finding = await examine_registry(make_registry(breakable.address()), "it", SECOND, SystemClock())
        assert finding.level is Level.PROBLEM
        for node in breakable.nodes:
            node.signal(signal.SIGCONT)
        if not await soon(registry, ONE):
            await enter_soon(registry, ONE)
        view = await registry.look(ONE)
        assert await registry.write(ONE, {1: ONE}, view.version)
    finally:
        for node in breakable.nodes:
            node.signal(signal.SIGCONT)
        await registry.close()


async def still_a_member(registry: Registry, seen: float) -> float:
    """``seen``: when it was one. The same for now."""
    if not await soon(registry, ONE):
        # On a machine that is too busy to elect a leader in that time.
        assert time.monotonic() - seen > 4, "the lease was lost with a node"
        await enter_soon(registry, ONE)
    return time.monotonic()


@pytest.mark.slow
@pytest.mark.xdist_group("registries")
async def test_one_node_of_three_may_die_at_a_time(breakable: Ensemble, namespace: str) -> None:
    if breakable.size < 3:
        return  # of Redis there is one
    registry = make_registry(breakable.address())
    await registry.open(namespace)
    try:
        await enter_soon(registry, ONE)
        seen = time.monotonic()
        for node in breakable.nodes:
            node.signal(signal.SIGKILL)
            seen = await still_a_member(registry, seen)
            node.start()
            ready = asyncio.create_task(asyncio.to_thread(breakable.wait))
            # A lease is as alive as whoever looks, and a node takes longer to start than it lasts.
            while not ready.done():
                seen = await still_a_member(registry, seen)
                await asyncio.sleep(0.1)
            await ready
    finally:
        await registry.close()
