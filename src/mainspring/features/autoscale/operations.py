"""Operation for autoscalers such as Kubernetes: recommended numbers of workers and schedulers."""

from typing import Annotated

from msgspec import Meta

from mainspring.core.cluster.autoscale import read_loads
from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import HOUR, MILLISECOND, SECOND, Micros
from mainspring.core.model.cluster.autoscale import TARGET, QueueLoad, schedulers_for, workers_for
from mainspring.http.context import Api
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.schemas.common import Name, Request, Span, Wire, parse_span

autoscaling = Resource("Autoscaling", "Recommended numbers of workers and schedulers for the current load.")


class AutoscaleQuery(Request):
    queue: Name | None = None
    """Only this queue."""
    slots: Annotated[int, Meta(ge=1, le=100_000)] = 100
    """How many runs of a queue one worker takes at once."""
    target: Span = "10s"
    """Time in which the backlog should be cleared."""


class QueueScale(Wire):
    queue: str
    queued: int
    running: int
    lag_ms: float
    arrival_per_s: float
    service_per_s: float
    mean_ms: float | None
    """Average duration of a run over the last minutes."""
    workers: int
    recommended_workers: int


class SchedulerScale(Wire):
    schedulers: int
    recommended_schedulers: int
    lag_ms: float


class Autoscale(Wire):
    queues: list[QueueScale]
    workers: int
    """Workers that are alive and not draining."""
    recommended_workers: int
    """For workers that serve all of these queues: the highest recommendation of any queue."""
    schedulers: SchedulerScale | None = None
    """Only for keys that are not bound to a tenant."""


@autoscaling.operation(
    "GET", "/v1/autoscale", permission=Permission.READ, query=AutoscaleQuery, answers={200: Autoscale}
)
async def autoscale(api: Api, call: Call[Empty, AutoscaleQuery]) -> Answer:
    """Get lag, rates and recommended numbers of workers, by queue.

    The recommendation clears the backlog within `target`, 1 s to 1 h. A key that is bound to a tenant gets the
    numbers for its own runs.
    """
    query = call.query
    target = parse_span(query.target, "target")
    if not SECOND <= target <= HOUR:
        raise Invalid("target", f"{query.target!r} is out of range", "1s to 1h")
    tenant = call.principal.tenant
    workers = await api.workers.list_live(tenant)
    loads = await read_loads(api.seen_by(call.principal), workers, tenant, await api.store.now())
    if query.queue is not None:
        loads = [load for load in loads if load.queue == query.queue] or [QueueLoad(queue=query.queue)]
    queues = [_recommend_workers(load, query.slots, target) for load in loads]
    return Answer(
        200,
        Autoscale(
            queues=queues,
            workers=sum(not worker.draining for worker in workers),
            recommended_workers=max((scale.recommended_workers for scale in queues), default=0),
            schedulers=None if tenant is not None else await _recommend_schedulers(api, loads),
        ),
    )


async def _recommend_schedulers(api: Api, loads: list[QueueLoad]) -> SchedulerScale:
    alive = len(await api.store.sessions("scheduler"))
    lag = await api.read_scheduler_lag()
    return SchedulerScale(
        schedulers=alive,
        recommended_schedulers=schedulers_for(sum(load.arrival_rate for load in loads), lag, alive),
        lag_ms=lag / MILLISECOND,
    )


def _recommend_workers(load: QueueLoad, slots: int, target: Micros = TARGET) -> QueueScale:
    return QueueScale(
        queue=load.queue,
        queued=load.queued,
        running=load.running,
        lag_ms=load.lag / MILLISECOND,
        arrival_per_s=round(load.arrival_rate, 3),
        service_per_s=round(load.service_rate, 3),
        mean_ms=None if load.took is None else load.took / MILLISECOND,
        workers=load.workers,
        recommended_workers=workers_for(load, slots, target),
    )
