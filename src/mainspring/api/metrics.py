"""Figures of this process and of the store, for Prometheus."""

import asyncio

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from mainspring.domain.errors import StoreUnavailable
from mainspring.domain.instant import SECOND
from mainspring.ports.clock import Clock
from mainspring.ports.store import Depth, Reading

_LATENCIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

#: Whoever scrapes is answered within this time, also when the store does not answer.
_PATIENCE_SECONDS = 5


class Metrics:
    """One registry a process."""

    def __init__(self, store: Reading, clock: Clock) -> None:
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
        self._up = Gauge("mainspring_store_up", "1: the store answers.", registry=self._registry)

    def count(self, operation: str, status: int) -> None:
        """A request was answered; by ``none`` if there is no such operation."""
        self._requests.labels(operation, str(status)).inc()

    async def render(self, tenant: str | None, streams: int) -> bytes:
        """Queues of one tenant, or of all."""
        now, depths = 0, list[Depth]()
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                now = await self._store.now()
                depths = await self._store.depths(tenant)
        except (StoreUnavailable, TimeoutError):
            self._up.set(0)
        else:
            self._up.set(1)
        # From here on nothing waits, so that nobody sees the queues of another tenant.
        self._streams.set(streams)
        for gauge in (self._queued, self._running, self._lag):
            gauge.clear()
        for depth in depths:
            self._queued.labels(depth.queue).set(depth.queued)
            self._running.labels(depth.queue).set(depth.running)
            lag = 0 if depth.oldest_due is None else max(now - depth.oldest_due, 0) / SECOND
            self._lag.labels(depth.queue).set(lag)
        return generate_latest(self._registry)
