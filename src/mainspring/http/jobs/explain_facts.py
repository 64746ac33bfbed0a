"""Collects the facts that explain why a run waits."""

from collections.abc import Sequence

import msgspec

from mainspring.core.model.base.instant import MINUTE, SECOND, Instant, Micros
from mainspring.core.model.cluster.datacenters import find_preference, may_run
from mainspring.core.model.explain.limits import NAMED, reason_of_limit
from mainspring.core.model.explain.parents import reason_of_parents
from mainspring.core.model.explain.queues import reason_of_full_queue
from mainspring.core.model.explain.reason import Reason
from mainspring.core.model.explain.runs import PausedBy, RunSituation
from mainspring.core.model.limits.budget import author_name, lowers
from mainspring.core.model.limits.queues import NO_POLICY, QueuePolicy
from mainspring.core.model.runs.rank import IDLE
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.storage.catalog import Pause, RunFilter
from mainspring.http.context import Api

_RATE_OVER: Micros = 5 * MINUTE
_RUNNING = frozenset({RunState.RUNNING, RunState.CANCELLING})


async def collect_facts(api: Api, run: RunView) -> RunSituation:
    """Return the facts for an explanation. Only a waiting run has any."""
    store = api.store
    now = await store.now()
    if run.state is RunState.SCHEDULED:
        policy = await _read_policy(api, run.queue) if run.attempt else NO_POLICY
        return RunSituation(
            now=now,
            scheduled_by_somebody=bool(await store.sessions("scheduler")),
            policy=policy,
            obstacles=tuple(await api.workers.find_warnings(run)),
        )
    if run.state is RunState.BLOCKED and run.limiter is not None:
        state, inside = await store.limiter(run.limiter, NAMED + 1)
        return RunSituation(now=now, also=(reason_of_limit(run, state, inside, now),))
    if run.state is RunState.BLOCKED:
        behind = reason_of_parents(run, await store.parents(run.id)) if run.parents else None
        also = () if behind is None else (behind,)
        return RunSituation(now=now, key_holder=await store.find_holder(run.id), also=also)
    if run.state is not RunState.QUEUED:
        return RunSituation(now=now)
    return await _collect_queued_facts(api, run, now)


async def _collect_queued_facts(api: Api, run: RunView, now: Instant) -> RunSituation:
    serving = await api.workers.list_live(run.tenant)
    workers = [worker for worker in serving if run.queue in worker.queues and not worker.draining]
    served: dict[str, str] = {}
    if find_preference(run.policy.requires) is not None:
        served = {order.word: order.serving for order in await api.store.orders()}
    taking = [worker for worker in workers if not worker.priorities or run.priority in worker.priorities]
    others = () if taking else tuple(sorted({priority for worker in workers for priority in worker.priorities}))
    minutes = await api.store.minutes(None, now - _RATE_OVER, now)
    ended = sum(m.succeeded + m.failed + m.cancelled for m in minutes if m.queue == run.queue)
    policy = await _read_policy(api, run.queue)
    full = await _explain_full_queue(api, run, policy)
    return RunSituation(
        now=now,
        workers=len(workers),
        workers_knowing_task=sum(run.task in worker.tasks for worker in taking),
        unknown_task=bool(serving) and all(worker.tasks and run.task not in worker.tasks for worker in serving),
        other_priorities=others,
        workers_with_labels=sum(
            may_run(worker.labels, worker.datacenter, run.policy.requires, served) for worker in taking
        ),
        paused=await _find_budget_pause(api, run),
        lowered_by=await _find_lowering_budget(api, run),
        ahead=await api.store.count_ahead(run.id),
        rate=ended * SECOND / _RATE_OVER,
        at_quota=await _is_at_quota(api, run.tenant),
        policy=policy,
        also=() if full is None else (full,),
    )


async def _read_policy(api: Api, queue: str) -> QueuePolicy:
    return (await api.store.queue_policies()).get(queue, NO_POLICY)


async def _explain_full_queue(api: Api, run: RunView, policy: QueuePolicy) -> Reason | None:
    if policy.concurrency is None:
        return None
    running = RunFilter(tenant=None, states=_RUNNING, queue=run.queue)
    count = await api.store.count_runs(running, policy.concurrency)
    if count < policy.concurrency:
        return None
    # The runs of other tenants must not be shown.
    mine = msgspec.structs.replace(running, tenant=run.tenant)
    held = await api.store.seen_by(run.tenant).list_runs(mine, None, NAMED)
    return reason_of_full_queue(run, policy, count, [holder.id for holder in held.items])


async def _find_budget_pause(api: Api, run: RunView) -> PausedBy | None:
    found = find_pause(await api.store.pauses(), run.tenant, run.queue)
    if found is None or found.tenant is None:
        return found
    for status in await api.store.budgets(run.tenant):
        if status.held and status.budget.of == "tenant" and found.author == author_name(status.budget.name):
            return msgspec.structs.replace(found, budget=status.budget.name)
    return found


async def _find_lowering_budget(api: Api, run: RunView) -> str | None:
    if run.priority != IDLE:
        return None
    over = [status for status in await api.store.budgets(run.tenant) if status.state == "over"]
    job = None
    if run.job_id is not None and any(status.budget.of == "job" for status in over):
        [job] = await api.store.jobs([run.job_id])
    name = None if job is None else job.spec.name
    return next((status.budget.name for status in over if lowers(status, run.tenant, run.task, name)), None)


async def _is_at_quota(api: Api, tenant: str) -> bool:
    most = (await api.admission.read_quotas(tenant)).running
    if most is None:
        return False
    return await api.store.count_runs(RunFilter(tenant=tenant, states=_RUNNING), most) >= most


def find_pause(pauses: Sequence[Pause], tenant: str, queue: str) -> PausedBy | None:
    """Return the pause that keeps runs of this tenant and queue from being claimed, or None."""
    for pause in pauses:
        if pause.tenant in (None, tenant) and pause.queue in (None, queue):
            return PausedBy(
                tenant=pause.tenant, queue=pause.queue, author=pause.author, why=pause.why, until=pause.until
            )
    return None
