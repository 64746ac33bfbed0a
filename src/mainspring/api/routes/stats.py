"""Figures over time, and acting on many things at once."""

from typing import Annotated, Literal

from msgspec import Meta

from mainspring.api.context import Api
from mainspring.api.operation import Answer, Call, Nothing, Resource
from mainspring.api.routes.runs import run_states
from mainspring.api.schemas.common import Id, Name, Request, Tags, Text, Time, Wire, given_id, instant_of
from mainspring.domain.access import Permission
from mainspring.domain.errors import Invalid
from mainspring.domain.ids import JobId, RunId
from mainspring.domain.instant import DAY, HOUR, MILLISECOND, MINUTE, Micros, isoformat
from mainspring.domain.job import JobState
from mainspring.domain.run import ENDED, RunState
from mainspring.ports.access import Author
from mainspring.ports.catalog import JobFilter, Minute, RunFilter

stats = Resource("Statistics", "Series for charts.")
bulk = Resource("Bulk", "The same done to many jobs or runs, chosen by a filter.")

_AT_ONCE = 10_000
_ON_ITS_WAY = frozenset(set(RunState) - ENDED)
_STEPS: dict[str, Micros] = {"1m": MINUTE, "5m": 5 * MINUTE, "15m": 15 * MINUTE, "1h": HOUR, "1d": DAY}


class StatsQuery(Request):
    since: Time | None = None
    until: Time | None = None
    step: Literal["1m", "5m", "15m", "1h", "1d"] = "1m"
    queue: Name | None = None
    tenant: Name | None = None


class Point(Wire):
    """What ended from this moment on, for one step."""

    time: str
    succeeded: int
    failed: int
    cancelled: int
    skipped: int
    retried: int
    late_ms_mean: float
    late_ms_max: float
    took_ms_mean: float
    took_ms_max: float


class Stats(Wire):
    step: str
    points: list[Point]
    queued: int
    running: int


class BulkIn(Request):
    """What to do, and to which. At least one filter, or `everything`."""

    action: Literal["pause", "resume", "cancel", "retag"]
    target: Literal["jobs", "runs"] = "jobs"
    """Recurring jobs, or runs (one-off jobs are runs)."""
    status: Annotated[str, Meta(max_length=200)] | None = None
    job_id: Id | None = None
    task: Name | None = None
    queue: Name | None = None
    tag: Name | None = None
    text: Annotated[str, Meta(max_length=200)] | None = None
    created_after: Time | None = None
    created_before: Time | None = None
    everything: bool = False
    tenant: Name | None = None
    """Only of this one, where the filter would reach several."""
    add_tags: Tags = ()
    remove_tags: Tags = ()
    dry_run: bool = False
    why: Text = ""


class BulkOut(Wire):
    action: str
    matched: int
    changed: int
    more: bool
    """There are more than one request deals with: ask again."""
    dry_run: bool
    sample: list[str]
    """The first hundred ids."""


@stats.operation("GET", "/v1/stats", permission=Permission.READ, query=StatsQuery, answers={200: Stats})
async def get_stats(api: Api, call: Call[Nothing, StatsQuery]) -> Answer:
    """What ended when, how late it began and how long it took; and what is queued and running now.

    The last hour unless `since` says otherwise. What ended within the last quarter of a minute may be missing.
    """
    query = call.query
    tenant = api.scope(call.principal, query.tenant)
    step = _STEPS[query.step]
    now = await api.store.now()
    until = instant_of(query.until, "until") or now
    since = instant_of(query.since, "since")
    since = until - HOUR if since is None else since
    if since >= until or (until - since) // step > 10_000:
        raise Invalid("since", "gives no points, or more than 10000", "a later since, or a larger step")
    grouped: dict[int, list[Minute]] = {}
    for minute in await api.listed_by(call.principal).minutes(tenant, since, until):
        if query.queue in (None, minute.queue):
            grouped.setdefault(minute.at // step * step, []).append(minute)
    depths = [depth for depth in await api.seen_by(call.principal).depths(tenant) if query.queue in (None, depth.queue)]
    out = Stats(
        step=query.step,
        points=[_point(at, grouped.get(at, [])) for at in range(since // step * step, until, step)],
        queued=sum(depth.queued for depth in depths),
        running=sum(depth.running for depth in depths),
    )
    return Answer(200, out)


@bulk.operation("POST", "/v1/bulk", permission=Permission.OPERATE, body=BulkIn, answers={200: BulkOut}, within=None)
async def act_on_many(api: Api, call: Call[BulkIn, Nothing]) -> Answer:
    """Pause, resume, cancel or retag what a filter finds. `dryRun` says what it would be."""
    body = call.body
    if not body.everything and not any(
        (body.status, body.job_id, body.task, body.queue, body.tag, body.text, body.created_after, body.created_before)
    ):
        raise Invalid("everything", "nothing says which are meant", "a filter, or everything: true")
    if body.action == "retag" and not (body.add_tags or body.remove_tags):
        raise Invalid("addTags", "is missing", "addTags, removeTags or both")
    if body.queue is not None:
        api.reach(call.principal, body.queue)
    if body.target == "runs":
        return await _on_runs(api, call)
    return await _on_jobs(api, call)


async def _on_jobs(api: Api, call: Call[BulkIn, Nothing]) -> Answer:
    body = call.body
    if body.job_id is not None:
        raise Invalid("jobId", "is for runs", 'target "runs"')
    try:
        states = frozenset(JobState(word.strip()) for word in (body.status or "").split(",") if word.strip())
    except ValueError:
        raise Invalid("status", f"{body.status!r} is no status of a job", ", ".join(JobState)) from None
    wanted = JobFilter(
        tenant=api.scope(call.principal, body.tenant),
        states=states or frozenset({JobState.SCHEDULED, JobState.PAUSED}),
        task=body.task or "",
        queue=body.queue or "",
        tag=body.tag or "",
        text=body.text or "",
        since=instant_of(body.created_after, "createdAfter"),
        until=instant_of(body.created_before, "createdBefore"),
    )
    found: list[JobId] = []
    after: JobId | None = None
    more = False
    while len(found) < _AT_ONCE:
        page = await api.seen_by(call.principal).list_jobs(wanted, after, 1_000)
        found += [job.id for job in page.items if call.principal.reaches([job.spec.queue])]
        if page.after is None:
            break
        after = JobId(page.after)
    else:
        more = True
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


async def _on_runs(api: Api, call: Call[BulkIn, Nothing]) -> Answer:
    body = call.body
    if body.action in ("pause", "resume"):
        raise Invalid("action", f"runs cannot be {body.action}d", "pause their queue, or their job")
    wanted = RunFilter(
        tenant=api.scope(call.principal, body.tenant),
        states=run_states(body.status) or (_ON_ITS_WAY if body.action == "cancel" else frozenset()),
        job=None if body.job_id is None else JobId(given_id(body.job_id, "jobId")),
        task=body.task or "",
        queue=body.queue or "",
        tag=body.tag or "",
        text=body.text or "",
        since=instant_of(body.created_after, "createdAfter"),
        until=instant_of(body.created_before, "createdBefore"),
    )
    found: list[RunId] = []
    after: RunId | None = None
    more = False
    while len(found) < _AT_ONCE:
        page = await api.seen_by(call.principal).list_runs(wanted, after, 1_000)
        found += [run.id for run in page.items if call.principal.reaches([run.queue])]
        if page.after is None:
            break
        after = RunId(page.after)
    else:
        more = True
    changed = 0
    if not body.dry_run:
        author = Author(call.principal.name, call.principal.tenant, body.why)
        if body.action == "cancel":
            for start in range(0, len(found), 1_000):
                states = await api.jobs.cancel_runs(found[start : start + 1_000], author)
                changed += sum(state in (RunState.CANCELLED, RunState.CANCELLING) for state in states.values())
        else:
            changed = await api.store.retag(found, body.add_tags, body.remove_tags, author)
    return Answer(200, _bulk_out(body, found, changed, more))


def _bulk_out(body: BulkIn, found: list[JobId] | list[RunId], changed: int, more: bool) -> BulkOut:
    return BulkOut(
        action=body.action,
        matched=len(found),
        changed=changed,
        more=more,
        dry_run=body.dry_run,
        sample=[str(item) for item in found[:100]],
    )


def _point(at: int, minutes: list[Minute]) -> Point:
    started = sum(minute.started for minute in minutes) or 1
    return Point(
        time=isoformat(at),
        succeeded=sum(minute.succeeded for minute in minutes),
        failed=sum(minute.failed for minute in minutes),
        cancelled=sum(minute.cancelled for minute in minutes),
        skipped=sum(minute.skipped for minute in minutes),
        retried=sum(minute.retried for minute in minutes),
        late_ms_mean=round(sum(minute.late_total for minute in minutes) / started / MILLISECOND, 3),
        late_ms_max=max((minute.late_most for minute in minutes), default=0) / MILLISECOND,
        took_ms_mean=round(sum(minute.took_total for minute in minutes) / started / MILLISECOND, 3),
        took_ms_max=max((minute.took_most for minute in minutes), default=0) / MILLISECOND,
    )
