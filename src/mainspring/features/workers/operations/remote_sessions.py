"""HTTP operations on the sessions of workers in any language: register, heartbeat, leave."""

from typing import Annotated

from msgspec import Meta

from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import SECOND
from mainspring.core.model.cluster.datacenters import at_home
from mainspring.core.model.cluster.labels import MAX_PART, label_words
from mainspring.core.model.runs.names import check_queue
from mainspring.core.store import NewSession
from mainspring.features.workers.operations.remote_access import find_worker
from mainspring.http.context import Api
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.problems import Problem
from mainspring.http.schemas.common import Id, Labels, Name, Request, Text, Wire, parse_id

remote_sessions = Resource("Remote workers")

_MIN_LEASE, _MAX_LEASE = 5, 300
#: Claims are numbered up to this.
_MAX_CLAIM = 2**31 - 1


class RegisterIn(Request):
    name: Name
    queues: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=100)]
    tasks: Annotated[tuple[Name, ...], Meta(max_length=1_000)] = ()
    labels: Labels = {}
    """A worker may get runs that require some of these labels, such as `{"gpu": "a100"}`."""
    datacenter: Annotated[str, Meta(max_length=MAX_PART)] = ""
    """Where the worker is, such as `eu-west`. It may get runs for that data center."""
    version: Text = ""
    slots: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    """How many runs the worker can execute at a time. For display only: it gets as many runs as it claims."""
    lease_seconds: Annotated[int, Meta(ge=_MIN_LEASE, le=_MAX_LEASE)] = 30
    """How long the worker may be silent before its runs are given to other workers."""


class RegisterOut(Wire):
    worker_id: str
    lease_seconds: int
    heartbeat_seconds: float
    """Send a heartbeat this often while anything runs."""


class HeartbeatIn(Request):
    held: Annotated[tuple[Id, ...], Meta(max_length=10_000)]
    """The runs that the worker has. Other runs that it claimed before `claim` are given to other workers, because the
    answer to that claim was lost."""
    claim: Annotated[int, Meta(ge=0, le=_MAX_CLAIM)]
    """The newest claim that was answered, or 0 before the first. Send one claim at a time, so others are older."""


class HeartbeatOut(Wire):
    alive: bool
    """False: the lease was lost. Stop all runs and register again."""
    cancel: list[str]
    """Runs to stop. Report them as cancelled."""
    returned: int = 0
    draining: bool = False
    """Finish the active runs, claim nothing more, and leave."""


@remote_sessions.operation(
    "POST",
    "/v1/workers/register",
    permission=Permission.WORK,
    body=RegisterIn,
    answers={201: RegisterOut},
    example={"name": "mailer", "queues": ["mail"], "tasks": ["send_welcome"], "leaseSeconds": 30},
)
async def register(api: Api, call: Call[RegisterIn, Empty]) -> Answer:
    """Register a worker.

    Needs a name and the queues that it serves. Returns the `workerId` for later requests and the interval of its
    heartbeats. The worker loses its runs if no claim or heartbeat arrives within `leaseSeconds`. 400: your key does
    not reach one of the queues.
    """
    body = call.body
    for queue in body.queues:
        check_queue("queues", queue)
    allowed = call.principal.queues
    if allowed and not set(body.queues) <= allowed:
        raise Invalid("queues", "this key does not have access to all of them", ", ".join(sorted(allowed)))
    labels, datacenter = at_home(label_words("labels", body.labels), body.datacenter)
    session = await api.store.open_session(
        NewSession(
            name=body.name,
            kind="worker",
            ttl=body.lease_seconds * SECOND,
            version=body.version,
            queues=body.queues,
            tasks=body.tasks,
            labels=labels,
            datacenter=datacenter,
            slots=body.slots,
            owner=call.principal.name,
            serves=call.principal.tenant or "",
        )
    )
    api.workers.forget()
    out = RegisterOut(
        worker_id=str(session), lease_seconds=body.lease_seconds, heartbeat_seconds=round(body.lease_seconds / 3, 1)
    )
    return Answer(201, out)


@remote_sessions.operation(
    "POST",
    "/v1/workers/{id}/heartbeat",
    permission=Permission.WORK,
    body=HeartbeatIn,
    answers={200: HeartbeatOut, 404: Problem},
    example={"held": ["019a8c4b6f2c70008042b1c2d3e4f506"], "claim": 17},
)
async def heartbeat(api: Api, call: Call[HeartbeatIn, Empty]) -> Answer:
    """Renew the lease of a worker.

    Send the runs that it holds and the number of its newest claim. Returns the runs that it should cancel, and
    whether it should drain. If `alive` is false, the lease expired: stop all runs and register again.
    """
    worker = await find_worker(api, call.principal, call.path["id"])
    held = [RunId(parse_id(run)) for run in call.body.held]
    # Pass the number before the acknowledged claim. Runs of that claim arrived with its answer, and a claim still under
    # way may have the same number.
    heartbeat = await api.store.heartbeat(worker.id, worker.lease, held, (), call.body.claim - 1)
    out = HeartbeatOut(
        alive=heartbeat.alive, cancel=list(heartbeat.cancels), returned=heartbeat.returned, draining=heartbeat.draining
    )
    return Answer(200, out)


@remote_sessions.operation(
    "POST", "/v1/workers/{id}/leave", permission=Permission.WORK, answers={200: HeartbeatOut, 404: Problem}
)
async def leave(api: Api, call: Call[Empty, Empty]) -> Answer:
    """Unregister a worker.

    Its remaining runs are requeued for other workers.
    """
    worker = await find_worker(api, call.principal, call.path["id"])
    await api.store.close_session(worker.id)
    return Answer(200, HeartbeatOut(alive=False, cancel=[]))
