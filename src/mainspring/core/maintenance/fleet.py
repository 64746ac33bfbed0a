"""Metrics of the whole fleet, read from the store at limited intervals, however often they are requested."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from mainspring.core.cluster.autoscale import LoadReads, read_loads
from mainspring.core.dispatch.outbox import SINK
from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.instant import MINUTE, SECOND, Instant, Micros
from mainspring.core.model.cluster.autoscale import QueueLoad, slots_for, workers_for
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.events_out import ReaderView
from mainspring.core.ports.storage.catalog import Pause, SessionView
from mainspring.core.runtime.brokers import Brokers
from mainspring.core.runtime.cached import BackgroundCache, Cached
from mainspring.core.runtime.metrics import declared
from mainspring.core.runtime.metrics.counters import OTHER
from mainspring.core.runtime.metrics.exposition import Exposition

#: Every request is answered within this time, even if the store does not answer.
_PATIENCE_SECONDS = 5
#: How long stale counts are reported while counting takes long in a full store.
_BEARABLE: Micros = MINUTE
#: The number of slots of a worker without other configuration.
_SLOTS = 100
#: The most tenants for which results are cached.
_TENANTS = 100


class FleetStore(LoadReads, Protocol):
    async def now(self) -> Instant: ...

    async def sessions(self, kind: Literal["worker", "scheduler"]) -> list[SessionView]: ...

    async def readers(self) -> list[ReaderView]: ...

    async def pauses(self) -> list[Pause]: ...


class _Alive(msgspec.Struct, frozen=True):
    """Sessions: fast to read, however much work there is."""

    workers: list[SessionView]
    schedulers: list[SessionView]

    def serving(self, tenant: str | None) -> list[SessionView]:
        return [worker for worker in self.workers if tenant is None or worker.serves in ("", tenant)]


class _Work(msgspec.Struct, frozen=True, kw_only=True):
    """Counts: the more work there is, the longer they take."""

    loads: list[QueueLoad]
    pauses: list[Pause]
    #: By sink: the age of the oldest undelivered event.
    behind: dict[str, Micros]
    #: The number of waiting hints by queue.
    hints: dict[str, int]


class Fleet:
    """Shares one read between all callers that are bound to the same tenant, or to none."""

    def __init__(
        self,
        store: FleetStore,
        clock: Clock,
        *,
        shards: int,
        every: Micros = 0,
        most_names: int = 100,
        brokers: Callable[[], Brokers | None] = lambda: None,
    ) -> None:
        """``shards``: of all servers of the store. ``every``: how long a read is served from cache. ``most_names``: how
        many queues are reported separately; the others are combined."""
        self._store = store
        self._clock = clock
        self._shards = shards
        self._every = every
        self._most_names = most_names
        self._brokers = brokers
        self._alive = Cached(self._read_alive, clock, every)
        self._work: dict[str | None, BackgroundCache[_Work]] = {}

    async def export(self, exposition: Exposition, tenant: str | None) -> None:
        began = self._clock.monotonic()
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                alive = await self._alive.get()
        except (StoreUnavailable, TimeoutError):
            exposition.put(declared.STORE_UP, 0)
            return
        exposition.put(declared.STORE_UP, 1)
        exposition.put(declared.WORKERS, len(alive.serving(tenant)))
        exposition.put(declared.SCHEDULERS, len(alive.schedulers))
        exposition.put(declared.SHARDS, self._shards)
        exposition.put(declared.OWNED, sum(scheduler.shards for scheduler in alive.schedulers))
        for kind, offset in _furthest_off({"worker": alive.workers, "scheduler": alive.schedulers}).items():
            exposition.put(declared.CLOCKS, offset / SECOND, kind)
        left = _PATIENCE_SECONDS - (self._clock.monotonic() - began) / SECOND
        work = await (await self._get_work(tenant)).get(max(left, 0))
        exposition.put(declared.COUNTED, work is not None)
        if work is not None:
            _tell_of_work(exposition, work, self._most_names)

    async def close(self) -> None:
        for work in self._work.values():
            await work.close()

    async def _get_work(self, tenant: str | None) -> BackgroundCache[_Work]:
        if tenant not in self._work:
            if len(self._work) >= _TENANTS:
                await self.close()
                self._work.clear()
            self._work[tenant] = BackgroundCache(lambda: self._read_work(tenant), self._clock, self._every, _BEARABLE)
        return self._work[tenant]

    async def _read_alive(self) -> _Alive:
        return _Alive(await self._store.sessions("worker"), await self._store.sessions("scheduler"))

    async def _read_work(self, tenant: str | None) -> _Work:
        store = self._store
        alive, now = await self._alive.get(), await store.now()
        loads = await read_loads(store, alive.serving(tenant), tenant, now)
        pauses = [pause for pause in await store.pauses() if pause.tenant in (None, tenant)]
        if tenant is not None:
            # Sinks contain the names of other tenants' webhooks, and hints of a queue are shared by all tenants.
            return _Work(loads=loads, pauses=pauses, behind={}, hints={})
        brokers = self._brokers()
        return _Work(
            loads=loads,
            pauses=pauses,
            behind=_behind(await store.readers(), now),
            hints={} if brokers is None else await brokers.depths([load.queue for load in loads]),
        )


def _tell_of_work(exposition: Exposition, work: _Work, most_names: int) -> None:
    for sink, age in work.behind.items():
        exposition.put(declared.BEHIND, age / SECOND, sink)
    apart = _told_apart(work.loads, most_names)
    hints: dict[str, int] = defaultdict(int)
    for queue, waiting in work.hints.items():
        hints[queue if queue in apart else OTHER] += waiting
    for label, waiting in hints.items():
        exposition.put(declared.HINTS, waiting, label)
    loads: dict[str, list[QueueLoad]] = defaultdict(list)
    for load in work.loads:
        loads[load.queue if load.queue in apart else OTHER].append(load)
    paused = {load.queue for load in work.loads if any(pause.queue in (None, load.queue) for pause in work.pauses)}
    for label, same in loads.items():
        _tell_of_queues(exposition, label, same, paused)


def _told_apart(loads: Iterable[QueueLoad], most: int) -> set[str]:
    """Return the queues to report separately: those with workers first, then those with the most work."""
    first = sorted(loads, key=lambda load: (not load.workers, -load.queued, -load.running, load.queue))
    return {load.queue for load in first[:most]}


def _tell_of_queues(exposition: Exposition, label: str, loads: Sequence[QueueLoad], paused: Collection[str]) -> None:
    """Report one queue, or all queues that are combined under one label."""
    # A queue without workers must not hide behind the workers of another.
    waiting = [load for load in loads if load.queued and load.queue not in paused]
    exposition.put(declared.QUEUED, sum(load.queued for load in loads), label)
    exposition.put(declared.RUNNING, sum(load.running for load in loads), label)
    exposition.put(declared.LAG, max(load.waited for load in loads) / SECOND, label)
    exposition.put(declared.PAUSED, all(load.queue in paused for load in loads), label)
    exposition.put(declared.ARRIVALS, sum(load.arrival_rate for load in loads), label)
    exposition.put(declared.SERVICES, sum(load.service_rate for load in loads), label)
    exposition.put(declared.WANTED, sum(workers_for(load, _SLOTS) for load in loads), label)
    exposition.put(declared.WANTED_SLOTS, sum(slots_for(load) for load in loads), label)
    exposition.put(declared.QUEUE_WORKERS, min(load.workers for load in waiting or loads), label)


def _behind(readers: Iterable[ReaderView], now: Instant) -> dict[str, Micros]:
    """Return the age of the oldest undelivered event of those outbox readers that are sinks."""
    return {
        reader.name.removeprefix(SINK): 0 if reader.oldest is None else max(0, now - reader.oldest)
        for reader in readers
        if reader.name.startswith(SINK)
    }


def _furthest_off(sessions: Mapping[str, Iterable[SessionView]]) -> dict[str, Micros]:
    """Return the largest clock offset by kind of process."""
    found: dict[str, Micros] = {}
    for kind, items in sessions.items():
        offsets = [item.clock.offset for item in items if item.clock is not None]
        if offsets:
            found[kind] = max(offsets, key=abs)
    return found
