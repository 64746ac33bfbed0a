"""Figures of this process and of the store, for Prometheus."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from mainspring.control.autoscale import LoadReads, read_loads
from mainspring.domain.autoscale import QueueLoad, workers_for
from mainspring.domain.errors import StoreUnavailable
from mainspring.domain.instant import SECOND, Instant, Micros
from mainspring.ports.catalog import SessionView
from mainspring.ports.clock import Clock

_LATENCIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

#: Whoever scrapes is answered within this time, also when the store does not answer.
_PATIENCE_SECONDS = 5


#: Of a worker that was told nothing else.
_SLOTS = 100


class MetricsStore(LoadReads, Protocol):
    async def now(self) -> Instant: ...

    async def sessions(self, kind: Literal["worker", "scheduler"]) -> list[SessionView]: ...


class Metrics:
    """One registry a process."""

    def __init__(
        self, store: MetricsStore, clock: Clock, replica_staleness: Callable[[], Micros | None] = lambda: None
    ) -> None:
        self._store = store
        self._clock = clock
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "mainspring_api_requests_total",
            "Requests answered, by operation and status, also with errors.",
            ["operation", "status"],
            registry=self._registry,
        )
        self.latency = Histogram(
            "mainspring_api_request_seconds",
            "How long requests took, by operation; not those that stream.",
            ["operation"],
            buckets=_LATENCIES,
            registry=self._registry,
        )
        self._streams = Gauge("mainspring_api_streams", "Streams of events and logs.", registry=self._registry)
        self._queued = Gauge("mainspring_queued_runs", "Runs that are queued.", ["queue"], registry=self._registry)
        self._running = Gauge("mainspring_running_runs", "Runs that are running.", ["queue"], registry=self._registry)
        self._lag = Gauge(
            "mainspring_queue_lag_seconds",
            "How long the oldest queued run has been due.",
            ["queue"],
            registry=self._registry,
        )
        self._arrivals = Gauge(
            "mainspring_queue_arrivals_per_second", "Runs that come to a queue.", ["queue"], registry=self._registry
        )
        self._services = Gauge(
            "mainspring_queue_ends_per_second", "Runs of a queue that end.", ["queue"], registry=self._registry
        )
        self._wanted = Gauge(
            "mainspring_recommended_workers",
            "Workers with 100 slots that the load of a queue asks for.",
            ["queue"],
            registry=self._registry,
        )
        self._clocks = Gauge(
            "mainspring_clock_offset_seconds",
            "How far the clock of the node that is furthest off is ahead of the store's, by kind of process.",
            ["kind"],
            registry=self._registry,
        )
        self._replica_staleness = replica_staleness
        self._replica_lag = Gauge(
            "mainspring_replica_lag_seconds",
            "How far the replica was behind when this process last listed from it; -1: not known, or there is none.",
            registry=self._registry,
        )
        self._up = Gauge("mainspring_store_up", "1: the store answers.", registry=self._registry)

    def count(self, operation: str, status: int) -> None:
        """A request was answered; by ``none`` if there is no such operation."""
        self._requests.labels(operation, str(status)).inc()

    async def render(self, tenant: str | None, streams: int) -> bytes:
        """Queues of one tenant, or of all."""
        loads, clocks = list[QueueLoad](), dict[str, int]()
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                workers = await self._store.sessions("worker")
                serving = [worker for worker in workers if tenant is None or worker.serves in ("", tenant)]
                loads = await read_loads(self._store, serving, tenant, await self._store.now())
                clocks = _furthest_off({"worker": workers, "scheduler": await self._store.sessions("scheduler")})
        except (StoreUnavailable, TimeoutError):
            self._up.set(0)
        else:
            self._up.set(1)
        # From here on nothing waits, so that nobody sees the queues of another tenant.
        self._streams.set(streams)
        behind = self._replica_staleness()
        self._replica_lag.set(-1 if behind is None else behind / SECOND)
        self._clocks.clear()
        for kind, offset in clocks.items():
            self._clocks.labels(kind).set(offset / SECOND)
        for gauge in (self._queued, self._running, self._lag, self._arrivals, self._services, self._wanted):
            gauge.clear()
        for load in loads:
            self._queued.labels(load.queue).set(load.queued)
            self._running.labels(load.queue).set(load.running)
            self._lag.labels(load.queue).set(load.lag / SECOND)
            self._arrivals.labels(load.queue).set(load.arrival_rate)
            self._services.labels(load.queue).set(load.service_rate)
            self._wanted.labels(load.queue).set(workers_for(load, _SLOTS))
        return generate_latest(self._registry)


def _furthest_off(sessions: Mapping[str, Iterable[SessionView]]) -> dict[str, int]:
    """By kind of process."""
    found: dict[str, int] = {}
    for kind, items in sessions.items():
        offsets = [item.clock.offset for item in items if item.clock is not None]
        if offsets:
            found[kind] = max(offsets, key=abs)
    return found
