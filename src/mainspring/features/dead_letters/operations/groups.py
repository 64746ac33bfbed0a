"""Operations on dead letters, the runs that failed for good, grouped by error."""

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from mainspring.core.model.access.access import Permission, Principal
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import SECOND, isoformat
from mainspring.core.model.base.merge_patch import check_patch, patched
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import RunFilter
from mainspring.http.context import Api
from mainspring.http.jobs.replays import build_replay, limit_to_quotas
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.rendering.runs import render_run
from mainspring.http.schemas.common import (
    Id,
    Limit,
    Name,
    Page,
    Request,
    Text,
    Time,
    Wire,
    parse_cursor,
    parse_given_id,
    parse_time,
    render_page,
)
from mainspring.http.schemas.dead_letters import GroupOut, Groups
from mainspring.http.schemas.runs import RunOut
from mainspring.http.search import Search

dead_letters = Resource("Dead letters", "Runs that failed and were neither replayed nor discarded.")

#: Dead letters handled by one request; the answer says whether there are more.
_MAX_RUNS = 10_000
#: Groups read first.
_FIRST_GROUPS = 100
#: Payloads held in memory at once, at most 256 KiB each.
_BATCH = 50

Fingerprint: TypeAlias = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]


class DeadLetterGroupsQuery(Request):
    fingerprint: Fingerprint | None = None
    tenant: Name | None = None
    task: Name | None = None
    queue: Name | None = None
    since: Time | None = None
    """Only runs created since then."""
    limit: Limit = 100


class DeadLettersQuery(Request):
    fingerprint: Fingerprint | None = None
    task: Name | None = None
    queue: Name | None = None
    tenant: Name | None = None
    limit: Limit = 50
    cursor: Annotated[str, Meta(max_length=200)] | None = None


class DeadLetterFilter(Request):
    fingerprint: Fingerprint | None = None
    task: Name | None = None
    queue: Name | None = None
    failed_after: Time | None = None
    failed_before: Time | None = None
    everything: bool = False
    """All dead letters of the tenant, in the queues that the caller can access."""
    tenant: Name | None = None
    """Only this tenant, if the caller can access several."""


class DeadLetterSelection(DeadLetterFilter):
    """Selects dead letters by id or by filter. At least one field is required."""

    run_ids: Annotated[list[Id], Meta(max_length=1_000)] | None = None
    dry_run: bool = False


class ReplayIn(DeadLetterSelection):
    per_second: Annotated[float, Meta(gt=0, le=100_000)] | None = None
    """Pace: how many of the new runs become due per second; default: all at once."""
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """Replaces the payload; only with one run id."""
    payload_patch: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """Change of each payload: a JSON merge patch."""


class DiscardIn(DeadLetterSelection):
    why: Text = ""


class RestoreDeadLettersIn(Request):
    run_ids: Annotated[list[Id], Meta(max_length=1_000)]
    why: Text = ""


class DeadLetterResult(Wire):
    """The runs that an action changed, or would change."""

    action: Literal["replay", "discard", "bring-back"]
    count: int
    more: bool
    """More dead letters remain than one request handles: repeat the request."""
    dry_run: bool
    run_ids: list[str] = []
    """The new runs of a replay, or the discarded runs; the first hundred."""


@dead_letters.operation(
    "GET", "/v1/dead-letters", permission=Permission.READ, query=DeadLetterGroupsQuery, answers={200: Groups}
)
async def list_groups(api: Api, call: Call[Empty, DeadLetterGroupsQuery]) -> Answer:
    """List dead letters grouped by error, largest groups first.

    Runs of one task with the same `fingerprint` failed in the same way. Each group has its count, its trend and a
    sample run.
    """
    query = call.query
    wanted = RunFilter(
        tenant=api.choose_listed(call.principal, query.tenant),
        dead=True,
        fingerprint=query.fingerprint or "",
        task=query.task or "",
        queue=query.queue or "",
        since=parse_time(query.since, "since"),
    )
    items = [
        GroupOut(
            fingerprint=group.fingerprint,
            task=group.task,
            reason=group.reason,
            count=group.count,
            first_seen=isoformat(group.first_at),
            last_seen=isoformat(group.last_at),
            sample_run_id=group.sample,
            error_message=group.error,
            trend=group.trend,
        )
        for group in await api.seen_by(call.principal).dead_groups(wanted, query.limit)
    ]
    return Answer(200, Groups(items=items))


@dead_letters.operation(
    "GET", "/v1/dead-letters/runs", permission=Permission.READ, query=DeadLettersQuery, answers={200: Page[RunOut]}
)
async def list_dead(api: Api, call: Call[Empty, DeadLettersQuery]) -> Answer:
    """List dead letters one by one, newest first.

    A run must match every filter. Pass `nextCursor` as `cursor` to get the next page.
    """
    query = call.query
    wanted = RunFilter(
        tenant=api.choose_listed(call.principal, query.tenant),
        dead=True,
        fingerprint=query.fingerprint or "",
        task=query.task or "",
        queue=query.queue or "",
    )
    reads, cursor = api.listed_by(call.principal), parse_cursor(query.cursor)
    page = await Search(api.clock).runs(reads, wanted, cursor, query.limit)
    return Answer(200, render_page([render_run(run) for run in page.items], page.after, query.limit))


@dead_letters.operation(
    "POST",
    "/v1/dead-letters/replay",
    permission=Permission.OPERATE,
    body=ReplayIn,
    answers={200: DeadLetterResult},
    within=None,
)
async def replay(api: Api, call: Call[ReplayIn, Empty]) -> Answer:
    """Run dead letters again, as new runs linked to the old ones.

    Select them by `runIds`, by a filter, or with `everything`. If `more` is true, a quota or the size limit of a
    request left some out: repeat the request. `dryRun` counts them without running them.
    """
    body = call.body
    if body.payload is not msgspec.UNSET and len(body.run_ids or []) != 1:
        raise Invalid("payload", "needs exactly one run id", "use payloadPatch for several runs")
    patch = read_patch(body.payload_patch)
    if patch is not None and body.payload is not msgspec.UNSET:
        raise Invalid("payloadPatch", "contradicts payload", "send one of them")
    if body.dry_run:
        count, more = await _count_selected(api, call.principal, body)
        return Answer(200, DeadLetterResult(action="replay", count=count, more=more, dry_run=True))
    selection, more = await _select_runs(api, call.principal, body)
    made: list[str] = []
    for start in range(0, len(selection), _BATCH):
        part = selection[start : start + _BATCH]
        dead = await api.seen_by(call.principal).runs([run.id for run in part], payloads=True)
        new = []
        for number, run in enumerate(dead, start):
            if run is None:
                continue
            payload = run.payload if body.payload is msgspec.UNSET else bytes(body.payload)
            payload = payload if patch is None else patched(payload or b"null", patch)
            again = await build_replay(api, call.principal, run, payload)
            if body.per_second is not None:
                again = msgspec.structs.replace(again, delay=round(number / body.per_second * SECOND))
            new.append(again)
        allowed = await limit_to_quotas(api, new, insist=not made)
        made += [answer.id for answer in await api.jobs.submit_many(allowed) if answer.new]
        if len(allowed) < len(new):
            more = True
            break
    return Answer(200, DeadLetterResult(action="replay", count=len(made), more=more, dry_run=False, run_ids=made[:100]))


@dead_letters.operation(
    "POST",
    "/v1/dead-letters/discard",
    permission=Permission.OPERATE,
    body=DiscardIn,
    answers={200: DeadLetterResult},
    within=None,
)
async def discard(api: Api, call: Call[DiscardIn, Empty]) -> Answer:
    """Discard dead letters.

    They leave the list of dead letters and stay in history. Select them by `runIds`, by a filter, or with
    `everything`. `dryRun` counts them without discarding them.
    """
    if call.body.dry_run:
        count, more = await _count_selected(api, call.principal, call.body)
        return Answer(200, DeadLetterResult(action="discard", count=count, more=more, dry_run=True))
    selection, more = await _select_runs(api, call.principal, call.body)
    author = Author(call.principal.name, call.principal.tenant, call.body.why)
    count = await api.store.discard([run.id for run in selection], author)
    ids = [str(run.id) for run in selection[:100]]
    return Answer(200, DeadLetterResult(action="discard", count=count, more=more, dry_run=False, run_ids=ids))


@dead_letters.operation(
    "POST",
    "/v1/dead-letters/bring-back",
    permission=Permission.OPERATE,
    body=RestoreDeadLettersIn,
    answers={200: DeadLetterResult},
)
async def bring_back(api: Api, call: Call[RestoreDeadLettersIn, Empty]) -> Answer:
    """Undo a discard.

    The runs become dead letters again, unless they were replayed meanwhile. Runs that are not discarded are
    ignored.
    """
    ids = [RunId(parse_given_id(text, "runIds")) for text in dict.fromkeys(call.body.run_ids)]
    found = [run for run in await api.seen_by(call.principal).runs(ids) if run is not None]
    for run in found:
        api.admission.check_queue(call.principal, run.queue)
    author = Author(call.principal.name, call.principal.tenant, call.body.why)
    count = await api.store.bring_back([run.id for run in found], author)
    return Answer(200, DeadLetterResult(action="bring-back", count=count, more=False, dry_run=False))


def read_patch(given: msgspec.Raw | msgspec.UnsetType) -> bytes | None:
    if given is msgspec.UNSET:
        return None
    check_patch("payloadPatch", bytes(given))
    return bytes(given)


async def _count_selected(api: Api, principal: Principal, selection: DeadLetterSelection) -> tuple[int, bool]:
    """Count the dead letters that ``_select_runs`` would find; from the store's groups if the selection allows it."""
    if selection.run_ids is not None or selection.failed_after or selection.failed_before or principal.queues:
        runs, more = await _select_runs(api, principal, selection)
        return len(runs), more
    wanted, count = await _build_filter(api, principal, selection), 0
    # The largest groups come first: the first page is mostly all of them, or exceeds the limit.
    for limit in (_FIRST_GROUPS, _MAX_RUNS):
        groups = await api.seen_by(principal).dead_groups(wanted, limit)
        count = sum(group.count for group in groups)
        if len(groups) < limit or count > _MAX_RUNS:
            break
    return min(count, _MAX_RUNS), count > _MAX_RUNS


async def _select_runs(api: Api, principal: Principal, selection: DeadLetterSelection) -> tuple[list[RunView], bool]:
    """Return the selected dead letters, and whether there are more than one request handles."""
    if selection.run_ids is not None:
        if any(_list_filters(selection)) or selection.everything:
            raise Invalid("runIds", "cannot be given together with a filter")
        ids = [RunId(parse_given_id(text, "runIds")) for text in dict.fromkeys(selection.run_ids)]
        tenant = await api.choose_written(principal, selection.tenant)
        named = await api.seen_by(principal).runs(ids)
        found = [run for run in named if run is not None and tenant in (None, run.tenant)]
        for run in found:
            api.admission.check_queue(principal, run.queue)
        return [run for run in found if run.state is RunState.FAILED], False
    wanted = await _build_filter(api, principal, selection)
    runs: list[RunView] = []
    after: RunId | None = None
    while True:
        page = await api.seen_by(principal).list_runs(wanted, after, 1_000)
        runs += [run for run in page.items if principal.reaches([run.queue])]
        if page.after is None:
            return runs, False
        if len(runs) >= _MAX_RUNS:
            return runs[:_MAX_RUNS], True
        after = RunId(page.after)


async def _build_filter(api: Api, principal: Principal, selection: DeadLetterSelection) -> RunFilter:
    if not any(_list_filters(selection)) and not selection.everything:
        raise Invalid("fingerprint", "no selection", "set runIds, a filter, or everything: true")
    if selection.queue is not None:
        api.admission.check_queue(principal, selection.queue)
    return RunFilter(
        tenant=await api.choose_written(principal, selection.tenant),
        dead=True,
        fingerprint=selection.fingerprint or "",
        task=selection.task or "",
        queue=selection.queue or "",
        since=parse_time(selection.failed_after, "failedAfter"),
        until=parse_time(selection.failed_before, "failedBefore"),
    )


def _list_filters(selection: DeadLetterSelection) -> tuple[str | None, ...]:
    return selection.fingerprint, selection.task, selection.queue, selection.failed_after, selection.failed_before
