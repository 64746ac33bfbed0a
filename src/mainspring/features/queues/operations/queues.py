"""HTTP operations on queues: list, pause and resume them."""

from typing import Any

from mainspring.core.maintenance.queue_depth import RATE_OVER, QueueDepth, judge_depth
from mainspring.core.model.access.access import Permission, Principal
from mainspring.core.model.base.instant import MILLISECOND
from mainspring.core.model.limits.queues import NO_POLICY
from mainspring.core.model.runs.names import check_name
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import Pause
from mainspring.core.ports.wakeups import queue_topic
from mainspring.http.context import Api
from mainspring.http.jobs.explain_facts import find_pause
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.schemas.common import Name, PauseIn, Request, Wire, end_of_pause, format_time
from mainspring.http.schemas.queues import QueueOut

queues = Resource("Queues", "Named queues that workers subscribe to.")


class ListQueuesQuery(Request):
    tenant: Name | None = None


class Queues(Wire):
    items: list[QueueOut]
    everything_paused: bool = False
    """Whether all queues are paused, so that no worker starts a run."""


class PauseQueueIn(PauseIn):
    tenant: Name | None = None
    """Pause only runs of this tenant. Default: every tenant that you have access to."""


class QueueTenantIn(Request):
    tenant: Name | None = None


class QueueState(Wire):
    name: str
    paused: bool
    resume_at: str | None = None


@queues.operation("GET", "/v1/queues", permission=Permission.READ, query=ListQueuesQuery, answers={200: Queues})
async def list_queues(api: Api, call: Call[Empty, ListQueuesQuery]) -> Answer:
    """List queues that have runs or workers.

    Each queue has its depth, its lag, its rate and its pause.
    """
    tenant = api.choose_listed(call.principal, call.query.tenant)
    now = await api.store.now()
    pauses = await api.seen_by(call.principal).pauses()
    policies = await api.store.queue_policies()
    workers = [worker for worker in await api.workers.list_live(tenant) if not worker.draining]
    depths = {depth.queue: judge_depth(depth, workers) for depth in await api.seen_by(call.principal).depths(tenant)}
    ended: dict[str, int] = {}
    for minute in await api.seen_by(call.principal).minutes(tenant, now - RATE_OVER, now):
        ended[minute.queue] = ended.get(minute.queue, 0) + minute.succeeded + minute.failed + minute.cancelled
    names = (
        set(depths)
        | set(ended)
        | ({queue for w in workers for queue in w.queues} if _is_unrestricted(call.principal) else set())
    )
    items = []
    for name in sorted(names):
        depth = depths.get(name, QueueDepth(queue=name))
        pause = find_pause(pauses, tenant or "", name)
        policy = policies.get(name, NO_POLICY)
        items.append(
            QueueOut(
                name=name,
                queued=depth.queued,
                stranded=dict(depth.stranded),
                running=depth.running,
                workers=sum(name in worker.queues for worker in workers),
                lag_ms=0.0 if depth.oldest_due is None else max(now - depth.oldest_due, 0) / MILLISECOND,
                rate_per_s=round(ended.get(name, 0) / (RATE_OVER / 1_000_000), 3),
                paused=pause is not None,
                pause_reason=None if pause is None else pause.why or None,
                resume_at=None if pause is None else format_time(pause.until),
                concurrency=policy.concurrency,
                fair=policy.fair,
            )
        )
    everything_paused = any(pause.tenant is None and pause.queue is None for pause in pauses)
    return Answer(200, Queues(items=items, everything_paused=everything_paused))


@queues.operation(
    "POST",
    "/v1/queues/{name}/pause",
    permission=Permission.OPERATE,
    body=PauseQueueIn,
    body_optional=True,
    answers={200: QueueState},
)
async def pause_queue(api: Api, call: Call[PauseQueueIn, Empty]) -> Answer:
    """Pause a queue.

    Workers start no more runs of it; active runs continue. With `until` the queue resumes at that time. A key that
    is bound to a tenant pauses only the runs of that tenant.
    """
    name = check_name("name", call.path["name"])
    api.admission.check_queue(call.principal, name)
    tenant = await api.choose_written(call.principal, call.body.tenant)
    return await _pause(api, call, tenant, name)


@queues.operation(
    "POST",
    "/v1/queues/{name}/resume",
    permission=Permission.OPERATE,
    body=QueueTenantIn,
    body_optional=True,
    answers={200: QueueState},
)
async def resume_queue(api: Api, call: Call[QueueTenantIn, Empty]) -> Answer:
    """Resume a queue.

    Waiting runs start at once. The request also succeeds if the queue is not paused. A pause of everything stays in
    force.
    """
    name = check_name("name", call.path["name"])
    api.admission.check_queue(call.principal, name)
    tenant = await api.choose_written(call.principal, call.body.tenant)
    await api.store.resume(tenant, name, Author(call.principal.name, tenant))
    api.wakeups.notify([queue_topic(name)])
    return Answer(200, QueueState(name=name, paused=False))


@queues.operation(
    "POST",
    "/v1/pause",
    permission=Permission.ADMINISTER_ALL,
    body=PauseIn,
    body_optional=True,
    answers={200: QueueState},
)
async def pause_everything(api: Api, call: Call[PauseIn, Empty]) -> Answer:
    """Pause all queues.

    No worker starts a run until the pause is lifted or `until` has passed. Schedules continue, and their runs wait.
    """
    return await _pause(api, call, None, None)


async def _pause(api: Api, call: Call[Any, Empty], tenant: str | None, queue: str | None) -> Answer:
    until = end_of_pause(call.body, await api.store.now())
    author = Author(call.principal.name, tenant, call.body.why)
    await api.store.pause(Pause(tenant=tenant, queue=queue, until=until), author)
    return Answer(200, QueueState(name=queue or "*", paused=True, resume_at=format_time(until)))


@queues.operation("POST", "/v1/resume", permission=Permission.ADMINISTER_ALL, answers={200: QueueState})
async def resume_everything(api: Api, call: Call[Empty, Empty]) -> Answer:
    """Lift the pause of all queues.

    Queues that were paused one by one stay paused.
    """
    await api.store.resume(None, None, Author(call.principal.name, None))
    api.wakeups.notify([queue_topic(depth.queue) for depth in await api.store.depths(None)])
    return Answer(200, QueueState(name="*", paused=False))


def _is_unrestricted(principal: Principal) -> bool:
    return principal.tenant is None
