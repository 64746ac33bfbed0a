"""Measures the load of queues, for programs that start and stop processes by it."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from mainspring.core.maintenance.queue_depth import QueueDepth, judge_depth
from mainspring.core.model.base.instant import MINUTE, SECOND, Instant, Micros
from mainspring.core.model.cluster.autoscale import QueueLoad
from mainspring.core.ports.storage.catalog import Minute, SessionView
from mainspring.core.ports.storage.reads import QueueBacklog

#: Per-minute metrics lag a little. Over this span they are stable, and still follow the load.
RATES_OVER: Micros = 3 * MINUTE


class LoadReads(Protocol):
    """The load that a tenant may see, or that of all tenants."""

    async def depths(self, tenant: str | None = None) -> list[QueueBacklog]: ...

    async def minutes(self, tenant: str | None, since: Instant, until: Instant) -> list[Minute]: ...


async def read_loads(
    reads: LoadReads, workers: Collection[SessionView], tenant: str | None, now: Instant
) -> list[QueueLoad]:
    """Return the load of every queue with work, with workers, or with recently ended runs, by name."""
    depths = {depth.queue: depth for depth in await reads.depths(tenant)}
    metrics = await reads.minutes(tenant, now - RATES_OVER, now)
    staying = [worker for worker in workers if not worker.draining]
    names = set(depths) | {minute.queue for minute in metrics} | {queue for one in staying for queue in one.queues}
    return [_load(name, depths.get(name), metrics, staying, now) for name in sorted(names)]


def _load(
    name: str, depth: QueueBacklog | None, metrics: Sequence[Minute], workers: Collection[SessionView], now: Instant
) -> QueueLoad:
    own = [minute for minute in metrics if minute.queue == name]
    started = sum(minute.started for minute in own)
    judged = QueueDepth(queue=name) if depth is None else judge_depth(depth, workers)
    return QueueLoad(
        queue=name,
        queued=judged.queued,
        stranded=sum(judged.stranded.values()),
        running=judged.running,
        lag=0 if judged.oldest_due is None else max(now - judged.oldest_due, 0),
        waited=0 if judged.oldest_ready is None else max(now - judged.oldest_ready, 0),
        service_rate=sum(minute.succeeded + minute.failed + minute.cancelled for minute in own) / (RATES_OVER / SECOND),
        took=sum(minute.took_total for minute in own) // started if started else None,
        workers=sum(name in worker.queues for worker in workers),
    )


def count_other_workers(queue: str, workers: Iterable[SessionView], own: Collection[str]) -> int:
    """Count the workers of a queue other than these, by name."""
    names = Counter(worker.name for worker in workers if queue in worker.queues and not worker.draining)
    return sum(count for name, count in names.items() if name not in own)
