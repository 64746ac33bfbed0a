"""Workers in any language: register, claim, heartbeat, report. Every report carries the fence of its claim."""

from random import Random
from typing import Annotated

import msgspec
from msgspec import Meta

from mainspring.api.context import Api
from mainspring.api.operation import LONGEST, Answer, Call, Nothing, Resource
from mainspring.api.problems import Missing, Problem
from mainspring.api.schemas.common import Id, Name, Request, Text, Wire, known_id, session_of
from mainspring.domain.access import Permission, Principal
from mainspring.domain.errors import Conflict, Fenced, Invalid
from mainspring.domain.ids import RunId
from mainspring.domain.instant import MILLISECOND, SECOND, isoformat
from mainspring.domain.run import (
    MAX_ERROR,
    MAX_RESULT,
    HeldRun,
    Outcome,
    RunState,
    Settlement,
    Verdict,
    settle_cancel,
    settle_failure,
    settle_release,
    settle_success,
)
from mainspring.ports.catalog import LogReport, ProgressReport, SessionView
from mainspring.ports.store import NewSession, Want
from mainspring.ports.wakeups import queue_topic

remote = Resource("Remote workers", "The protocol of a worker in any language. `curl` is enough.")

_LONGEST_POLL = 30
_SHORTEST_LEASE, _LONGEST_LEASE = 5, 300
#: Between two looks of a long poll, if nobody rings.
_LOOK_EVERY = 500 * MILLISECOND
#: Claims are numbered by the time since 1970 in these units: they grow, and fit for a century.
_CLAIM_UNIT = 10 * MILLISECOND

Fence = Annotated[int, Meta(ge=1, le=2**62)]


class Register(Request):
    name: Name
    queues: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=100)]
    tasks: Annotated[tuple[Name, ...], Meta(max_length=1_000)] = ()
    version: Text = ""
    lease_seconds: Annotated[int, Meta(ge=_SHORTEST_LEASE, le=_LONGEST_LEASE)] = 30
    """How long the worker may be silent before its runs are given to others."""


class Registered(Wire):
    worker_id: str
    lease_seconds: int
    heartbeat_seconds: float
    """Send a heartbeat this often while anything runs."""


class Claim(Request):
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 1
    wait_seconds: Annotated[float, Meta(ge=0, le=_LONGEST_POLL)] = 0
    """Wait this long for work to come."""
    queues: Annotated[tuple[Name, ...], Meta(max_length=100)] | None = None
    """Only these of the worker's."""


class Claimed(Wire):
    """A run that is yours until your lease ends."""

    run_id: str
    fence: int
    task: str
    queue: str
    tenant: str
    attempt_number: int
    scheduled_for: str
    stop_by: str
    """When the attempt has timed out."""
    payload: msgspec.Raw
    job_id: str | None = None
    cancel_requested: bool = False


class ClaimedRuns(Wire):
    claim: int
    runs: list[Claimed]


class HeartbeatIn(Request):
    held: Annotated[tuple[Id, ...], Meta(max_length=10_000)] | None = None
    """The runs the worker knows. With `claim`, the newest it has had an answer to: others are given back."""
    claim: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None


class HeartbeatOut(Wire):
    alive: bool
    """False: the lease was lost. Stop everything and register anew."""
    cancel: list[str]
    """Runs to stop; report them as cancelled."""
    returned: int = 0
    draining: bool = False
    """Finish what runs, claim nothing more, and leave."""


class CompleteIn(Request):
    fence: Fence
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class FailIn(Request):
    fence: Fence
    error: Annotated[str, Meta(max_length=MAX_ERROR)]
    retry: bool = True
    """False: do not try again, whatever the policy says."""


class FenceIn(Request):
    fence: Fence


class ProgressIn(Request):
    fence: Fence
    done: Annotated[float, Meta(ge=0, le=1e15)]
    total: Annotated[float, Meta(gt=0, le=1e15)] | None = None
    note: Text = ""


class LogIn(Request):
    fence: Fence
    text: Annotated[str, Meta(max_length=65_536)]


class Reported(Wire):
    run_id: str
    verdict: str


_jitter = Random()


@remote.operation("POST", "/v1/workers/register", permission=Permission.WORK, body=Register, answers={201: Registered})
async def register(api: Api, call: Call[Register, Nothing]) -> Answer:
    """Introduce a worker."""
    body = call.body
    allowed = call.principal.queues
    if allowed and not set(body.queues) <= allowed:
        raise Invalid("queues", "this key does not reach all of them", ", ".join(sorted(allowed)))
    session = await api.store.open_session(
        NewSession(
            name=body.name,
            kind="worker",
            ttl=body.lease_seconds * SECOND,
            version=body.version,
            queues=body.queues,
            tasks=body.tasks,
            owner=call.principal.name,
        )
    )
    out = Registered(
        worker_id=str(session), lease_seconds=body.lease_seconds, heartbeat_seconds=round(body.lease_seconds / 3, 1)
    )
    return Answer(201, out)


@remote.operation(
    "POST",
    "/v1/workers/{id}/claim",
    permission=Permission.WORK,
    body=Claim,
    body_optional=True,
    within=_LONGEST_POLL + LONGEST,
    answers={200: ClaimedRuns, 404: Problem, 409: Problem},
)
async def claim(api: Api, call: Call[Claim, Nothing]) -> Answer:
    """Take runs, at most so many; waits for some if asked to.

    Claiming also renews the lease.
    """
    worker = await _worker(api, call.principal, call.path["id"])
    queues = worker.queues if call.body.queues is None else call.body.queues
    if not set(queues) <= set(worker.queues):
        raise Invalid("queues", "the worker did not register for all of them", ", ".join(worker.queues))
    lease = worker.lease
    give_up = api.clock.monotonic() + round(call.body.wait_seconds * SECOND)
    api.polls.take()
    bell = api.wakeups.listen([queue_topic(queue) for queue in queues])
    try:
        while True:
            if not (await api.store.beat(worker.id, lease, (), (), -1)).alive:
                raise Conflict("the lease of this worker was lost; register anew")
            number = api.clock.now() // _CLAIM_UNIT % 2**31
            runs: list[HeldRun] = []
            for queue in queues:
                # One queue after the other, in the order they were named: the limit is for all of them.
                if (room := call.body.limit - len(runs)) > 0:
                    want = Want(queue, room, call.principal.tenant)
                    runs += await api.store.claim(worker.id, number, [want])
            left = give_up - api.clock.monotonic()
            if runs or left <= 0 or api.leaving:
                return Answer(200, ClaimedRuns(claim=number, runs=[_claimed(run) for run in runs]))
            await bell.wait(min(left, _LOOK_EVERY))
    finally:
        bell.close()
        api.polls.give_back()


@remote.operation(
    "POST",
    "/v1/workers/{id}/heartbeat",
    permission=Permission.WORK,
    body=HeartbeatIn,
    body_optional=True,
    answers={200: HeartbeatOut, 404: Problem},
)
async def heartbeat(api: Api, call: Call[HeartbeatIn, Nothing]) -> Answer:
    """Stay alive, and hear which runs should stop."""
    worker = await _worker(api, call.principal, call.path["id"])
    held = [RunId(known_id(run)) for run in call.body.held or ()]
    last = call.body.claim if call.body.held is not None and call.body.claim is not None else -1
    beat = await api.store.beat(worker.id, worker.lease, held, (), last)
    out = HeartbeatOut(alive=beat.alive, cancel=list(beat.cancels), returned=beat.returned, draining=beat.draining)
    return Answer(200, out)


@remote.operation(
    "POST", "/v1/workers/{id}/leave", permission=Permission.WORK, answers={200: HeartbeatOut, 404: Problem}
)
async def leave(api: Api, call: Call[Nothing, Nothing]) -> Answer:
    """Say goodbye. What the worker still holds is given to others."""
    worker = await _worker(api, call.principal, call.path["id"])
    await api.store.close_session(worker.id)
    return Answer(200, HeartbeatOut(alive=False, cancel=[]))


@remote.operation(
    "POST",
    "/v1/runs/{id}/complete",
    permission=Permission.WORK,
    body=CompleteIn,
    answers={200: Reported, 404: Problem, 409: Problem},
)
async def complete(api: Api, call: Call[CompleteIn, Nothing]) -> Answer:
    """Report success, with a result of up to 64 KiB. Safe to repeat."""
    result = None if call.body.result is msgspec.UNSET else bytes(call.body.result)
    if result is not None and len(result) > MAX_RESULT:
        raise Invalid("result", f"is {len(result)} bytes", f"at most {MAX_RESULT}")
    held = await _held(api, call.principal, call.path["id"], call.body.fence)
    return await _settle(
        api, call.path["id"], call.body.fence, held, None if held is None else settle_success(held, result)
    )


@remote.operation(
    "POST",
    "/v1/runs/{id}/fail",
    permission=Permission.WORK,
    body=FailIn,
    answers={200: Reported, 404: Problem, 409: Problem},
)
async def fail(api: Api, call: Call[FailIn, Nothing]) -> Answer:
    """Report a failure. It is tried again as its policy says. Safe to repeat."""
    held = await _held(api, call.principal, call.path["id"], call.body.fence)
    settlement = None
    if held is not None:
        if not call.body.retry:
            once = msgspec.structs.replace(held.policy.retry, max_retries=0)
            held = msgspec.structs.replace(held, policy=msgspec.structs.replace(held.policy, retry=once))
        settlement = settle_failure(held, call.body.error, _jitter, now=await api.store.now())
    return await _settle(api, call.path["id"], call.body.fence, held, settlement)


@remote.operation(
    "POST",
    "/v1/runs/{id}/cancelled",
    permission=Permission.WORK,
    body=FenceIn,
    answers={200: Reported, 404: Problem, 409: Problem},
)
async def cancelled(api: Api, call: Call[FenceIn, Nothing]) -> Answer:
    """Report that a run has stopped because it was asked to."""
    held = await _held(api, call.principal, call.path["id"], call.body.fence)
    if held is not None and not held.cancel_requested:
        raise Conflict("nobody asked this run to stop; report a failure, or give it back")
    return await _settle(api, call.path["id"], call.body.fence, held, None if held is None else settle_cancel(held))


@remote.operation(
    "POST",
    "/v1/runs/{id}/release",
    permission=Permission.WORK,
    body=FenceIn,
    answers={200: Reported, 404: Problem, 409: Problem},
)
async def release(api: Api, call: Call[FenceIn, Nothing]) -> Answer:
    """Give a run back unharmed; the attempt is not charged."""
    held = await _held(api, call.principal, call.path["id"], call.body.fence)
    return await _settle(
        api, call.path["id"], call.body.fence, held, None if held is None else settle_release(held, "given back")
    )


@remote.operation(
    "POST",
    "/v1/runs/{id}/progress",
    permission=Permission.WORK,
    body=ProgressIn,
    answers={200: Reported, 404: Problem, 409: Problem},
)
async def progress(api: Api, call: Call[ProgressIn, Nothing]) -> Answer:
    """Say how far a run is."""
    body = call.body
    run = RunId(known_id(call.path["id"]))
    await _held(api, call.principal, run, body.fence)
    report = ProgressReport(run=run, fence=body.fence, done=body.done, total=body.total, note=body.note)
    return _reported(run, (await api.store.report_progress([report]))[0])


@remote.operation(
    "POST",
    "/v1/runs/{id}/log",
    permission=Permission.WORK,
    body=LogIn,
    answers={200: Reported, 404: Problem, 409: Problem},
)
async def log(api: Api, call: Call[LogIn, Nothing]) -> Answer:
    """Add to what a run has printed."""
    run = RunId(known_id(call.path["id"]))
    await _held(api, call.principal, run, call.body.fence)
    text = call.body.text.replace("\x00", "�")
    pieces = [text[at : at + 16_384] for at in range(0, len(text), 16_384)] or [""]
    reports = [LogReport(run=run, fence=call.body.fence, text=piece) for piece in pieces]
    return _reported(run, all(await api.store.append_log(reports)))


async def _worker(api: Api, principal: Principal, text: str) -> SessionView:
    """The session of the caller. Somebody else's is not there."""
    worker = await api.session(session_of(text))
    if worker is None or worker.owner != principal.name:
        raise Missing
    return worker


async def _held(api: Api, principal: Principal, text: str, fence: int) -> HeldRun | None:
    """The run if the caller's fence is the running one; none if it is not; missing if it is not theirs to know of."""
    run = RunId(known_id(text))
    held = (await api.store.held([run]))[0]
    if held is None:
        seen = (await api.store.runs([run]))[0]
        if seen is None or principal.tenant not in (None, seen.tenant):
            raise Missing
        return None
    if principal.tenant not in (None, held.tenant):
        raise Missing
    return held if held.fence == fence else None


async def _settle(api: Api, run: str, fence: int, held: HeldRun | None, settlement: Settlement | None) -> Answer:
    if settlement is None:
        # Nothing runs under this fence. Only the store can tell a repeat from an impostor.
        settlement = Settlement(
            run=RunId(run), fence=fence, outcome=Outcome.SUCCESS, state=RunState.SUCCEEDED, lets_go=True
        )
    verdict = (await api.store.settle([settlement]))[0]
    if held is not None:
        # Somebody may have waited for its key, or it goes back.
        api.wakeups.ring([queue_topic(held.queue)])
    if verdict is Verdict.FENCED:
        raise Fenced("this fence is not the running one")
    return Answer(200, Reported(run_id=run, verdict=verdict.value))


def _reported(run: str, accepted: bool) -> Answer:
    if not accepted:
        raise Fenced("this fence is not the running one")
    return Answer(200, Reported(run_id=run, verdict=Verdict.APPLIED.value))


def _claimed(run: HeldRun) -> Claimed:
    return Claimed(
        run_id=run.id,
        fence=run.fence,
        task=run.task,
        queue=run.queue,
        tenant=run.tenant,
        attempt_number=run.attempt,
        scheduled_for=isoformat(run.due),
        stop_by=isoformat(run.attempt_until),
        payload=msgspec.Raw(run.payload),
        job_id=run.job_id,
        cancel_requested=run.cancel_requested,
    )
