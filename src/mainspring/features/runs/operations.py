"""HTTP operations on runs: the executions of jobs."""

from typing import Annotated

import msgspec
from msgspec import Meta

from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.errors import Conflict
from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.explain.runs import explain
from mainspring.core.model.runs.run import ENDED, RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import LOG_END, RunFilter
from mainspring.http.context import Api
from mainspring.http.jobs.explain_facts import collect_facts
from mainspring.http.jobs.lookup import find_job, find_newest_started, find_run, list_parents
from mainspring.http.jobs.reading import build_idempotency
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.problems import Problem, RequestError
from mainspring.http.rendering.runs import render_line, render_reason, render_run
from mainspring.http.schemas.common import (
    Cursor,
    Id,
    Ids,
    Limit,
    Name,
    Page,
    Request,
    Time,
    Wire,
    format_time,
    parse_cursor,
    parse_given_id,
    parse_ids,
    parse_time,
    render_page,
)
from mainspring.http.schemas.runs import Explanation, LogLineOut, RunMade, RunOut
from mainspring.http.schemas.status_words import run_states
from mainspring.http.search import Search

runs = Resource("Runs", "Single executions: of a one-off job, of a tick, of a manual run or of a backfill.")


class ListRunsQuery(Request):
    status: Annotated[str, Meta(max_length=200, description="One or several states, comma-separated.")] | None = None
    job_id: Id | None = None
    ids: Ids | None = None
    task: Name | None = None
    queue: Name | None = None
    tag: Name | None = None
    tenant: Name | None = None
    text: Annotated[str, Meta(max_length=200)] | None = None
    created_after: Time | None = None
    created_before: Time | None = None
    limit: Limit = 50
    cursor: Cursor | None = None


class LogQuery(Request):
    after: Annotated[int, Meta(ge=0, le=2**62, description="Only lines with a greater position.")] = 0
    limit: Limit = 500
    url: Annotated[bool, Meta(description="Return the address of the whole log instead of its lines.")] = False


class LogPageQuery(LogQuery):
    before: Annotated[int, Meta(ge=0, le=LOG_END, description="Only lines with a smaller position.")] = LOG_END
    last: Annotated[bool, Meta(description="Return the last of these lines instead of the first.")] = False


class RetryIn(Request):
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class LogPage(Wire):
    run_id: str
    items: list[LogLineOut]
    next_after: int
    ended: bool = False
    """The run has ended and no lines follow."""
    url: str | None = None
    """An address where anyone can read the whole log for five minutes: JSON lines, gzip. `items` is then empty."""


class CancelRunOut(Wire):
    run_id: str
    status: str


@runs.operation("GET", "/v1/runs", permission=Permission.READ, query=ListRunsQuery, answers={200: Page[RunOut]})
async def list_runs(api: Api, call: Call[Empty, ListRunsQuery]) -> Answer:
    """List runs, newest first.

    A run must match every filter. `searchedBackTo` is set if the search took too long to fill the page; pass
    `nextCursor` as `cursor` to continue it.
    """
    query = call.query
    if query.ids is not None:
        ids = [RunId(run) for run in parse_ids(query, query.ids)]
        found = await api.listed_by(call.principal).runs(ids)
        return Answer(200, Page(items=[render_run(run) for run in found if run is not None]))
    page = await Search(api.clock).runs(
        api.listed_by(call.principal),
        RunFilter(
            tenant=api.choose_listed(call.principal, query.tenant),
            states=run_states(query.status),
            job=None if query.job_id is None else JobId(parse_given_id(query.job_id, "jobId")),
            task=query.task or "",
            queue=query.queue or "",
            tag=query.tag or "",
            text=query.text or "",
            since=parse_time(query.created_after, "createdAfter"),
            until=parse_time(query.created_before, "createdBefore"),
        ),
        parse_cursor(query.cursor),
        query.limit,
    )
    return Answer(200, render_page([render_run(run) for run in page.items], page.after, query.limit))


@runs.operation("GET", "/v1/runs/{id}", permission=Permission.READ, answers={200: RunOut, 404: Problem})
async def get_run(api: Api, call: Call[Empty, Empty]) -> Answer:
    """Get a run with its payload, its result and its attempts.

    404: the run does not exist, was deleted by retention, or your key has no access to it.
    """
    run = await find_run(api, call, payload=True)
    attempts = await api.seen_by(call.principal).attempts(run.id)
    parents = await list_parents(api, call.principal, run)
    ticks = 0.0 if api.tracing is None else api.tracing.ratio
    return Answer(200, render_run(run, attempts=attempts, parents=parents or None, traced_ticks=ticks))


@runs.operation(
    "POST",
    "/v1/runs/{id}/cancel",
    permission=Permission.OPERATE,
    answers={200: CancelRunOut, 202: CancelRunOut, 404: Problem, 409: Problem},
)
async def cancel_run(api: Api, call: Call[Empty, Empty]) -> Answer:
    """Cancel a run.

    A run that waits is cancelled at once. 202: the run is active, and its worker was asked to stop it. 409: the run
    has already ended.
    """
    run = await find_run(api, call)
    state = (await api.jobs.cancel_runs([run.id], Author(call.principal.name, run.tenant))).get(run.id, run.state)
    if state in ENDED - {RunState.CANCELLED}:
        raise Conflict(f"the run has already {state.value}")
    return Answer(200 if state is RunState.CANCELLED else 202, CancelRunOut(run_id=run.id, status=state.value))


@runs.operation(
    "POST",
    "/v1/runs/{id}/retry",
    permission=Permission.OPERATE,
    body=RetryIn,
    body_optional=True,
    answers={201: RunMade, 404: Problem, 409: Problem},
)
async def retry_run(api: Api, call: Call[RetryIn, Empty]) -> Answer:
    """Run an ended run again, as a new run linked to it.

    The payload of the old run is used unless you send another. A request with the same header `Idempotency-Key`
    creates no second run. 409: the run has not ended.
    """
    run = await find_run(api, call, payload=True)
    if run.state not in ENDED:
        raise Conflict(f"the run is {run.state.value}; only an ended run can be retried")
    payload = run.payload if call.body.payload is msgspec.UNSET else bytes(call.body.payload)
    replay = api.build_replay(run, payload, call.principal.name)
    edited = None if call.body.payload is msgspec.UNSET else call.body.payload
    key = build_idempotency(call.headers.get("idempotency-key"), [run.id, "retry", edited])
    replay = msgspec.structs.replace(replay, idempotency=key)
    await api.admission.admit_run(call.principal, replay)
    accepted = await api.jobs.submit(replay)
    if accepted.conflict:
        raise Conflict(f"this idempotency key was used for another request, {accepted.id}", accepted.id)
    out = RunMade(job_id=run.job_id or accepted.id, run_id=accepted.id, status=accepted.state.value)
    return Answer(201, out, {"location": f"/v1/runs/{accepted.id}"})


@runs.operation("GET", "/v1/runs/{id}/explain", permission=Permission.READ, answers={200: Explanation, 404: Problem})
async def explain_run(api: Api, call: Call[Empty, Empty]) -> Answer:
    """Explain why a run is in its current state.

    Returns the reasons as sentences and as data, what you can do about them, and for a queued run its position and
    its estimated start.
    """
    run = await find_run(api, call)
    facts = await collect_facts(api, run)
    found = explain(run, facts)
    return Answer(
        200,
        Explanation(
            run_id=run.id,
            status=run.state.value,
            reasons=found.reasons,
            hints=found.hints,
            because=[render_reason(reason) for reason in found.because],
            position=facts.ahead if run.state is RunState.QUEUED else None,
            estimated_start=format_time(found.estimated_start),
        ),
    )


@runs.operation(
    "GET",
    "/v1/runs/{id}/logs",
    permission=Permission.READ,
    query=LogPageQuery,
    answers={200: LogPage, 404: Problem, 409: Problem},
)
async def run_logs(api: Api, call: Call[Empty, LogPageQuery]) -> Answer:
    """Get the log output of a run.

    Returns lines after the position `after`, or the last lines with `last`. With `url`, returns the address of the
    whole log instead; 409 if the log is not in a bucket.
    """
    run = await find_run(api, call)
    return Answer(200, await _read_log_page(api, run, call.query))


@runs.operation(
    "GET",
    "/v1/jobs/{id}/logs",
    permission=Permission.READ,
    query=LogPageQuery,
    answers={200: LogPage, 404: Problem, 409: Problem},
)
async def job_logs(api: Api, call: Call[Empty, LogPageQuery]) -> Answer:
    """Get the log output of the newest run of a job.

    Returns an empty page if no run has started. The parameters are those of the logs of a run.
    """
    found = await find_job(api, call)
    newest = await find_newest_started(api, call, found)
    if newest is None and isinstance(found, RunView):
        newest = found
    if newest is None:
        if call.query.url:
            raise _build_no_url_error("the job has not run yet")
        return Answer(200, LogPage(run_id="", items=[], next_after=0))
    return Answer(200, await _read_log_page(api, newest, call.query))


@runs.operation(
    "GET",
    "/v1/runs/{id}/logs/follow",
    permission=Permission.READ,
    query=LogQuery,
    answers={200: str, 404: Problem},
    media_type="text/event-stream",
    streams=True,
)
async def follow_logs(api: Api, call: Call[Empty, LogQuery]) -> Answer:
    """Follow the log output of a run as server-sent events.

    Lines arrive within about a second, and the stream ends with the run. Send `Last-Event-ID` to continue after a
    broken connection.
    """
    run = await find_run(api, call)
    last = call.headers.get("last-event-id", "")
    after = int(last) if last.isascii() and last.isdigit() and len(last) < 19 else call.query.after
    return Answer(200, api.open_stream(call.principal, api.tail.follow(run, after)))


async def _read_log_page(api: Api, run: RunView, query: LogPageQuery) -> LogPage:
    if query.url:
        url = await api.logs.url(run)
        if url is None:
            why = "the run has not ended" if run.state not in ENDED else "this log is not in a bucket"
            raise _build_no_url_error(why)
        return LogPage(run_id=run.id, items=[], next_after=query.after, ended=True, url=url)
    if query.last:
        found = await api.logs.lines_before(run, query.before, query.limit)
    else:
        found = await api.logs.lines(run, query.after, query.limit)
    lines = [line for line in found if query.after < line.position < query.before]
    is_last_page = query.before == LOG_END and (query.last or len(lines) < query.limit)
    return LogPage(
        run_id=run.id,
        items=[render_line(line) for line in lines],
        next_after=lines[-1].position if lines else query.after,
        ended=run.state in ENDED and is_last_page,
    )


def _build_no_url_error(why: str) -> RequestError:
    hint = "omit url to read the lines; the settings run_logs.* store the logs of ended runs in a bucket"
    return RequestError(409, "No address", f"the log has no address: {why}", hint=hint)
