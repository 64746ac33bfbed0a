"""HTTP operations for workers in any language: register, claim, heartbeat, report. Every report carries the fence of
its claim."""

import asyncio
from contextlib import nullcontext
from random import Random
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from mainspring.core.model.access.access import Permission, Principal
from mainspring.core.model.base.errors import Conflict, Fenced, Invalid
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Instant, isoformat
from mainspring.core.model.cluster.datacenters import at_home
from mainspring.core.model.cluster.labels import MAX_PART, label_words
from mainspring.core.model.runs.cause import MOST_KINDS, Cause
from mainspring.core.model.runs.completion import (
    Completion,
    CompletionAnswer,
    complete_cancel,
    complete_failure,
    complete_release,
    complete_success,
)
from mainspring.core.model.runs.names import MAX_ERROR, MAX_NAME, MAX_RESULT, check_queue
from mainspring.core.model.runs.retry import LONGEST_DELAY
from mainspring.core.model.runs.run import UNKNOWN_TASK_DELAY, HeldRun, Outcome, RunState
from mainspring.core.model.runs.usage import MOST_AMOUNT, MOST_UNITS, Spent, check_units
from mainspring.core.ports.storage.catalog import LogReport, ProgressReport, SessionView
from mainspring.core.ports.wakeups import queue_topic
from mainspring.core.store import Demand, NewSession
from mainspring.http.context import Api
from mainspring.http.operation import LONGEST, Answer, Call, Nothing, Resource
from mainspring.http.problems import Missing, Problem
from mainspring.http.schemas.common import Id, Labels, Name, Request, Span, Text, Wire, known_id, micros_of, session_of

remote = Resource(
    "Remote workers", "The protocol of a worker in any language: register, claim, heartbeat, report. `curl` is enough."
)

_LONGEST_POLL = 30
_SHORTEST_LEASE, _LONGEST_LEASE = 5, 300
#: Interval between claim attempts of the requests that wait for the same queues, if no notification arrives.
_LOOK_EVERY = SECOND
#: At most this many waiting requests share the polling. With more, they would not renew their leases in time.
_LOOK_TOGETHER = 5
_GATHER = 5 * MILLISECOND
#: The longest interval between lease renewals by a waiting claim.
_RENEW_EVERY = 5 * SECOND
#: Unit of claim numbers: a number is the age of the worker's session by the store's clock. They last for eight months.
_CLAIM_UNIT = 10 * MILLISECOND
_LAST_CLAIM = 2**31 - 1

Fence = Annotated[int, Meta(ge=1, le=2**62)]
ErrorKinds = Annotated[tuple[Annotated[str, Meta(max_length=MAX_NAME)], ...], Meta(max_length=MOST_KINDS)]


class Register(Request):
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
    lease_seconds: Annotated[int, Meta(ge=_SHORTEST_LEASE, le=_LONGEST_LEASE)] = 30
    """How long the worker may be silent before its runs are given to other workers."""


class Registered(Wire):
    worker_id: str
    lease_seconds: int
    heartbeat_seconds: float
    """Send a heartbeat this often while anything runs."""


class Claim(Request):
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 1
    wait_seconds: Annotated[float, Meta(ge=0, le=_LONGEST_POLL)] = 0
    """Wait this long for a run to become available."""
    queues: Annotated[tuple[Name, ...], Meta(max_length=100)] | None = None
    """Claim only from these of the worker's queues."""


class Claimed(Wire):
    """A run that is yours until your lease ends."""

    run_id: str
    fence: int
    task: str
    queue: str
    tenant: str
    attempt_number: int
    scheduled_for: str
    """When the run was due. The due time of a retry is later than that of the first attempt."""
    stop_by: str
    """When the attempt times out."""
    payload: msgspec.Raw
    job_id: str | None = None
    tick: str | None = None
    """For a recurring job: the tick of its schedule that this run stands for. It is the same for every attempt."""
    cancel_requested: bool = False
    weight: int = 1
    """How many slots of a worker the run takes."""
    traceparent: str | None = None
    """For a traced run: the trace context that is the parent of the attempt's span."""


class ClaimedRuns(Wire):
    claim: int
    """Send this number in your next heartbeat."""
    runs: list[Claimed]
    draining: bool = False
    """Finish the active runs, claim nothing more, and leave."""


class HeartbeatIn(Request):
    held: Annotated[tuple[Id, ...], Meta(max_length=10_000)]
    """The runs that the worker has. Other runs that it claimed before `claim` are given to other workers, because the
    answer to that claim was lost."""
    claim: Annotated[int, Meta(ge=0, le=_LAST_CLAIM)]
    """The newest claim that was answered, or 0 before the first. Send one claim at a time, so others are older."""


class HeartbeatOut(Wire):
    alive: bool
    """False: the lease was lost. Stop all runs and register again."""
    cancel: list[str]
    """Runs to stop. Report them as cancelled."""
    returned: int = 0
    draining: bool = False
    """Finish the active runs, claim nothing more, and leave."""


Units: TypeAlias = Annotated[
    dict[str, Annotated[float, Meta(ge=0, le=MOST_AMOUNT)]],
    Meta(max_length=MOST_UNITS, description="What it used of units of your own.", examples=[{"tokens": 1200}]),
]
CpuSeconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e9, description="The CPU it used.")]


class CompleteIn(Request):
    fence: Fence
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    cpu_seconds: CpuSeconds | None = None
    units: Units = {}


class FailIn(Request):
    fence: Fence
    error: Annotated[str, Meta(max_length=MAX_ERROR)]
    retry: bool = True
    """False: do not retry, even if the policy allows it."""
    retry_after: Span | None = None
    """Retry after this delay, if any retries are left."""
    error_kinds: ErrorKinds = ()
    """The types of the error, most specific first, for `neverOn` and `retryOn`: `["smtp.Refused", "IOError"]`."""
    cpu_seconds: CpuSeconds | None = None
    units: Units = {}


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
    answer: str


_jitter = Random()


@remote.operation(
    "POST",
    "/v1/workers/register",
    permission=Permission.WORK,
    body=Register,
    answers={201: Registered},
    example={"name": "mailer", "queues": ["mail"], "tasks": ["send_welcome"], "leaseSeconds": 30},
)
async def register(api: Api, call: Call[Register, Nothing]) -> Answer:
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
        raise Invalid("queues", "this key does not reach all of them", ", ".join(sorted(allowed)))
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
    api.worker_came()
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
    example={"limit": 10, "waitSeconds": 0},
)
async def claim(api: Api, call: Call[Claim, Nothing]) -> Answer:
    """Claim runs.

    Returns up to `limit` runs, each with the fence that every report about it needs. With `waitSeconds` the request
    waits until a run is available. A claim also renews the lease. 409: the lease expired; register again.
    """
    worker = await _worker(api, call.principal, call.path["id"])
    queues = worker.queues if call.body.queues is None else call.body.queues
    if not set(queues) <= set(worker.queues):
        raise Invalid("queues", "the worker did not register for all of them", ", ".join(worker.queues))
    give_up = api.clock.monotonic() + round(call.body.wait_seconds * SECOND)
    api.polls.take(call.principal)
    wakeup = api.wakeups.listen([queue_topic(queue) for queue in queues])
    gone = asyncio.ensure_future(call.left())
    gone.add_done_callback(lambda _: wakeup.notify())
    line = api.lines.of(queues, worker.labels, call.principal.tenant)
    line.length += 1
    try:
        heartbeat, renewed_at, notified_at, waited, woken = None, 0, api.clock.monotonic(), False, True
        while True:
            now = api.clock.monotonic()
            if heartbeat is None or now - renewed_at >= min(worker.lease // 3, _RENEW_EVERY):
                heartbeat, renewed_at = await api.leases.add((worker.id, worker.lease)), now
                if not heartbeat.alive:
                    raise Conflict("the lease of this worker was lost; register anew")
            age = heartbeat.now + now - renewed_at - worker.started_at
            number = min(max(age, 0) // _CLAIM_UNIT + 1, _LAST_CLAIM)
            runs: list[HeldRun] = []
            # A new request claims at once. Waiting requests take turns.
            async with line.turn if waited else nullcontext():
                if waited and api.clock.monotonic() - line.empty_at < _GATHER:
                    # Let all requests that got the same notification queue up before one of them claims again.
                    await api.clock.sleep(_GATHER)
                # If a request for the same queues found nothing since the notification, nothing is there.
                if not heartbeat.draining and not gone.done() and line.empty_at < notified_at:
                    looked_at = api.clock.monotonic()
                    if waited:
                        # A key that was revoked in the meantime gets no more runs.
                        await api.auth.principal(call.headers)
                    for queue in queues:
                        # Claim queue by queue, in the order given: the limit applies to all of them together.
                        if (room := call.body.limit - len(runs)) > 0:
                            demand = Demand(queue, room, call.principal.tenant)
                            runs += await api.store.claim(worker.id, number, [demand])
                    if not runs:
                        line.empty_at = looked_at
                    runs = await _leave_unknown(api, worker, runs)
            if gone.done():
                # The client disconnected, so nothing can execute these runs.
                await _give_back(api, runs)
                runs = []
            left = give_up - api.clock.monotonic()
            if runs and not woken:
                # No notification announced these runs, so there may be more for other requests.
                api.wakeups.notify([queue_topic(queue) for queue in queues])
            if runs or left <= 0 or heartbeat.draining or gone.done() or api.leaving:
                if api.metrics.figures is not None and runs:
                    api.metrics.figures.claimed(runs)
                found = [_claimed(run, _traceparent(api, run)) for run in runs]
                return Answer(200, ClaimedRuns(claim=number, runs=found, draining=heartbeat.draining))
            # Spread the claims of requests for the same queues, so that one of them claims about once a second.
            patience = _LOOK_EVERY * (1 + _jitter.random() * (min(line.length, _LOOK_TOGETHER) - 1))
            waited, woken = True, await wakeup.wait(min(left, worker.lease // 3, round(patience)))
            notified_at = api.clock.monotonic() - (0 if woken else _LOOK_EVERY)
    finally:
        line.length -= 1
        gone.cancel()
        wakeup.close()
        api.polls.give_back(call.principal)


async def _leave_unknown(api: Api, worker: SessionView, runs: list[HeldRun]) -> list[HeldRun]:
    """Return the runs whose task the worker knows.

    The others are released for other, perhaps newer, workers: delayed by ``UNKNOWN_TASK_DELAY``, without counting the
    attempt. A worker that names no task is assumed to know all of them.
    """
    unknown = [run for run in runs if worker.tasks and run.task not in worker.tasks]
    if unknown:
        why = "its worker does not know task {!r}"
        await api.store.complete([complete_release(run, why.format(run.task), UNKNOWN_TASK_DELAY) for run in unknown])
    return [run for run in runs if run not in unknown]


async def _give_back(api: Api, runs: list[HeldRun]) -> None:
    if runs:
        await api.store.complete([complete_release(run, "its worker hung up") for run in runs])
        api.wakeups.notify({queue_topic(run.queue) for run in runs})


@remote.operation(
    "POST",
    "/v1/workers/{id}/heartbeat",
    permission=Permission.WORK,
    body=HeartbeatIn,
    answers={200: HeartbeatOut, 404: Problem},
    example={"held": ["019a8c4b6f2c70008042b1c2d3e4f506"], "claim": 17},
)
async def heartbeat(api: Api, call: Call[HeartbeatIn, Nothing]) -> Answer:
    """Renew the lease of a worker.

    Send the runs that it holds and the number of its newest claim. Returns the runs that it should cancel, and
    whether it should drain. If `alive` is false, the lease expired: stop all runs and register again.
    """
    worker = await _worker(api, call.principal, call.path["id"])
    held = [RunId(known_id(run)) for run in call.body.held]
    # Pass the number before the acknowledged claim. Runs of that claim arrived with its answer, and a claim still under
    # way may have the same number.
    heartbeat = await api.store.heartbeat(worker.id, worker.lease, held, (), call.body.claim - 1)
    out = HeartbeatOut(
        alive=heartbeat.alive, cancel=list(heartbeat.cancels), returned=heartbeat.returned, draining=heartbeat.draining
    )
    return Answer(200, out)


@remote.operation(
    "POST", "/v1/workers/{id}/leave", permission=Permission.WORK, answers={200: HeartbeatOut, 404: Problem}
)
async def leave(api: Api, call: Call[Nothing, Nothing]) -> Answer:
    """Unregister a worker.

    Its remaining runs are requeued for other workers.
    """
    worker = await _worker(api, call.principal, call.path["id"])
    await api.store.close_session(worker.id)
    return Answer(200, HeartbeatOut(alive=False, cancel=[]))


@remote.operation(
    "POST",
    "/v1/runs/{id}/complete",
    permission=Permission.WORK,
    body=CompleteIn,
    answers={200: Reported, 404: Problem, 409: Problem},
    example={"fence": 1099511627777, "result": {"sent": True}},
)
async def complete(api: Api, call: Call[CompleteIn, Nothing]) -> Answer:
    """Report that a run succeeded.

    Needs the fence of the claim; the result has up to 64 KiB. Repeating the report is safe. 409: the lease expired
    and the run is no longer yours; stop working on it.
    """
    result = None if call.body.result is msgspec.UNSET else bytes(call.body.result)
    if result is not None and len(result) > MAX_RESULT:
        raise Invalid("result", f"is {len(result)} bytes", f"at most {MAX_RESULT}")
    held = await _held(api, call.principal, call.path["id"], call.body.fence)
    completion = None if held is None else _with_cost(complete_success(held, result), call.body)
    return await _complete(api, call, Outcome.SUCCESS, held, completion)


@remote.operation(
    "POST",
    "/v1/runs/{id}/fail",
    permission=Permission.WORK,
    body=FailIn,
    answers={200: Reported, 404: Problem, 409: Problem},
    example={"fence": 1099511627777, "error": "connection refused", "retryAfter": "30s"},
)
async def fail(api: Api, call: Call[FailIn, Nothing]) -> Answer:
    """Report that a run failed.

    Needs the fence of the claim. The run is retried by its policy, unless `retry` is false. Repeating the report is
    safe. 409: the lease expired and the run is no longer yours.
    """
    cause = _cause(call.body)
    held = await _held(api, call.principal, call.path["id"], call.body.fence)
    completion = None
    if held is not None:
        completion = complete_failure(held, call.body.error, _jitter, now=await api.store.now(), cause=cause)
        completion = _with_cost(completion, call.body)
    return await _complete(api, call, Outcome.ERROR, held, completion)


@remote.operation(
    "POST",
    "/v1/runs/{id}/cancelled",
    permission=Permission.WORK,
    body=FenceIn,
    answers={200: Reported, 404: Problem, 409: Problem},
)
async def cancelled(api: Api, call: Call[FenceIn, Nothing]) -> Answer:
    """Report that a run stopped because of a cancel request.

    Needs the fence of the claim. 409: the run is no longer yours, or no cancel was requested; report a failure or
    release the run instead.
    """
    held = await _held(api, call.principal, call.path["id"], call.body.fence)
    if held is not None and not held.cancel_requested:
        raise Conflict("nobody asked this run to stop; report a failure, or give it back")
    completion = None if held is None else complete_cancel(held)
    return await _complete(api, call, Outcome.CANCELLED, held, completion)


@remote.operation(
    "POST",
    "/v1/runs/{id}/release",
    permission=Permission.WORK,
    body=FenceIn,
    answers={200: Reported, 404: Problem, 409: Problem},
)
async def release(api: Api, call: Call[FenceIn, Nothing]) -> Answer:
    """Give a run back to its queue.

    Needs the fence of the claim. Another worker can claim the run at once, and the attempt does not count. 409: the
    run is no longer yours.
    """
    held = await _held(api, call.principal, call.path["id"], call.body.fence)
    completion = None if held is None else complete_release(held, "given back")
    return await _complete(api, call, Outcome.RELEASED, held, completion)


@remote.operation(
    "POST",
    "/v1/runs/{id}/progress",
    permission=Permission.WORK,
    body=ProgressIn,
    answers={200: Reported, 404: Problem, 409: Problem},
)
async def progress(api: Api, call: Call[ProgressIn, Nothing]) -> Answer:
    """Report the progress of a run.

    Needs the fence of the claim. The newest report replaces the one before it. 409: the run is no longer yours.
    """
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
    """Append to the log output of a run.

    Needs the fence of the claim; up to 64 Ki characters for each request. 409: the run is no longer yours.
    """
    run = RunId(known_id(call.path["id"]))
    await _held(api, call.principal, run, call.body.fence)
    text = call.body.text.replace("\x00", "�")
    pieces = [text[at : at + 16_384] for at in range(0, len(text), 16_384)] or [""]
    reports = [LogReport(run=run, fence=call.body.fence, text=piece) for piece in pieces]
    return _reported(run, all(await api.store.append_log(reports)))


async def _worker(api: Api, principal: Principal, text: str) -> SessionView:
    """Return the session of the caller, alive or not. Raises ``Missing`` for a session of another principal."""
    worker = await api.session(session_of(text))
    if worker is None or worker.owner != principal.name:
        raise Missing
    return worker


async def _held(api: Api, principal: Principal, text: str, fence: int) -> HeldRun | None:
    """Return the run if the caller holds it under this fence, or ``None`` if no attempt runs under it.

    Raises ``Missing`` if the caller may not see the run: it belongs to another tenant, to a queue outside its key's
    reach, or to a worker of another principal.
    """
    run = RunId(known_id(text))
    held = (await api.store.held([run]))[0]
    seen = held or (await api.store.runs([run]))[0]
    if seen is None or principal.tenant not in (None, seen.tenant):
        raise Missing
    if not principal.reaches([seen.queue]):
        raise Missing
    if held is None or held.session is None or held.fence != fence:
        return None
    holder = await api.session(held.session)
    if holder is None or holder.owner != principal.name:
        raise Missing
    return held


def _with_cost(completion: Completion, told: CompleteIn | FailIn) -> Completion:
    check_units(told.units)
    if told.cpu_seconds is None and not told.units:
        return completion
    cpu = None if told.cpu_seconds is None else round(told.cpu_seconds * SECOND)
    return msgspec.structs.replace(completion, spent=Spent(cpu=cpu, units=told.units))


def _cause(body: FailIn) -> Cause:
    if body.retry_after is not None and not body.retry:
        raise Invalid("retryAfter", "says when to try again, and retry says not to", "one of them")
    after = None if body.retry_after is None else micros_of(body.retry_after, "retryAfter")
    if after is not None and after > LONGEST_DELAY:
        raise Invalid("retryAfter", "is too long", "at most 366 days")
    return Cause(kinds=body.error_kinds, gives_up=not body.retry, after=after)


async def _complete(
    api: Api,
    call: Call[Any, Nothing],
    outcome: Outcome,
    held: HeldRun | None,
    completion: Completion | None,
) -> Answer:
    run = RunId(call.path["id"])
    if completion is None:
        # No attempt runs under this fence. Only the store can tell a repeated report from one that came too late.
        completion = Completion(run=run, fence=call.body.fence, outcome=outcome, state=_ENDS[outcome], lets_go=True)
    answer = (await api.store.complete([completion]))[0]
    if held is not None:
        # The run is requeued, or another run may have waited for its ordering key.
        api.wakeups.notify([queue_topic(held.queue)])
    _count(api, held, completion, answer)
    if api.tracing is not None and held is not None and answer is CompletionAnswer.ACCEPTED:
        api.tracing.completed_elsewhere(held, completion)
    if answer is CompletionAnswer.STALE:
        raise Fenced("this fence is not the running one")
    return Answer(200, Reported(run_id=run, answer=answer.value))


class _Ended(NamedTuple):
    held: HeldRun
    came_at: Instant
    ended_at: Instant


def _count(api: Api, held: HeldRun | None, completion: Completion, answer: CompletionAnswer) -> None:
    figures = api.metrics.figures
    if figures is None:
        return
    if answer is CompletionAnswer.STALE:
        figures.fenced += 1
    elif answer is CompletionAnswer.ACCEPTED and held is not None:
        # Measure by this node's clock: no process here observed the start of the attempt.
        came_at = held.started_at
        figures.completed([(_Ended(held, came_at, max(api.clock.now(), came_at)), completion)])


_ENDS = {
    Outcome.SUCCESS: RunState.SUCCEEDED,
    Outcome.ERROR: RunState.FAILED,
    Outcome.CANCELLED: RunState.CANCELLED,
    Outcome.RELEASED: RunState.QUEUED,
}


def _reported(run: str, accepted: bool) -> Answer:
    if not accepted:
        raise Fenced("this fence is not the running one")
    return Answer(200, Reported(run_id=run, answer=CompletionAnswer.ACCEPTED.value))


def _traceparent(api: Api, run: HeldRun) -> str:
    return run.policy.trace if api.tracing is None else api.tracing.given(run)


def _claimed(run: HeldRun, traceparent: str) -> Claimed:
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
        tick=None if run.scheduled_at is None else isoformat(run.scheduled_at),
        cancel_requested=run.cancel_requested,
        weight=run.policy.weight,
        traceparent=traceparent or None,
    )
