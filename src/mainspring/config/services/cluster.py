"""Builds the services that connect a process to the cluster: clock guard, coordinator and brokers."""

from collections.abc import Callable

from mainspring.config.runtime import Runtime
from mainspring.config.sections.addresses import read_store_servers
from mainspring.config.servers.broker_routes import read_routes
from mainspring.config.servers.brokers import make_dispatch
from mainspring.config.servers.coordinators import make_registry
from mainspring.config.stores import POSTGRES
from mainspring.core.cluster.clock_guard import ClockGuard
from mainspring.core.cluster.epoch_check import EpochCheckedCoordinator
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.cluster.clock_guard import ClockRules
from mainspring.core.model.cluster.coordination import STORE, read_coordination
from mainspring.core.model.cluster.hints import HintCodec
from mainspring.core.runtime.brokers import Brokers, GuardedBroker


def make_clock_guard(
    runtime: Runtime, sessions: Callable[[], list[SessionId]], *, schedules: bool
) -> ClockGuard | None:
    """Return the clock guard, or None if the store uses the clock of this machine."""
    if not runtime.settings.store.startswith(POSTGRES) and not read_store_servers(runtime.settings.store):
        return None
    section = runtime.settings.clock
    rules = ClockRules(section.warn_offset, section.max_offset)
    return ClockGuard(runtime.store, runtime.wakeups, runtime.clock, rules, sessions, schedules=schedules)


def make_coordinator(runtime: Runtime) -> EpochCheckedCoordinator | None:
    """Build the coordinator outside the store, or None if the store assigns shards."""
    found = read_coordination(runtime.settings.coordination)
    return None if found is None else EpochCheckedCoordinator(runtime.store, make_registry(found, runtime.clock))


async def make_brokers(runtime: Runtime) -> Brokers | None:
    """Build the brokers for the open store, or None if there are none."""
    section = runtime.settings.dispatch
    routes = read_routes(section.broker, section.queues)
    if not routes:
        return None
    identity = await runtime.store.identity()
    codec = HintCodec((section.key or await runtime.store.hint_key()).encode())
    made = {
        url: GuardedBroker(make_dispatch(url, runtime.clock, codec, runtime.settings.datacenter), runtime.clock)
        for url in dict.fromkeys(routes.values())
        if url != STORE
    }
    return Brokers(list(made.values()), {queue: made.get(url) for queue, url in routes.items()}, identity)
