"""Prometheus metrics of API requests."""

from collections.abc import Callable

from mainspring.core.maintenance.monitor import Monitor
from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.runtime.metrics import declared
from mainspring.core.runtime.metrics.counters import Histogram, LabelCounts
from mainspring.core.runtime.metrics.exposition import Exposition
from mainspring.core.runtime.metrics.run_metrics import RunMetrics


class Metrics:
    """Counts requests by operation.

    Requests to unknown paths share the label ``none``, so that labels stay bounded.
    """

    def __init__(
        self,
        monitor: Monitor,
        runs: RunMetrics | None = None,
        replica_staleness: Callable[[], Micros | None] = lambda: None,
    ) -> None:
        """``runs``: the metrics of runs that workers claim and report over HTTP."""
        self.runs = runs
        self._monitor = monitor
        self._replica_staleness = replica_staleness
        self._requests = LabelCounts()
        self._latencies: dict[str, Histogram] = {}
        self._streams = 0
        monitor.add(self._tell, harmless=True)

    def count(self, operation: str, status: int) -> None:
        """Count an answered request. The operation is ``none`` if no operation matched."""
        self._requests[operation, str(status)] += 1

    def latency(self, operation: str) -> Histogram:
        """Return the histogram for the request durations of an operation, in microseconds."""
        return self._latencies.setdefault(operation, Histogram(declared.REQUEST_SECONDS.buckets, SECOND))

    async def render(self, tenant: str | None, streams: int) -> bytes:
        """Render the metrics, with the queues of one tenant or of all."""
        self._streams = streams
        return await self._monitor.render(tenant)

    def _tell(self, exposition: Exposition) -> None:
        exposition.counts(declared.REQUESTS, self._requests)
        exposition.spreads(declared.REQUEST_SECONDS, self._latencies)
        exposition.put(declared.STREAMS, self._streams)
        behind = self._replica_staleness()
        exposition.put(declared.REPLICA_LAG, -1 if behind is None else behind / SECOND)
