"""Queues, workers, schedulers: what there is, and what it is doing."""

from typing import Any

import msgspec

from mainspring.api.context import Api
from mainspring.api.facts import paused
from mainspring.api.operation import Answer, Call, Nothing, Resource
from mainspring.api.problems import Missing, Problem
from mainspring.api.schemas.common import Name, PauseIn, Request, Wire, end_of_pause, session_of, time_of
from mainspring.domain.access import Permission, Principal
from mainspring.domain.errors import Invalid
from mainspring.domain.instant import MILLISECOND, MINUTE, isoformat
from mainspring.domain.labels import labels_of
from mainspring.domain.run import check_name
from mainspring.ports.access import Author
from mainspring.ports.catalog import Pause, SessionView
from mainspring.ports.wakeups import queue_topic

queues = Resource("Queues", "Named lanes that workers subscribe to.")
processes = Resource("Processes", "The workers and schedulers that are alive.")

_RATE_OVER = 5 * MINUTE


class ListQueues(Request):
    tenant: Name | None = None


class QueueOut(Wire):
    name: str
    queued: int
    running: int
    workers: int
    lag_ms: float
    """How long the oldest queued run has been due."""
    rate_per_s: float
    """What ended, over five minutes."""
    paused: bool
    pause_reason: str | None = None
    resume_at: str | None = None
    """When it goes on by itself."""


class Queues(Wire):
    items: list[QueueOut]


class PauseOf(PauseIn):
    tenant: Name | None = None
    """Only runs of this one; of all that the caller may see without."""


class Whose(Request):
    tenant: Name | None = None


class QueueState(Wire):
    name: str
    paused: bool
    resume_at: str | None = None


class WorkerOut(Wire):
    worker_id: str
    name: str
    version: str
    started_at: str
    lease_until: str
    running: int
    draining: bool
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    labels: dict[str, str] = {}
    priorities: tuple[int, ...] = ()
    """It has slots for each of these priorities, and takes no others; empty: it takes all."""
    datacenter: str = ""
    clock_offset_ms: float | None = None
    """How far its node's clock is ahead of the store's; nobody has measured it: null."""
    clock_error_ms: float | None = None
    """How wrong that may be: half of a round trip."""


class Workers(Wire):
    items: list[WorkerOut]


class SchedulerOut(Wire):
    scheduler_id: str
    name: str
    version: str
    started_at: str
    lease_until: str
    shards: int
    datacenter: str = ""
    clock_offset_ms: float | None = None
    clock_error_ms: float | None = None


class Schedulers(Wire):
    items: list[SchedulerOut]
    lag_ms: float
    """How long the oldest run that should be queued has been due; 0 when there is none."""


class Drained(Wire):
    worker_id: str
    draining: bool


@queues.operation("GET", "/v1/queues", permission=Permission.READ, query=ListQueues, answers={200: Queues})
async def list_queues(api: Api, call: Call[Nothing, ListQueues]) -> Answer:
    """Queues with work in them, or with workers."""
    tenant = api.scope(call.principal, call.query.tenant)
    now = await api.store.now()
    depths = {depth.queue: depth for depth in await api.seen_by(call.principal).depths(tenant)}
    pauses = await api.seen_by(call.principal).pauses()
    workers = [worker for worker in await api.workers(tenant) if not worker.draining]
    ended: dict[str, int] = {}
    for minute in await api.seen_by(call.principal).minutes(tenant, now - _RATE_OVER, now):
        ended[minute.queue] = ended.get(minute.queue, 0) + minute.succeeded + minute.failed + minute.cancelled
    names = (
        set(depths)
        | set(ended)
        | ({queue for w in workers for queue in w.queues} if _sees_all(call.principal) else set())
    )
    items = []
    for name in sorted(names):
        depth = depths.get(name)
        pause = paused(pauses, tenant or "", name)
        oldest = depth.oldest_due if depth is not None else None
        items.append(
            QueueOut(
                name=name,
                queued=depth.queued if depth is not None else 0,
                running=depth.running if depth is not None else 0,
                workers=sum(name in worker.queues for worker in workers),
                lag_ms=max(now - oldest, 0) / MILLISECOND if oldest is not None else 0.0,
                rate_per_s=round(ended.get(name, 0) / (_RATE_OVER / 1_000_000), 3),
                paused=pause is not None,
                pause_reason=None if pause is None else pause.why or None,
                resume_at=None if pause is None else time_of(pause.until),
            )
        )
    return Answer(200, Queues(items=items))


@queues.operation(
    "POST",
    "/v1/queues/{name}/pause",
    permission=Permission.OPERATE,
    body=PauseOf,
    body_optional=True,
    answers={200: QueueState},
)
async def pause_queue(api: Api, call: Call[PauseOf, Nothing]) -> Answer:
    """Pause a queue: nothing more of it is started; what runs goes on. With `until` it resumes by itself."""
    name = check_name("name", call.path["name"])
    api.reach(call.principal, name)
    tenant = _whose(call.principal, call.body.tenant)
    return await _pause(api, call, tenant, name)


@queues.operation(
    "POST",
    "/v1/queues/{name}/resume",
    permission=Permission.OPERATE,
    body=Whose,
    body_optional=True,
    answers={200: QueueState},
)
async def resume_queue(api: Api, call: Call[Whose, Nothing]) -> Answer:
    """Resume a queue."""
    name = check_name("name", call.path["name"])
    api.reach(call.principal, name)
    tenant = _whose(call.principal, call.body.tenant)
    await api.store.resume(tenant, name, Author(call.principal.name, tenant))
    api.wakeups.ring([queue_topic(name)])
    return Answer(200, QueueState(name=name, paused=False))


@queues.operation(
    "POST",
    "/v1/pause",
    permission=Permission.ADMINISTER_ALL,
    body=PauseIn,
    body_optional=True,
    answers={200: QueueState},
)
async def pause_everything(api: Api, call: Call[PauseIn, Nothing]) -> Answer:
    """Pause everything: no worker starts anything until this is lifted. Schedules go on, and what they make waits."""
    return await _pause(api, call, None, None)


async def _pause(api: Api, call: Call[Any, Nothing], tenant: str | None, queue: str | None) -> Answer:
    until = end_of_pause(call.body, await api.store.now())
    author = Author(call.principal.name, tenant, call.body.why)
    await api.store.pause(Pause(tenant=tenant, queue=queue, until=until), author)
    return Answer(200, QueueState(name=queue or "*", paused=True, resume_at=time_of(until)))


@queues.operation("POST", "/v1/resume", permission=Permission.ADMINISTER_ALL, answers={200: QueueState})
async def resume_everything(api: Api, call: Call[Nothing, Nothing]) -> Answer:
    """Lift the pause of everything. Queues that were paused by themselves stay so."""
    await api.store.resume(None, None, Author(call.principal.name, None))
    api.wakeups.ring([queue_topic(depth.queue) for depth in await api.store.depths(None)])
    return Answer(200, QueueState(name="*", paused=False))


@processes.operation("GET", "/v1/workers", permission=Permission.READ, answers={200: Workers})
async def list_workers(api: Api, call: Call[Nothing, Nothing]) -> Answer:
    """The workers that are alive.

    Who is bound to a tenant sees those that take its runs; of one that takes everybody's no tasks, and only queues
    where the tenant has runs or had some in the last five minutes.
    """
    found = await api.store.sessions("worker")
    tenant = call.principal.tenant
    if tenant is not None:
        found = [worker for worker in found if worker.serves in ("", tenant)]
        now, seen = await api.store.now(), api.seen_by(call.principal)
        mine = {depth.queue for depth in await seen.depths(tenant)}
        mine |= {minute.queue for minute in await seen.minutes(tenant, now - _RATE_OVER, now)}
        found = [worker if worker.serves else _shared(worker, mine) for worker in found]
    return Answer(200, Workers(items=[_worker_out(worker) for worker in found]))


@processes.operation(
    "POST", "/v1/workers/{id}/drain", permission=Permission.ADMINISTER_ALL, answers={202: Drained, 404: Problem}
)
async def drain_worker(api: Api, call: Call[Nothing, Nothing]) -> Answer:
    """Ask a worker to finish what it runs and leave."""
    worker = session_of(call.path["id"])
    if not await api.store.drain(worker, Author(call.principal.name, None)):
        raise Missing
    return Answer(202, Drained(worker_id=str(worker), draining=True))


@processes.operation("GET", "/v1/schedulers", permission=Permission.READ, answers={200: Schedulers})
async def list_schedulers(api: Api, call: Call[Nothing, Nothing]) -> Answer:
    """The schedulers that are alive, and how far they are behind."""
    lag = await api.scheduler_lag() / MILLISECOND
    items = [
        SchedulerOut(
            scheduler_id=str(item.id),
            name=item.name,
            version=item.version,
            started_at=isoformat(item.started_at),
            lease_until=isoformat(item.lease_until),
            shards=item.shards,
            datacenter=item.datacenter,
            **_clock_out(item),
        )
        for item in await api.store.sessions("scheduler")
    ]
    return Answer(200, Schedulers(items=items, lag_ms=lag))


def _shared(worker: SessionView, queues: set[str]) -> SessionView:
    """A worker of everybody, as one tenant sees it."""
    return msgspec.structs.replace(worker, tasks=(), queues=tuple(name for name in worker.queues if name in queues))


def _worker_out(worker: SessionView) -> WorkerOut:
    return WorkerOut(
        worker_id=str(worker.id),
        name=worker.name,
        version=worker.version,
        started_at=isoformat(worker.started_at),
        lease_until=time_of(worker.lease_until) or "",
        running=worker.running,
        draining=worker.draining,
        queues=worker.queues,
        tasks=worker.tasks,
        labels=labels_of(worker.labels),
        priorities=worker.priorities,
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


def _whose(principal: Principal, asked: str | None) -> str | None:
    """Whose runs are meant. Whoever is bound to a tenant cannot name another."""
    if principal.tenant is None:
        return asked
    if asked not in (None, principal.tenant):
        raise Invalid("tenant", f"{asked!r} is not yours", "leave it out")
    return principal.tenant


def _sees_all(principal: Principal) -> bool:
    return principal.tenant is None
