"""What an API counts of its requests, for Prometheus."""

from collections.abc import Callable

from mainspring.core.maintenance.monitor import Monitor
from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.runtime.metrics import declared
from mainspring.core.runtime.metrics.book import Book
from mainspring.core.runtime.metrics.figures import Figures
from mainspring.core.runtime.metrics.tally import Spread, Tally


class Metrics:
    """Operations are as many as there are; of a path that is none there is no more than ``none``."""

    def __init__(
        self,
        monitor: Monitor,
        figures: Figures | None = None,
        replica_staleness: Callable[[], Micros | None] = lambda: None,
    ) -> None:
        """``figures``: what counts the runs that workers get and report over HTTP."""
        self.figures = figures
        self._monitor = monitor
        self._replica_staleness = replica_staleness
        self._requests = Tally()
        self._latencies: dict[str, Spread] = {}
        self._streams = 0
        monitor.add(self._tell, harmless=True)

    def count(self, operation: str, status: int) -> None:
        """A request was answered; by ``none`` if there is no such operation."""
        self._requests[operation, str(status)] += 1

    def latency(self, operation: str) -> Spread:
        """Where the microseconds of its requests are added."""
        return self._latencies.setdefault(operation, Spread(declared.REQUEST_SECONDS.buckets, SECOND))

    async def render(self, tenant: str | None, streams: int) -> bytes:
        """Queues of one tenant, or of all."""
        self._streams = streams
        return await self._monitor.render(tenant)

    def _tell(self, book: Book) -> None:
        book.counts(declared.REQUESTS, self._requests)
        book.spreads(declared.REQUEST_SECONDS, self._latencies)
        book.put(declared.STREAMS, self._streams)
        behind = self._replica_staleness()
        book.put(declared.REPLICA_LAG, -1 if behind is None else behind / SECOND)
