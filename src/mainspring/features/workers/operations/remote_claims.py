"""HTTP operation by which workers in any language claim runs, and wait for them."""

import asyncio
from contextlib import nullcontext
from random import Random
from typing import Annotated

import msgspec
from msgspec import Meta

from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.errors import Conflict, Invalid
from mainspring.core.model.base.instant import MILLISECOND, SECOND, isoformat
from mainspring.core.model.runs.completion import (
    complete_release,
)
from mainspring.core.model.runs.run import UNKNOWN_TASK_DELAY, HeldRun
from mainspring.core.ports.storage.catalog import SessionView
from mainspring.core.ports.wakeups import queue_topic
from mainspring.core.store import Demand
from mainspring.features.workers.operations.remote_access import find_worker
from mainspring.http.context import Api
from mainspring.http.operation import DEFAULT_TIMEOUT, Answer, Call, Empty, Resource
from mainspring.http.problems import Problem
from mainspring.http.schemas.common import Name, Request, Wire

remote_claims = Resource("Remote workers")

_MAX_POLL_SECONDS = 30
#: Interval between claim attempts of the requests that wait for the same queues, if no notification arrives.
_POLL_INTERVAL = SECOND
#: At most this many waiting requests share the polling. With more, they would not renew their leases in time.
_MAX_SHARED_POLLS = 5
_GATHER_TIME = 5 * MILLISECOND
#: The longest interval between lease renewals by a waiting claim.
_RENEW_INTERVAL = 5 * SECOND
#: Unit of claim numbers: a number is the age of the worker's session by the store's clock. They last for eight months.
_CLAIM_UNIT = 10 * MILLISECOND
_MAX_CLAIM = 2**31 - 1

_jitter = Random()


class ClaimIn(Request):
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 1
    wait_seconds: Annotated[float, Meta(ge=0, le=_MAX_POLL_SECONDS)] = 0
    """Wait this long for a run to become available."""
    queues: Annotated[tuple[Name, ...], Meta(max_length=100)] | None = None
    """Claim only from these of the worker's queues."""


class ClaimedRun(Wire):
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


class ClaimOut(Wire):
    claim: int
    """Send this number in your next heartbeat."""
    runs: list[ClaimedRun]
    draining: bool = False
    """Finish the active runs, claim nothing more, and leave."""


@remote_claims.operation(
    "POST",
    "/v1/workers/{id}/claim",
    permission=Permission.WORK,
    body=ClaimIn,
    body_optional=True,
    within=_MAX_POLL_SECONDS + DEFAULT_TIMEOUT,
    answers={200: ClaimOut, 404: Problem, 409: Problem},
    example={"limit": 10, "waitSeconds": 0},
)
async def claim(api: Api, call: Call[ClaimIn, Empty]) -> Answer:
    """Claim runs.

    Returns up to `limit` runs, each with the fence that every report about it needs. With `waitSeconds` the request
    waits until a run is available. A claim also renews the lease. 409: the lease expired; register again.
    """
    worker = await find_worker(api, call.principal, call.path["id"])
    queues = worker.queues if call.body.queues is None else call.body.queues
    if not set(queues) <= set(worker.queues):
        raise Invalid("queues", "the worker has not registered for all of them", ", ".join(worker.queues))
    deadline = api.clock.monotonic() + round(call.body.wait_seconds * SECOND)
    api.polls.take(call.principal)
    wakeup = api.wakeups.listen([queue_topic(queue) for queue in queues])
    disconnected = asyncio.ensure_future(call.left())
    disconnected.add_done_callback(lambda _: wakeup.notify())
    line = api.lines.of(queues, worker.labels, call.principal.tenant)
    line.length += 1
    try:
        heartbeat, renewed_at, notified_at, has_waited, was_notified = None, 0, api.clock.monotonic(), False, True
        while True:
            now = api.clock.monotonic()
            if heartbeat is None or now - renewed_at >= min(worker.lease // 3, _RENEW_INTERVAL):
                heartbeat, renewed_at = await api.leases.add((worker.id, worker.lease)), now
                if not heartbeat.alive:
                    raise Conflict("the lease of this worker expired; register again")
            age = heartbeat.now + now - renewed_at - worker.started_at
            number = min(max(age, 0) // _CLAIM_UNIT + 1, _MAX_CLAIM)
            runs: list[HeldRun] = []
            # A new request claims at once. Waiting requests take turns.
            async with line.turn if has_waited else nullcontext():
                if has_waited and api.clock.monotonic() - line.empty_at < _GATHER_TIME:
                    # Let all requests that got the same notification queue up before one of them claims again.
                    await api.clock.sleep(_GATHER_TIME)
                # If a request for the same queues found nothing since the notification, nothing is there.
                if not heartbeat.draining and not disconnected.done() and line.empty_at < notified_at:
                    claimed_at = api.clock.monotonic()
                    if has_waited:
                        # A key that was revoked in the meantime gets no more runs.
                        await api.auth.principal(call.headers)
                    for queue in queues:
                        # Claim queue by queue, in the order given: the limit applies to all of them together.
                        if (room := call.body.limit - len(runs)) > 0:
                            demand = Demand(queue, room, call.principal.tenant)
                            runs += await api.store.claim(worker.id, number, [demand])
                    if not runs:
                        line.empty_at = claimed_at
                    runs = await _release_unknown(api, worker, runs)
            if disconnected.done():
                # The client disconnected, so nothing can execute these runs.
                await _release_all(api, runs)
                runs = []
            remaining = deadline - api.clock.monotonic()
            if runs and not was_notified:
                # No notification announced these runs, so there may be more for other requests.
                api.wakeups.notify([queue_topic(queue) for queue in queues])
            if runs or remaining <= 0 or heartbeat.draining or disconnected.done() or api.leaving:
                if api.metrics.runs is not None and runs:
                    api.metrics.runs.claimed(runs)
                found = [_claimed_out(run, _choose_traceparent(api, run)) for run in runs]
                return Answer(200, ClaimOut(claim=number, runs=found, draining=heartbeat.draining))
            # Spread the claims of requests for the same queues, so that one of them claims about once a second.
            poll_after = _POLL_INTERVAL * (1 + _jitter.random() * (min(line.length, _MAX_SHARED_POLLS) - 1))
            has_waited, was_notified = True, await wakeup.wait(min(remaining, worker.lease // 3, round(poll_after)))
            notified_at = api.clock.monotonic() - (0 if was_notified else _POLL_INTERVAL)
    finally:
        line.length -= 1
        disconnected.cancel()
        wakeup.close()
        api.polls.release(call.principal)


async def _release_unknown(api: Api, worker: SessionView, runs: list[HeldRun]) -> list[HeldRun]:
    """Return the runs whose task the worker knows.

    The others are released for other, perhaps newer, workers: delayed by ``UNKNOWN_TASK_DELAY``, without counting the
    attempt. A worker that names no task is assumed to know all of them.
    """
    unknown = [run for run in runs if worker.tasks and run.task not in worker.tasks]
    if unknown:
        why = "the worker does not know task {!r}"
        await api.store.complete([complete_release(run, why.format(run.task), UNKNOWN_TASK_DELAY) for run in unknown])
    return [run for run in runs if run not in unknown]


async def _release_all(api: Api, runs: list[HeldRun]) -> None:
    if runs:
        await api.store.complete([complete_release(run, "the worker disconnected") for run in runs])
        api.wakeups.notify({queue_topic(run.queue) for run in runs})


def _choose_traceparent(api: Api, run: HeldRun) -> str:
    return run.policy.trace if api.tracing is None else api.tracing.given(run)


def _claimed_out(run: HeldRun, traceparent: str) -> ClaimedRun:
    return ClaimedRun(
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
