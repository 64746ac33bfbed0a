"""Operations on stored replays: canaries first, then the rest at a pace. A scheduler drives them."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from mainspring.core.model.access.access import DEFAULT_TENANT, Permission, Principal
from mainspring.core.model.base.errors import Conflict, Invalid
from mainspring.core.model.base.instant import isoformat
from mainspring.core.model.runs.replay import MOST_CANARIES, Replay, stopped
from mainspring.core.ports.storage.catalog import RunFilter
from mainspring.features.dead_letters.operations.groups import DeadLetterFilter, read_patch
from mainspring.http.context import Api
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.problems import ObjectNotFound, Problem, RequestError
from mainspring.http.schemas.common import Limit, Name, Request, Text, Wire, format_time, parse_id, parse_time

replays = Resource("Replays", "Replays of dead letters in stages: a few canaries first, the rest after they succeed.")

_STOP_ATTEMPTS = 10
_MAX_GROUPS = 10_000


class StartReplayIn(DeadLetterFilter):
    """Selects dead letters that have failed by now. At least one field is required, or `everything`."""

    canaries: Annotated[int, Meta(ge=0, le=MOST_CANARIES)] = 0
    """Runs to replay first. The rest follows when all of them have succeeded; a canary that fails stops the replay."""
    per_second: Annotated[float, Meta(gt=0, le=100_000)] | None = None
    """Runs per second after the canaries; default: as fast as possible."""
    payload_patch: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """Change of each payload: a JSON merge patch."""


class StopReplayIn(Request):
    why: Text = ""


class ReplayOut(Wire):
    replay_id: str
    state: Literal["canary", "going", "done", "stopped"]
    """canary: the canaries run; going: the rest is created; done: all are created; stopped: see `why`."""
    author: str
    made_at: str
    replayed: int
    passed_over: int
    """Dead letters that could not be submitted, for example because of their patched payload."""
    canary_run_ids: list[str]
    why: str | None = None
    ended_at: str | None = None
    tenant: str | None = None
    fingerprint: str | None = None
    task: str | None = None
    queue: str | None = None
    per_second: float | None = None
    matched: int | None = None
    """Dead letters that matched at creation. Missing if limited to times, or if the author is limited to queues."""


class Replays(Wire):
    items: list[ReplayOut]


class ListReplaysQuery(Request):
    tenant: Name | None = None
    limit: Limit = 50


@replays.operation(
    "POST",
    "/v1/dead-letters/replays",
    permission=Permission.OPERATE,
    body=StartReplayIn,
    answers={201: ReplayOut},
    example={"task": "send_welcome", "canaries": 3, "perSecond": 10},
)
async def start_replay(api: Api, call: Call[StartReplayIn, Empty]) -> Answer:
    """Run dead letters again in stages: canaries first, then the rest at a set pace.

    The replay is stored and survives restarts of any process. It progresses while a scheduler is running. No dead
    letter is replayed twice.
    """
    body, principal = call.body, call.principal
    filters = (body.fingerprint, body.task, body.queue, body.failed_after, body.failed_before)
    if not any(filters) and not body.everything:
        raise Invalid("fingerprint", "no selection", "set a filter, or everything: true")
    if body.queue is not None:
        api.admission.check_queue(principal, body.queue)
    tenant = await api.choose_written(principal, body.tenant)
    bounded = body.failed_after or body.failed_before or principal.queues
    replay = Replay(
        id=api.jobs.new_run_id(tenant=tenant or DEFAULT_TENANT),
        author=principal.name,
        tenant=tenant,
        fingerprint=body.fingerprint or "",
        task=body.task or "",
        queue=body.queue or "",
        queues=tuple(sorted(principal.queues)),
        failed_after=parse_time(body.failed_after, "failedAfter"),
        failed_before=parse_time(body.failed_before, "failedBefore"),
        patch=read_patch(body.payload_patch),
        per_second=body.per_second,
        canaries=body.canaries,
        matched=None if bounded else await _count_matched(api, principal, tenant, body),
        made_at=await api.store.now(),
    )
    await api.store.put_replay(replay)
    return Answer(201, _replay_out(replay), {"location": f"/v1/dead-letters/replays/{replay.id}"})


async def _count_matched(api: Api, principal: Principal, tenant: str | None, body: StartReplayIn) -> int:
    wanted = RunFilter(
        tenant=tenant,
        dead=True,
        fingerprint=body.fingerprint or "",
        task=body.task or "",
        queue=body.queue or "",
    )
    return sum(group.count for group in await api.seen_by(principal).dead_groups(wanted, _MAX_GROUPS))


@replays.operation(
    "GET", "/v1/dead-letters/replays", permission=Permission.READ, query=ListReplaysQuery, answers={200: Replays}
)
async def list_replays(api: Api, call: Call[Empty, ListReplaysQuery]) -> Answer:
    """List replays, newest first.

    Replays that have ended are kept for 30 days.
    """
    found = await api.store.replays(api.choose_listed(call.principal, call.query.tenant), call.query.limit)
    return Answer(200, Replays(items=[_replay_out(replay) for replay in found]))


@replays.operation(
    "GET", "/v1/dead-letters/replays/{id}", permission=Permission.READ, answers={200: ReplayOut, 404: Problem}
)
async def show_replay(api: Api, call: Call[Empty, Empty]) -> Answer:
    """Get the progress of a replay.

    Returns its state, how many runs it has created, and why it stopped if it did.
    """
    return Answer(200, _replay_out(await _find_replay(api, call.principal, call)))


@replays.operation(
    "POST",
    "/v1/dead-letters/replays/{id}/stop",
    permission=Permission.OPERATE,
    body=StopReplayIn,
    body_optional=True,
    answers={200: ReplayOut, 404: Problem, 409: Problem},
)
async def stop_replay(api: Api, call: Call[StopReplayIn, Empty]) -> Answer:
    """Stop a replay.

    It creates no more runs; the runs that it has created continue. 409: the replay has already ended, or a
    scheduler changed it at the same moment.
    """
    why = f"stopped by {call.principal.name}" + (f": {call.body.why}" if call.body.why else "")
    for _ in range(_STOP_ATTEMPTS):
        replay = await _find_replay(api, call.principal, call)
        _check_queues(call.principal, replay)
        if not replay.is_open:
            raise Conflict(f"the replay is {replay.state}")
        stopped_replay = stopped(replay, why, await api.store.now())
        if await api.store.move_replay(stopped_replay):
            return Answer(200, _replay_out(stopped_replay))
    raise Conflict("a scheduler changed the replay at the same moment; try again")


def _check_queues(principal: Principal, replay: Replay) -> None:
    """Refuse a key that is limited to queues and does not cover all queues of the replay."""
    queues = {replay.queue} if replay.queue else set(replay.queues)
    if principal.queues and not (queues and queues <= principal.queues):
        raise RequestError(403, "Forbidden", "this key does not have access to all queues of the replay")


async def _find_replay(api: Api, principal: Principal, call: Call[Any, Empty]) -> Replay:
    found = await api.store.replay(parse_id(call.path["id"]))
    if found is None or principal.tenant not in (None, found.tenant):
        raise ObjectNotFound
    return found


def _replay_out(replay: Replay) -> ReplayOut:
    return ReplayOut(
        replay_id=replay.id,
        state=replay.state,
        author=replay.author,
        made_at=isoformat(replay.made_at),
        # ``next`` holds the chosen runs that are not created yet.
        replayed=replay.replayed - len(replay.next),
        passed_over=replay.passed_over,
        canary_run_ids=list(replay.canary_runs),
        why=replay.why or None,
        ended_at=format_time(replay.ended_at),
        tenant=replay.tenant,
        fingerprint=replay.fingerprint or None,
        task=replay.task or None,
        queue=replay.queue or None,
        per_second=replay.per_second,
        matched=replay.matched,
    )
