"""Summaries of workflows for their list: the state, the nodes by state and the times."""

from collections import Counter

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import isoformat
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.workflows.workflow import (
    build_workflow_tag,
    compute_state,
    newest,
)
from mainspring.core.ports.storage.catalog import Page as Found
from mainspring.core.ports.storage.catalog import Reads, RunFilter
from mainspring.http.schemas.common import (
    format_time,
)
from mainspring.http.schemas.workflows import (
    WorkflowSummary,
)

#: Nodes read for each workflow in a list, and workflows read at a time. Other requests need connections as well.
MAX_EXAMINED = 200


async def read_chosen(reads: Reads, tenant: str | None, ids: list[RunId]) -> list[WorkflowSummary]:
    """Return summaries of workflows by their ids, without unknown ones."""
    found: list[WorkflowSummary] = []
    for workflow in ids:
        page, runs = await read_newest_nodes(reads, tenant, workflow)
        if runs:
            first = min(runs, key=lambda run: (run.created_at, run.id))
            found.append(summarize(workflow, first, runs, more=page.after is not None))
    return found


async def read_summary(reads: Reads, first: RunView) -> WorkflowSummary:
    workflow = RunId(get_workflow_id(first) or "")
    page, runs = await read_newest_nodes(reads, first.tenant, workflow)
    return summarize(workflow, first, runs, more=page.after is not None)


async def read_newest_nodes(reads: Reads, tenant: str | None, workflow: RunId) -> tuple[Found[RunView], list[RunView]]:
    page = await reads.list_runs(RunFilter(tenant=tenant, tag=build_workflow_tag(workflow)), None, MAX_EXAMINED)
    return page, [run for run in page.items if get_workflow_id(run) == workflow]


def summarize(workflow: RunId, first: RunView, runs: list[RunView], *, more: bool) -> WorkflowSummary:
    nodes = newest(runs)
    states = [run.state for run in nodes.values()]
    status = compute_state(states)
    begun = [run.started_at for run in nodes.values() if run.started_at is not None]
    ended = [run.finished_at for run in nodes.values() if run.finished_at is not None]
    return WorkflowSummary(
        workflow_id=workflow,
        name=get_workflow_name(first),
        tenant=first.tenant,
        created_at=isoformat(first.created_at),
        status=None if more and status != "running" else status,
        nodes=len(nodes),
        more=more,
        counts=dict(Counter(state.value for state in states)),
        start_time=format_time(min(begun, default=None)),
        end_time=None if more or status == "running" else format_time(max(ended, default=None)),
    )


def get_workflow_id(run: RunView) -> str | None:
    return None if run.about is None else run.about.workflow


def get_workflow_name(run: RunView) -> str:
    return "" if run.about is None else run.about.workflow_name
