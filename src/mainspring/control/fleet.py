"""Figures of the whole fleet, read off the store once in a while, however often somebody asks."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, Protocol

import msgspec

from mainspring.control.autoscale import LoadReads, read_loads
from mainspring.control.publisher import SINK
from mainspring.domain.autoscale import QueueLoad, slots_for, workers_for
from mainspring.domain.errors import StoreUnavailable
from mainspring.domain.instant import SECOND, Instant, Micros
from mainspring.ports.catalog import SessionView
from mainspring.ports.clock import Clock
from mainspring.ports.events_out import ReaderView
from mainspring.runtime.engines import Engines
from mainspring.runtime.metrics import declared
from mainspring.runtime.metrics.book import Book
from mainspring.runtime.remembered import Remembered

#: Whoever asks is answered within this time, also when the store does not answer.
_PATIENCE_SECONDS = 5
#: Of a worker that was told nothing else.
_SLOTS = 100
#: So many tenants are remembered at once.
_TENANTS = 100


class FleetStore(LoadReads, Protocol):
    async def now(self) -> Instant: ...

    async def sessions(self, kind: Literal["worker", "scheduler"]) -> list[SessionView]: ...

    async def readers(self) -> list[ReaderView]: ...


class _Read(msgspec.Struct, frozen=True, kw_only=True):
    loads: list[QueueLoad]
    workers: int
    schedulers: int
    owned: int
    #: By kind of process, of the one that is furthest off.
    clocks: dict[str, Micros]
    #: By sink, how old the oldest is that it has not got.
    behind: dict[str, Micros]
    #: By queue.
    hints: dict[str, int]


class Fleet:
    """One read for everybody who is bound to the same tenant, or to none."""

    def __init__(
        self,
        store: FleetStore,
        clock: Clock,
        *,
        shards: int,
        every: Micros = 0,
        engines: Callable[[], Engines | None] = lambda: None,
    ) -> None:
        """``shards``: of all servers of the store. ``every``: how long a read is good."""
        self._store = store
        self._clock = clock
        self._shards = shards
        self._every = every
        self._engines = engines
        self._reads: dict[str | None, Remembered[_Read]] = {}

    async def tell(self, book: Book, tenant: str | None) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                found = await self._of(tenant).get()
        except (StoreUnavailable, TimeoutError):
            book.put(declared.STORE_UP, 0)
            return
        book.put(declared.STORE_UP, 1)
        book.put(declared.WORKERS, found.workers)
        book.put(declared.SCHEDULERS, found.schedulers)
        book.put(declared.SHARDS, self._shards)
        book.put(declared.OWNED, found.owned)
        for kind, offset in found.clocks.items():
            book.put(declared.CLOCKS, offset / SECOND, kind)
        for sink, age in found.behind.items():
            book.put(declared.BEHIND, age / SECOND, sink)
        for queue, waiting in found.hints.items():
            book.put(declared.HINTS, waiting, queue)
        for load in found.loads:
            _tell_of_queue(book, load)

    def _of(self, tenant: str | None) -> Remembered[_Read]:
        remembered = self._reads.get(tenant)
        if remembered is None:
            if len(self._reads) >= _TENANTS:
                self._reads.clear()
            remembered = self._reads[tenant] = Remembered(lambda: self._read(tenant), self._clock, self._every)
        return remembered

    async def _read(self, tenant: str | None) -> _Read:
        store = self._store
        workers, schedulers = await store.sessions("worker"), await store.sessions("scheduler")
        serving = [worker for worker in workers if tenant is None or worker.serves in ("", tenant)]
        now = await store.now()
        loads = await read_loads(store, serving, tenant, now)
        engines = self._engines()
        return _Read(
            loads=loads,
            workers=len(serving),
            schedulers=len(schedulers),
            owned=sum(scheduler.shards for scheduler in schedulers),
            clocks=_furthest_off({"worker": workers, "scheduler": schedulers}),
            behind=_behind(await store.readers(), now),
            hints={} if engines is None else await engines.depths([load.queue for load in loads]),
        )


def _tell_of_queue(book: Book, load: QueueLoad) -> None:
    book.put(declared.QUEUED, load.queued, load.queue)
    book.put(declared.RUNNING, load.running, load.queue)
    book.put(declared.LAG, load.lag / SECOND, load.queue)
    book.put(declared.ARRIVALS, load.arrival_rate, load.queue)
    book.put(declared.SERVICES, load.service_rate, load.queue)
    book.put(declared.WANTED, workers_for(load, _SLOTS), load.queue)
    book.put(declared.WANTED_SLOTS, slots_for(load), load.queue)
    book.put(declared.QUEUE_WORKERS, load.workers, load.queue)


def _behind(readers: Iterable[ReaderView], now: Instant) -> dict[str, Micros]:
    """Those readers of the outbox that are sinks."""
    return {
        reader.name.removeprefix(SINK): 0 if reader.oldest is None else max(0, now - reader.oldest)
        for reader in readers
        if reader.name.startswith(SINK)
    }


def _furthest_off(sessions: Mapping[str, Iterable[SessionView]]) -> dict[str, Micros]:
    """By kind of process."""
    found: dict[str, Micros] = {}
    for kind, items in sessions.items():
        offsets = [item.clock.offset for item in items if item.clock is not None]
        if offsets:
            found[kind] = max(offsets, key=abs)
    return found
