"""Operation that changes many jobs or runs at once."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from mainspring.core.model.access.access import Permission, Principal
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.runs.run import ENDED, RunState
from mainspring.core.model.schedules.job import JobState
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import JobFilter, RunFilter
from mainspring.http.context import Api
from mainspring.http.jobs.replays import build_replay, limit_to_quotas
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.schemas.bulk import BulkOut
from mainspring.http.schemas.common import Id, Name, Request, Tags, Text, Time, parse_given_id, parse_time
from mainspring.http.schemas.status_words import job_states, run_states

bulk = Resource("Bulk", "Change many jobs or runs at once, selected by a filter.")

_MAX_ITEMS = 10_000
_PAGE = 1_000
_UNFINISHED = frozenset(set(RunState) - ENDED)
_RETRIED_BY_DEFAULT = frozenset({RunState.FAILED, RunState.CANCELLED})


class BulkIn(Request):
    """An action and the jobs or runs that it applies to. Requires `ids`, a filter, or `everything`."""

    action: Literal["pause", "resume", "cancel", "retag", "retry"]
    """`retry` runs each ended run again once, as a new run linked to it.

    Without a status or ids it applies to failed and cancelled runs.
    """
    target: Literal["jobs", "runs"] = "jobs"
    """Recurring jobs, or runs (one-off jobs are runs)."""
    status: Annotated[str, Meta(max_length=200)] | None = None
    job_id: Id | None = None
    ids: Annotated[list[Id], Meta(max_length=1_000)] | None = None
    """Only these, optionally limited by `status`; with no other filter."""
    task: Name | None = None
    queue: Name | None = None
    tag: Name | None = None
    text: Annotated[str, Meta(max_length=200)] | None = None
    created_after: Time | None = None
    created_before: Time | None = None
    everything: bool = False
    tenant: Name | None = None
    """Only this tenant, if the caller can access several."""
    add_tags: Tags = ()
    remove_tags: Tags = ()
    dry_run: bool = False
    why: Text = ""


@bulk.operation(
    "POST",
    "/v1/bulk",
    permission=Permission.OPERATE,
    body=BulkIn,
    answers={200: BulkOut},
    within=None,
    example={"action": "pause", "target": "jobs", "tag": "finance", "dryRun": True},
)
async def act_on_many(api: Api, call: Call[BulkIn, Empty]) -> Answer:
    """Pause, resume, cancel, retag or retry all jobs or runs that match a filter.

    Needs `ids`, a filter, or `everything`. `dryRun` counts the matches and changes nothing. If `more` is true,
    there are more matches than one request handles: repeat the request.
    """
    body = call.body
    filters = (body.job_id, body.task, body.queue, body.tag, body.text, body.created_after, body.created_before)
    if body.ids is not None and (any(filters) or body.everything):
        raise Invalid("ids", "cannot be given together with a filter")
    if not body.everything and body.ids is None and not any((body.status, *filters)):
        raise Invalid("everything", "no selection", "set ids, a filter, or everything: true")
    if body.action == "retag" and not (body.add_tags or body.remove_tags):
        raise Invalid("addTags", "is missing", "addTags, removeTags or both")
    if body.queue is not None:
        api.admission.check_queue(call.principal, body.queue)
    if body.target == "runs":
        return await _change_runs(api, call)
    return await _change_jobs(api, call)


async def _change_jobs(api: Api, call: Call[BulkIn, Empty]) -> Answer:
    body = call.body
    if body.job_id is not None:
        raise Invalid("jobId", "applies to runs only", 'target "runs"')
    if body.action == "retry":
        raise Invalid("action", "schedules cannot be retried", 'target "runs"')
    wanted = JobFilter(
        tenant=await api.choose_written(call.principal, body.tenant),
        states=job_states(body.status) or frozenset({JobState.SCHEDULED, JobState.PAUSED}),
        **_read_criteria(body),
    )
    found, more = await _find_jobs(api, call, wanted)
    changed = 0
    if not body.dry_run:
        author = Author(call.principal.name, call.principal.tenant, body.why)
        match body.action:
            case "pause":
                states_now = await api.jobs.pause(found, author)
                changed = sum(state is JobState.PAUSED for state in states_now.values())
            case "resume":
                states_now = await api.jobs.resume(found, author)
                changed = sum(state is JobState.SCHEDULED for state in states_now.values())
            case "cancel":
                states_now = await api.jobs.cancel_jobs(found, author)
                changed = sum(state is JobState.CANCELLED for state in states_now.values())
            case "retag":
                changed = await api.store.retag(found, body.add_tags, body.remove_tags, author)
    return Answer(200, _bulk_out(body, found, changed, more))


async def _change_runs(api: Api, call: Call[BulkIn, Empty]) -> Answer:
    body = call.body
    if body.action in ("pause", "resume"):
        raise Invalid("action", f"runs cannot be {body.action}d", "pause their queue or their job instead")
    wanted = RunFilter(
        tenant=await api.choose_written(call.principal, body.tenant),
        states=_choose_states(body),
        job=None if body.job_id is None else JobId(parse_given_id(body.job_id, "jobId")),
        **_read_criteria(body),
    )
    found, more = await _find_runs(api, call, wanted)
    changed = 0
    if not body.dry_run:
        author = Author(call.principal.name, call.principal.tenant, body.why)
        if body.action == "cancel":
            for start in range(0, len(found), _PAGE):
                states = await api.jobs.cancel_runs(found[start : start + _PAGE], author)
                changed += sum(state in (RunState.CANCELLED, RunState.CANCELLING) for state in states.values())
        elif body.action == "retry":
            changed, refused = await _retry(api, call.principal, found)
            more = more or refused
        else:
            changed = await api.store.retag(found, body.add_tags, body.remove_tags, author)
    return Answer(200, _bulk_out(body, found, changed, more))


def _read_criteria(body: BulkIn) -> dict[str, Any]:
    """Return the criteria that filters of jobs and of runs have in common."""
    return {
        "task": body.task or "",
        "queue": body.queue or "",
        "tag": body.tag or "",
        "text": body.text or "",
        "since": parse_time(body.created_after, "createdAfter"),
        "until": parse_time(body.created_before, "createdBefore"),
    }


def _choose_states(body: BulkIn) -> frozenset[RunState]:
    """Return the states that the action applies to; empty means all."""
    requested = run_states(body.status)
    match body.action:
        case "cancel":
            return requested or _UNFINISHED
        case "retry":
            if requested - ENDED:
                raise Invalid("status", "only ended runs can be retried", ", ".join(sorted(ENDED)))
            return requested or (_RETRIED_BY_DEFAULT if body.ids is None else ENDED)
        case _:
            return requested


async def _retry(api: Api, principal: Principal, found: list[RunId]) -> tuple[int, bool]:
    """Retry the runs; return how many were created, and whether a quota left some out.

    A run that was retried before is not retried again.
    """
    created = 0
    for start in range(0, len(found), _PAGE):
        reads = await api.seen_by(principal).runs(found[start : start + _PAGE], payloads=True)
        # Retention may have deleted the run meanwhile.
        new = [await build_replay(api, principal, run, run.payload) for run in reads if run is not None]
        allowed = await limit_to_quotas(api, new, insist=not created)
        created += sum(answer.new for answer in await api.jobs.submit_many(allowed))
        if len(allowed) < len(new):
            return created, True
    return created, False


async def _find_jobs(api: Api, call: Call[BulkIn, Empty], wanted: JobFilter) -> tuple[list[JobId], bool]:
    """Return the matching jobs that the caller can access, and whether there are more."""
    reads, principal = api.seen_by(call.principal), call.principal
    if call.body.ids is not None:
        named = await reads.jobs([JobId(parse_given_id(text, "ids")) for text in dict.fromkeys(call.body.ids)])
        known = [job for job in named if job is not None and job.state in wanted.states]
        known = [job for job in known if wanted.tenant in (None, job.tenant)]
        return [job.id for job in known if principal.reaches([job.spec.queue])], False
    found: list[JobId] = []
    after: JobId | None = None
    while len(found) < _MAX_ITEMS:
        page = await reads.list_jobs(wanted, after, 1_000)
        found += [job.id for job in page.items if principal.reaches([job.spec.queue])]
        if page.after is None:
            return found, False
        after = JobId(page.after)
    return found, True


async def _find_runs(api: Api, call: Call[BulkIn, Empty], wanted: RunFilter) -> tuple[list[RunId], bool]:
    reads, principal = api.seen_by(call.principal), call.principal
    if call.body.ids is not None:
        named = await reads.runs([RunId(parse_given_id(text, "ids")) for text in dict.fromkeys(call.body.ids)])
        known = [run for run in named if run is not None and (not wanted.states or run.state in wanted.states)]
        known = [run for run in known if wanted.tenant in (None, run.tenant)]
        return [run.id for run in known if principal.reaches([run.queue])], False
    found: list[RunId] = []
    after: RunId | None = None
    while len(found) < _MAX_ITEMS:
        page = await reads.list_runs(wanted, after, 1_000)
        found += [run.id for run in page.items if principal.reaches([run.queue])]
        if page.after is None:
            return found, False
        after = RunId(page.after)
    return found, True


def _bulk_out(body: BulkIn, found: list[JobId] | list[RunId], changed: int, more: bool) -> BulkOut:
    return BulkOut(
        action=body.action,
        matched=len(found),
        changed=changed,
        more=more,
        dry_run=body.dry_run,
        sample=[str(item) for item in found[:100]],
    )
