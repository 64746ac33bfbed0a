"""HTTP operations by which workers in any language report about their runs. Every report carries its fence."""

from random import Random
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from mainspring.core.model.access.access import Permission, Principal
from mainspring.core.model.base.errors import Conflict, Fenced, Invalid
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import SECOND, Instant
from mainspring.core.model.runs.cause import MOST_KINDS, Cause
from mainspring.core.model.runs.completion import (
    Completion,
    CompletionAnswer,
    complete_cancel,
    complete_failure,
    complete_release,
    complete_success,
)
from mainspring.core.model.runs.names import MAX_ERROR, MAX_NAME, MAX_RESULT
from mainspring.core.model.runs.retry import LONGEST_DELAY
from mainspring.core.model.runs.run import HeldRun, Outcome, RunState
from mainspring.core.model.runs.usage import MOST_AMOUNT, MOST_UNITS, AttemptCost, check_units
from mainspring.core.ports.storage.catalog import LogReport, ProgressReport
from mainspring.core.ports.wakeups import queue_topic
from mainspring.http.context import Api
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.problems import ObjectNotFound, Problem
from mainspring.http.schemas.common import Request, Span, Text, Wire, parse_id, parse_span

remote_reports = Resource("Remote workers")

Fence = Annotated[int, Meta(ge=1, le=2**62)]
ErrorKinds = Annotated[tuple[Annotated[str, Meta(max_length=MAX_NAME)], ...], Meta(max_length=MOST_KINDS)]


_jitter = Random()


Units: TypeAlias = Annotated[
    dict[str, Annotated[float, Meta(ge=0, le=MOST_AMOUNT)]],
    Meta(max_length=MOST_UNITS, description="Usage in units of your own.", examples=[{"tokens": 1200}]),
]
CpuSeconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e9, description="CPU time used, in seconds.")]


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


class ReportOut(Wire):
    run_id: str
    answer: str


@remote_reports.operation(
    "POST",
    "/v1/runs/{id}/complete",
    permission=Permission.WORK,
    body=CompleteIn,
    answers={200: ReportOut, 404: Problem, 409: Problem},
    example={"fence": 1099511627777, "result": {"sent": True}},
)
async def complete(api: Api, call: Call[CompleteIn, Empty]) -> Answer:
    """Report that a run succeeded.

    Needs the fence of the claim; the result has up to 64 KiB. Repeating the report is safe. 409: the lease expired
    and the run is no longer yours; stop working on it.
    """
    result = None if call.body.result is msgspec.UNSET else bytes(call.body.result)
    if result is not None and len(result) > MAX_RESULT:
        raise Invalid("result", f"is {len(result)} bytes", f"at most {MAX_RESULT}")
    held = await _find_held(api, call.principal, call.path["id"], call.body.fence)
    completion = None if held is None else _add_cost(complete_success(held, result), call.body)
    return await _complete(api, call, Outcome.SUCCESS, held, completion)


@remote_reports.operation(
    "POST",
    "/v1/runs/{id}/fail",
    permission=Permission.WORK,
    body=FailIn,
    answers={200: ReportOut, 404: Problem, 409: Problem},
    example={"fence": 1099511627777, "error": "connection refused", "retryAfter": "30s"},
)
async def fail(api: Api, call: Call[FailIn, Empty]) -> Answer:
    """Report that a run failed.

    Needs the fence of the claim. The run is retried by its policy, unless `retry` is false. Repeating the report is
    safe. 409: the lease expired and the run is no longer yours.
    """
    cause = _build_cause(call.body)
    held = await _find_held(api, call.principal, call.path["id"], call.body.fence)
    completion = None
    if held is not None:
        completion = complete_failure(held, call.body.error, _jitter, now=await api.store.now(), cause=cause)
        completion = _add_cost(completion, call.body)
    return await _complete(api, call, Outcome.ERROR, held, completion)


@remote_reports.operation(
    "POST",
    "/v1/runs/{id}/cancelled",
    permission=Permission.WORK,
    body=FenceIn,
    answers={200: ReportOut, 404: Problem, 409: Problem},
)
async def cancelled(api: Api, call: Call[FenceIn, Empty]) -> Answer:
    """Report that a run stopped because of a cancel request.

    Needs the fence of the claim. 409: the run is no longer yours, or no cancel was requested; report a failure or
    release the run instead.
    """
    held = await _find_held(api, call.principal, call.path["id"], call.body.fence)
    if held is not None and not held.cancel_requested:
        raise Conflict("no cancel was requested for this run; report a failure, or release it")
    completion = None if held is None else complete_cancel(held)
    return await _complete(api, call, Outcome.CANCELLED, held, completion)


@remote_reports.operation(
    "POST",
    "/v1/runs/{id}/release",
    permission=Permission.WORK,
    body=FenceIn,
    answers={200: ReportOut, 404: Problem, 409: Problem},
)
async def release(api: Api, call: Call[FenceIn, Empty]) -> Answer:
    """Give a run back to its queue.

    Needs the fence of the claim. Another worker can claim the run at once, and the attempt does not count. 409: the
    run is no longer yours.
    """
    held = await _find_held(api, call.principal, call.path["id"], call.body.fence)
    completion = None if held is None else complete_release(held, "released")
    return await _complete(api, call, Outcome.RELEASED, held, completion)


@remote_reports.operation(
    "POST",
    "/v1/runs/{id}/progress",
    permission=Permission.WORK,
    body=ProgressIn,
    answers={200: ReportOut, 404: Problem, 409: Problem},
)
async def progress(api: Api, call: Call[ProgressIn, Empty]) -> Answer:
    """Report the progress of a run.

    Needs the fence of the claim. The newest report replaces the one before it. 409: the run is no longer yours.
    """
    body = call.body
    run = RunId(parse_id(call.path["id"]))
    await _find_held(api, call.principal, run, body.fence)
    report = ProgressReport(run=run, fence=body.fence, done=body.done, total=body.total, note=body.note)
    return _report_out(run, (await api.store.report_progress([report]))[0])


@remote_reports.operation(
    "POST",
    "/v1/runs/{id}/log",
    permission=Permission.WORK,
    body=LogIn,
    answers={200: ReportOut, 404: Problem, 409: Problem},
)
async def log(api: Api, call: Call[LogIn, Empty]) -> Answer:
    """Append to the log output of a run.

    Needs the fence of the claim; up to 64 Ki characters for each request. 409: the run is no longer yours.
    """
    run = RunId(parse_id(call.path["id"]))
    await _find_held(api, call.principal, run, call.body.fence)
    text = call.body.text.replace("\x00", "�")
    pieces = [text[at : at + 16_384] for at in range(0, len(text), 16_384)] or [""]
    reports = [LogReport(run=run, fence=call.body.fence, text=piece) for piece in pieces]
    return _report_out(run, all(await api.store.append_log(reports)))


async def _find_held(api: Api, principal: Principal, text: str, fence: int) -> HeldRun | None:
    """Return the run if the caller holds it under this fence, or ``None`` if no attempt runs under it.

    Raises ``ObjectNotFound`` if the caller has no access to the run: it belongs to another tenant, to a queue that the
    key does not cover, or to a worker of another principal.
    """
    run = RunId(parse_id(text))
    held = (await api.store.held([run]))[0]
    run_or_held = held or (await api.store.runs([run]))[0]
    if run_or_held is None or principal.tenant not in (None, run_or_held.tenant):
        raise ObjectNotFound
    if not principal.reaches([run_or_held.queue]):
        raise ObjectNotFound
    if held is None or held.session is None or held.fence != fence:
        return None
    holder = await api.workers.find_session(held.session)
    if holder is None or holder.owner != principal.name:
        raise ObjectNotFound
    return held


def _add_cost(completion: Completion, body: CompleteIn | FailIn) -> Completion:
    check_units(body.units)
    if body.cpu_seconds is None and not body.units:
        return completion
    cpu = None if body.cpu_seconds is None else round(body.cpu_seconds * SECOND)
    return msgspec.structs.replace(completion, spent=AttemptCost(cpu=cpu, units=body.units))


def _build_cause(body: FailIn) -> Cause:
    if body.retry_after is not None and not body.retry:
        raise Invalid("retryAfter", "contradicts retry=false", "send one of them")
    after = None if body.retry_after is None else parse_span(body.retry_after, "retryAfter")
    if after is not None and after > LONGEST_DELAY:
        raise Invalid("retryAfter", "is too long", "at most 366 days")
    return Cause(kinds=body.error_kinds, gives_up=not body.retry, after=after)


async def _complete(
    api: Api,
    call: Call[Any, Empty],
    outcome: Outcome,
    held: HeldRun | None,
    completion: Completion | None,
) -> Answer:
    run = RunId(call.path["id"])
    if completion is None:
        # No attempt runs under this fence. Only the store can tell a repeated report from one that came too late.
        completion = Completion(
            run=run, fence=call.body.fence, outcome=outcome, state=_STATES_BY_OUTCOME[outcome], unblocks_others=True
        )
    answer = (await api.store.complete([completion]))[0]
    if held is not None:
        # The run is requeued, or another run may have waited for its ordering key.
        api.wakeups.notify([queue_topic(held.queue)])
    _record_metrics(api, held, completion, answer)
    if api.tracing is not None and held is not None and answer is CompletionAnswer.ACCEPTED:
        api.tracing.completed_elsewhere(held, completion)
    if answer is CompletionAnswer.STALE:
        raise Fenced("the run has a newer fence or has ended")
    return Answer(200, ReportOut(run_id=run, answer=answer.value))


class _EndedAttempt(NamedTuple):
    held: HeldRun
    came_at: Instant
    ended_at: Instant


def _record_metrics(api: Api, held: HeldRun | None, completion: Completion, answer: CompletionAnswer) -> None:
    runs = api.metrics.runs
    if runs is None:
        return
    if answer is CompletionAnswer.STALE:
        runs.fenced += 1
    elif answer is CompletionAnswer.ACCEPTED and held is not None:
        # Measure by this node's clock: no process here observed the start of the attempt.
        came_at = held.started_at
        runs.completed([(_EndedAttempt(held, came_at, max(api.clock.now(), came_at)), completion)])


_STATES_BY_OUTCOME = {
    Outcome.SUCCESS: RunState.SUCCEEDED,
    Outcome.ERROR: RunState.FAILED,
    Outcome.CANCELLED: RunState.CANCELLED,
    Outcome.RELEASED: RunState.QUEUED,
}


def _report_out(run: str, accepted: bool) -> Answer:
    if not accepted:
        raise Fenced("the run has a newer fence or has ended")
    return Answer(200, ReportOut(run_id=run, answer=CompletionAnswer.ACCEPTED.value))
