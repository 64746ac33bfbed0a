"""HTTP operations on workflows: jobs that are submitted together, some of which depend on others."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta

from mainspring.core.model.access.access import Permission, Principal
from mainspring.core.model.base.errors import Conflict, Invalid
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import isoformat
from mainspring.core.model.runs.new_run import Idempotency, NewRun, fingerprint_of_request
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.tasks.task_entry import TaskEntry
from mainspring.core.model.workflows.workflow import (
    FIRST_TAG,
    Node,
    build_workflow_tag,
    compute_state,
    newest,
    retried,
    to_retry,
    wired,
)
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.answers import SubmitResult
from mainspring.core.ports.storage.catalog import Page as Found
from mainspring.core.ports.storage.catalog import RunFilter
from mainspring.features.workflows.operations.summaries import (
    get_workflow_id,
    get_workflow_name,
    read_chosen,
    read_summary,
)
from mainspring.http.context import Api
from mainspring.http.jobs.lookup import find_run
from mainspring.http.jobs.reading import check_key, explain_past_time
from mainspring.http.jobs.submission import KEY_HEADER
from mainspring.http.live_workers import MOST_WARNINGS
from mainspring.http.operation import Answer, Body, Call, Empty, Query, Resource
from mainspring.http.plans.workflow import build_node, name_node
from mainspring.http.problems import ObjectNotFound, Problem, RequestFieldError
from mainspring.http.rendering.runs import render_run
from mainspring.http.schemas.common import (
    Cursor,
    Ids,
    Name,
    Page,
    PageQuery,
    Request,
    parse_cursor,
    parse_id,
    parse_ids,
    render_page,
)
from mainspring.http.schemas.runs import RunOut
from mainspring.http.schemas.workflows import (
    NodeIn,
    WorkflowIn,
    WorkflowMade,
    WorkflowOut,
    WorkflowRetryIn,
    WorkflowStopped,
    WorkflowSummary,
    render_node,
)
from mainspring.http.search import Search

workflows = Resource("Workflows")

_PAGE = 1_000
_BATCH = 5


class ListWorkflowsQuery(Request):
    text: Annotated[str, Meta(max_length=200, description="A part of the name.")] | None = None
    ids: Ids | None = None
    tenant: Name | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    cursor: Cursor | None = None


@workflows.operation(
    "POST",
    "/v1/workflows",
    permission=Permission.SUBMIT,
    body=WorkflowIn,
    answers={201: WorkflowMade, 409: Problem},
    largest_body=32 * 1024 * 1024,
    within=None,
    example={
        "name": "nightly import",
        "nodes": {"download": {"task": "download"}, "load": {"task": "load", "after": ["download"]}},
    },
)
async def create_workflow(api: Api, call: Call[WorkflowIn, Empty]) -> Answer:
    """Create a workflow of up to 10,000 jobs.

    The jobs are committed together or not at all. A request with the same `idempotencyKey` and the same body
    creates no second workflow; with another body it is a 409.
    """
    requested, author = call.body, call.principal.name
    tenant = await api.choose_owner(call.principal, requested.tenant)
    key = _choose_key(requested, call.headers.get(KEY_HEADER))
    known = await api.catalog.entries()
    nodes = [_build_node(api, name, declared, tenant, author, known) for name, declared in requested.nodes.items()]
    workflow, *ids = api.jobs.new_run_ids(["", *(node.run.policy.ordering_key for node in nodes)], tenant=tenant)
    runs = wired(workflow, requested.name, nodes, ids)
    if key is not None:
        runs = _add_keys(runs, key, requested)
    for node, run in zip(nodes, runs, strict=True):
        try:
            run.check()
            await api.admission.check(call.principal, tenant, run.queue, run.task, run.payload, None)
        except Invalid as error:
            raise name_node(node.name, error) from None
    admitted = await api.admission.admit_runs(tenant, len(runs))
    if admitted.count < len(runs) and admitted.reason is not None:
        raise admitted.reason
    accepted = await api.jobs.submit_whole(runs)
    if any(answer.conflict for answer in accepted) or len({answer.new for answer in accepted}) > 1:
        # Another workflow has this key. Runs that were just created for nodes which it lacks must not start.
        await api.jobs.cancel_runs([answer.id for answer in accepted if answer.new and not answer.conflict])
        raise Conflict(f"this idempotency key was used for another request, {accepted[0].id}", accepted[0].id)
    if not accepted[0].new:
        first = (await api.store.seen_by(tenant).runs([accepted[0].id]))[0]
        if first is not None and first.about is not None and first.about.workflow is not None:
            workflow = first.about.workflow
    return _created_out(workflow, requested.name, runs, accepted, await _list_warnings(api, runs))


@workflows.operation(
    "GET", "/v1/workflows", permission=Permission.READ, query=ListWorkflowsQuery, answers={200: Page[WorkflowSummary]}
)
async def list_workflows(api: Api, call: Call[Empty, ListWorkflowsQuery]) -> Answer:
    """List workflows, newest first.

    The status of a workflow is derived from its newest 200 nodes.
    """
    reads, limit = api.listed_by(call.principal), call.query.limit
    if call.query.ids is not None:
        ids = parse_ids(call.query, call.query.ids)
        return Answer(200, Page(items=await read_chosen(reads, call.principal.tenant, [RunId(one) for one in ids])))
    tenant = api.choose_listed(call.principal, call.query.tenant)
    wanted = RunFilter(tenant=tenant, tag=FIRST_TAG, text=call.query.text or "")

    async def read(after: str | None, limit: int) -> Found[RunView]:
        page = await reads.list_runs(wanted, None if after is None else RunId(after), limit)
        # Other runs may have the tag, too. Skip retries, so that a retried first node keeps the workflow's position.
        return Found(
            [run for run in page.items if get_workflow_id(run) is not None and run.replay_of is None], page.after
        )

    page = await Search(api.clock).fill(read, parse_cursor(call.query.cursor), limit)
    found = page.items
    items: list[WorkflowSummary] = []
    for start in range(0, len(found), _BATCH):
        items += await asyncio.gather(*(read_summary(reads, run) for run in found[start : start + _BATCH]))
    return Answer(200, render_page(items, page.after, limit))


@workflows.operation(
    "GET",
    "/v1/workflows/{id}",
    permission=Permission.READ,
    query=PageQuery,
    answers={200: WorkflowOut, 404: Problem},
)
async def get_workflow(api: Api, call: Call[Empty, PageQuery]) -> Answer:
    """Get a workflow with its nodes, their dependencies and their states.

    The nodes are in the order of the request that created them, each with its newest run. `counts` and `status`
    cover all nodes on every page. Later pages show the workflow as it was for the first page, for 30 seconds.
    """
    cursor = call.query.cursor or "0"
    if not cursor.isascii() or not cursor.isdigit() or len(cursor) > 9:
        raise RequestFieldError("cursor", "is not a cursor", "`nextCursor` of the previous page")
    start, stop = int(cursor), int(cursor) + call.query.limit
    key = (call.principal.tenant, call.path["id"])
    whole = api.workflows.find(key) if start else None
    if whole is None:
        whole = _workflow_out(call.path["id"], await _read_nodes(api, call))
        if stop < len(whole.nodes):
            # The first page had to read the whole workflow. Keep it, so that later pages do not read it again.
            api.workflows.keep(key, whole, len(whole.nodes))
    following = str(stop) if stop < len(whole.nodes) else None
    return Answer(200, msgspec.structs.replace(whole, nodes=whole.nodes[start:stop], next_cursor=following))


def _workflow_out(workflow: str, nodes: dict[str, RunView]) -> WorkflowOut:
    states = [run.state for run in nodes.values()]
    some = next(iter(nodes.values()))
    return WorkflowOut(
        workflow_id=workflow,
        name=get_workflow_name(some),
        status=compute_state(states),
        tenant=some.tenant,
        created_at=isoformat(min(run.created_at for run in nodes.values())),
        counts=dict(Counter(state.value for state in states)),
        nodes=[render_node(name, run) for name, run in nodes.items()],
    )


@workflows.operation(
    "POST",
    "/v1/workflows/{id}/cancel",
    permission=Permission.OPERATE,
    answers={200: WorkflowStopped, 202: WorkflowStopped, 404: Problem, 409: Problem},
)
async def cancel_workflow(api: Api, call: Call[Empty, Empty]) -> Answer:
    """Cancel the unfinished nodes of a workflow.

    202: some nodes are still being stopped. 409: every node has already ended.
    """
    nodes = await _read_nodes(api, call)
    some = next(iter(nodes.values()))
    left = [run for run in nodes.values() if not run.state.ended]
    if not left:
        raise Conflict(f"the workflow has {compute_state([run.state for run in nodes.values()])} already")
    _check_queues(api, call.principal, left)
    # Cancel blocked runs first, so that none of them starts because a parent was cancelled.
    left.sort(key=lambda run: run.state is not RunState.BLOCKED)
    states = {name: run.state for name, run in nodes.items()}
    names = {run.id: name for name, run in nodes.items()}
    for start in range(0, len(left), _PAGE):
        part = [run.id for run in left[start : start + _PAGE]]
        now = await api.jobs.cancel_runs(part, Author(call.principal.name, some.tenant))
        states |= {names[run]: state for run, state in now.items()}
    stopped = sum(states[names[run.id]] in (RunState.CANCELLED, RunState.CANCELLING) for run in left)
    status = compute_state(list(states.values()))
    out = WorkflowStopped(workflow_id=call.path["id"], status=status, cancelled=stopped)
    return Answer(202 if status == "running" else 200, out)


@workflows.operation(
    "POST",
    "/v1/workflows/{id}/retry",
    permission=Permission.OPERATE,
    body=WorkflowRetryIn,
    body_optional=True,
    answers={201: WorkflowMade, 404: Problem, 409: Problem},
    within=None,
)
async def retry_workflow(api: Api, call: Call[WorkflowRetryIn, Empty]) -> Answer:
    """Retry a workflow from a node, or from every node that failed or was cancelled.

    The node, and its dependents that ended without success, get new runs linked to the old ones. Nodes that
    succeeded are not repeated; their results are reused. 409: the node has not ended, or nothing failed.
    """
    nodes = await _read_nodes(api, call)
    some = next(iter(nodes.values()))
    ids = to_retry(nodes, None if call.body.node is UNSET else call.body.node)
    _check_queues(api, call.principal, [nodes[name] for name in ids])
    payloads: dict[str, bytes | None] = {}
    for start in range(0, len(ids), _PAGE):
        part = ids[start : start + _PAGE]
        found = await api.store.seen_by(some.tenant).runs([nodes[name].id for name in part], payloads=True)
        payloads |= {name: None if run is None else run.payload for name, run in zip(part, found, strict=True)}
    runs = retried(nodes, payloads, ids, call.principal.name)
    admitted = await api.admission.admit_runs(some.tenant, len(runs))
    if admitted.count < len(runs) and admitted.reason is not None:
        raise admitted.reason
    accepted = await api.jobs.submit_whole(runs)
    return _created_out(
        RunId(call.path["id"]), get_workflow_name(some), runs, accepted, await _list_warnings(api, runs)
    )


@workflows.operation(
    "GET", "/v1/runs/{id}/parents", permission=Permission.READ, answers={200: Page[RunOut], 404: Problem}
)
async def run_parents(api: Api, call: Call[Empty, Empty]) -> Answer:
    """List the runs that a run depends on, with their results.

    In the order of the request that created the run, on one page of up to 1,000. Runs that retention has deleted
    are missing.
    """
    run = await find_run(api, call)
    parents = await api.seen_by(call.principal).parents(run.id) if run.parents else []
    return Answer(200, Page(items=[render_run(parent) for parent in parents]))


@workflows.operation(
    "GET",
    "/v1/runs/{id}/children",
    permission=Permission.READ,
    query=PageQuery,
    answers={200: Page[RunOut], 404: Problem},
)
async def run_children(api: Api, call: Call[Empty, PageQuery]) -> Answer:
    """List the runs that depend on a run, by id.

    Pass `nextCursor` as `cursor` to get the next page.
    """
    run = await find_run(api, call)
    after = parse_cursor(call.query.cursor)
    limit = call.query.limit
    found = await api.seen_by(call.principal).children(run.id, None if after is None else RunId(after), limit + 1)
    shown = found[:limit]
    following = shown[-1].id if len(found) > limit else None
    return Answer(200, Page(items=[render_run(child) for child in shown], next_cursor=following))


async def _read_nodes(api: Api, call: Call[Body, Query]) -> dict[str, RunView]:
    """Return the newest run of each node, in order. Raises ``ObjectNotFound`` for an unknown workflow."""
    workflow = RunId(parse_id(call.path["id"]))
    wanted = RunFilter(tenant=call.principal.tenant, tag=build_workflow_tag(workflow))
    runs: list[RunView] = []
    after: RunId | None = None
    while True:
        page = await api.seen_by(call.principal).list_runs(wanted, after, _PAGE)
        # Other runs may carry the same tag.
        runs += [run for run in page.items if run.about is not None and run.about.workflow == workflow]
        if page.after is None:
            break
        after = RunId(page.after)
    found = newest(runs)
    if not found:
        raise ObjectNotFound
    return found


def _check_queues(api: Api, principal: Principal, runs: list[RunView]) -> None:
    for queue in {run.queue for run in runs}:
        api.admission.check_queue(principal, queue)


def _choose_key(requested: WorkflowIn, header: str | None) -> str | None:
    return check_key(header if requested.idempotency_key is UNSET else requested.idempotency_key, header)


def _build_node(
    api: Api, name: str, declared: NodeIn, tenant: str, author: str, known: Mapping[str, TaskEntry]
) -> Node:
    node = build_node(name, declared, tenant, author, known)
    past = explain_past_time(node.run, api.clock.now())
    if past is not None:
        raise name_node(name, past)
    return node


def _add_keys(runs: list[NewRun], key: str, requested: WorkflowIn) -> list[NewRun]:
    """Give each run an idempotency key derived from the caller's. If one of the runs exists, all of them do."""
    said = fingerprint_of_request(msgspec.json.encode(requested).decode())
    return [
        msgspec.structs.replace(run, idempotency=Idempotency(f"workflow:{_hash(key, number)}", said))
        for number, run in enumerate(runs)
    ]


def _hash(key: str, number: int) -> str:
    return hashlib.blake2b(f"{key}\x1f{number}".encode(), digest_size=16).hexdigest()


async def _list_warnings(api: Api, runs: list[NewRun]) -> list[str]:
    return sorted({warning for run in runs for warning in await api.workers.log_warnings(run)})[:MOST_WARNINGS]


def _created_out(
    workflow: RunId, name: str, runs: list[NewRun], accepted: list[SubmitResult], warnings: list[str]
) -> Answer:
    nodes = {
        run.about.node: str(answer.id) for run, answer in zip(runs, accepted, strict=True) if run.about is not None
    }
    out = WorkflowMade(workflow_id=workflow, name=name, nodes=nodes, warnings=warnings)
    return Answer(201, out, {"location": f"/v1/workflows/{workflow}"})
