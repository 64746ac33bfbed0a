"""HTTP operations on workers and schedulers: list the live ones, drain a worker."""

import msgspec

from mainspring.core.maintenance.queue_depth import RATE_OVER
from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.instant import MILLISECOND, isoformat
from mainspring.core.model.cluster.labels import split_labels
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import SessionView
from mainspring.http.context import Api
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.problems import ObjectNotFound, Problem
from mainspring.http.schemas.common import Wire, parse_session
from mainspring.http.schemas.workers import SchedulerOut, Schedulers, WorkerOut, Workers

processes = Resource("Processes", "Live workers and schedulers.")


class DrainOut(Wire):
    worker_id: str
    draining: bool


@processes.operation("GET", "/v1/workers", permission=Permission.READ, answers={200: Workers})
async def list_workers(api: Api, call: Call[Empty, Empty]) -> Answer:
    """List live workers.

    A key that is bound to a tenant sees the workers that take its runs. Of a shared worker it sees no tasks, and
    only queues in which the tenant has runs or had some in the last five minutes.
    """
    found = await api.store.sessions("worker")
    tenant = call.principal.tenant
    if tenant is not None:
        found = [worker for worker in found if worker.serves in ("", tenant)]
        now, seen = await api.store.now(), api.seen_by(call.principal)
        mine = {depth.queue for depth in await seen.depths(tenant)}
        mine |= {minute.queue for minute in await seen.minutes(tenant, now - RATE_OVER, now)}
        found = [worker if worker.serves else _limit_to_tenant(worker, mine) for worker in found]
    return Answer(200, Workers(items=[_worker_out(worker) for worker in found]))


@processes.operation(
    "POST", "/v1/workers/{id}/drain", permission=Permission.ADMINISTER_ALL, answers={202: DrainOut, 404: Problem}
)
async def drain_worker(api: Api, call: Call[Empty, Empty]) -> Answer:
    """Drain a worker.

    The worker finishes its active runs, claims no more, and leaves. The answer does not wait for that.
    """
    worker = parse_session(call.path["id"])
    if not await api.store.drain(worker, Author(call.principal.name, None)):
        raise ObjectNotFound
    return Answer(202, DrainOut(worker_id=str(worker), draining=True))


@processes.operation("GET", "/v1/schedulers", permission=Permission.READ, answers={200: Schedulers})
async def list_schedulers(api: Api, call: Call[Empty, Empty]) -> Answer:
    """List live schedulers, with their lag.

    Each scheduler has its shards, its lease and its clock offset. The lag is the age of the oldest due run that is
    not queued yet.
    """
    lag = await api.read_scheduler_lag() / MILLISECOND
    items = [
        SchedulerOut(
            scheduler_id=str(item.id),
            name=item.name,
            version=item.version,
            started_at=isoformat(item.started_at),
            lease_until=isoformat(item.lease_until),
            last_heartbeat_at=isoformat(item.lease_until - item.lease),
            shards=item.shards,
            datacenter=item.datacenter,
            tzdata=item.tzdata,
            **_clock_out(item),
        )
        for item in await api.store.sessions("scheduler")
    ]
    return Answer(200, Schedulers(items=items, lag_ms=lag))


def _limit_to_tenant(worker: SessionView, queues: set[str]) -> SessionView:
    """Return a shared worker as one tenant may see it: without tasks, and with the tenant's queues only."""
    return msgspec.structs.replace(worker, tasks=(), queues=tuple(name for name in worker.queues if name in queues))


def _worker_out(worker: SessionView) -> WorkerOut:
    return WorkerOut(
        worker_id=str(worker.id),
        name=worker.name,
        version=worker.version,
        started_at=isoformat(worker.started_at),
        lease_until=isoformat(worker.lease_until),
        last_heartbeat_at=isoformat(worker.lease_until - worker.lease),
        running=worker.running,
        draining=worker.draining,
        queues=worker.queues,
        tasks=worker.tasks,
        labels=split_labels(worker.labels),
        priorities=worker.priorities,
        slots=worker.slots,
        datacenter=worker.datacenter,
        **_clock_out(worker),
    )


def _clock_out(session: SessionView) -> dict[str, float]:
    if session.clock is None:
        return {}
    return {
        "clock_offset_ms": session.clock.offset / MILLISECOND,
        "clock_error_ms": session.clock.error / MILLISECOND,
    }
