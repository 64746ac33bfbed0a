"""Operation that runs a task once on every live worker."""

from msgspec import UNSET

from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import RunId
from mainspring.features.broadcasts.service import build_copies
from mainspring.http.context import Api
from mainspring.http.jobs.reading import apply_defaults, build_run, explain_past_time
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.schemas.common import Wire, parse_given_id
from mainspring.http.schemas.jobs import BroadcastIn, is_recurring

broadcasts = Resource("Broadcasts", "Run a task once on every live worker that knows it.")


class BroadcastRun(Wire):
    run_id: str
    worker_id: str


class BroadcastOut(Wire, omit_defaults=False):
    runs: list[BroadcastRun]


@broadcasts.operation(
    "POST", "/v1/broadcasts", permission=Permission.SUBMIT, body=BroadcastIn, answers={201: BroadcastOut}
)
async def broadcast(api: Api, call: Call[BroadcastIn, Empty]) -> Answer:
    """Run a task once on every live worker that knows it.

    `requires` limits it to workers with these labels. Each run, with its retries, is bound to its worker; if the
    worker leaves before the run is done, the run is skipped. A request with the same `broadcastId` creates no
    second run on any worker.
    """
    fields = call.body
    tenant = await api.choose_owner(call.principal, fields.tenant)
    if is_recurring(fields):
        raise Invalid("scheduleType", "a broadcast has no schedule", "leave out cronExpression and every")
    given = fields.broadcast_id
    if given is UNSET:
        run_id = api.jobs.new_run_id(tenant=tenant)
    else:
        run_id = api.jobs.placed(RunId(parse_given_id(given, "broadcastId")), tenant)
    run = build_run(fields, run_id, tenant, call.principal.name)
    run = apply_defaults(run, fields, await api.catalog.find(run.task))
    past = explain_past_time(run, api.clock.now())
    if past is not None:
        raise past
    copies = build_copies(run, await api.store.sessions("worker"))
    await api.admission.check(call.principal, tenant, run.queue, run.task, run.payload)
    for queue in {copy.queue for copy in copies}:
        api.admission.check_queue(call.principal, queue)
    admitted = await api.admission.admit_runs(tenant, len(copies))
    if admitted.count < len(copies) and admitted.reason is not None:
        # A broadcast runs on all workers or on none.
        raise admitted.reason
    await api.jobs.submit_many(copies)
    return Answer(201, BroadcastOut(runs=[BroadcastRun(run_id=copy.id, worker_id=str(copy.target)) for copy in copies]))
