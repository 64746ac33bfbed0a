"""HTTP operation for a part of a large workflow: the nodes that need attention, and their neighbors."""

import asyncio
from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta

from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.ids import RunId, made_at
from mainspring.core.model.base.instant import MINUTE, isoformat
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.workflows.workflow import MAX_NODES, build_workflow_tag, compute_state, newest
from mainspring.core.ports.storage.catalog import Reads, Standings
from mainspring.http.context import Api
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.problems import ObjectNotFound, Problem
from mainspring.http.schemas.common import Limit, Request, parse_id
from mainspring.http.schemas.status_words import run_states
from mainspring.http.schemas.workflows import WorkflowPart, render_node

workflow_parts = Resource("Workflows")

#: The order of states if there is no room for all nodes.
_RANKS = {
    state: rank
    for rank, state in enumerate(
        (
            RunState.FAILED,
            RunState.RUNNING,
            RunState.CANCELLING,
            RunState.QUEUED,
            RunState.SCHEDULED,
            RunState.BLOCKED,
            RunState.CANCELLED,
            RunState.SKIPPED,
            RunState.SUCCEEDED,
        )
    )
}
#: For how many nodes the neighbors are read, with two queries each; and how many neighbors on each side.
_MAX_EXPANDED = 4
_MAX_NEIGHBORS = 20
#: A node has one run for each retry.
_MAX_RUNS = 2 * MAX_NODES


class PartQuery(Request):
    limit: Limit = 200
    status: Annotated[str, Meta(max_length=200, description="List nodes with one of these states first.")] | None = None
    around: (
        Annotated[str, Meta(max_length=40, description="The run of a node, to list with its neighbors. ")] | None
    ) = None


class _WorkflowNodes:
    """The nodes of a workflow, by their newest runs and states."""

    def __init__(self, found: Standings) -> None:
        self._replays = found.replays
        self._replayed = {new: old for old, new in found.replays.items()}
        #: The nodes of each state, oldest first, in the order of submission.
        self.nodes = {
            state: [run for run in reversed(runs) if run not in found.replays] for state, runs in found.runs.items()
        }
        self.ids = {run for runs in self.nodes.values() for run in runs}

    def list_with_replayed(self, run: RunId) -> list[RunId]:
        """Return the run and those that it replays: neighbors may depend on any of them."""
        found = [run]
        while found[-1] in self._replayed:
            found.append(self._replayed[found[-1]])
        return found

    def current(self, runs: Iterable[RunId]) -> list[RunId]:
        """Return those of the runs that are nodes. A retried run is replaced by its newest one."""
        found = []
        for run in runs:
            newer = run
            while newer in self._replays:
                newer = self._replays[newer]
            found.append(newer)
        return [run for run in found if run in self.ids]


@workflow_parts.operation(
    "GET",
    "/v1/workflows/{id}/part",
    permission=Permission.READ,
    query=PartQuery,
    answers={200: WorkflowPart, 404: Problem},
)
async def get_workflow_part(api: Api, call: Call[Empty, PartQuery]) -> Answer:
    """Get a part of a workflow that has too many nodes to show.

    Failed nodes come first, then running, waiting, cancelled or skipped, and succeeded ones, with the neighbors of
    the first four. `around` selects a node with its neighbors instead. `total`, `counts` and `status` cover all
    nodes. A workflow of at most `limit` nodes is returned completely.
    """
    workflow = RunId(parse_id(call.path["id"]))
    reads = api.seen_by(call.principal)
    found = await reads.standings(
        call.principal.tenant, build_workflow_tag(workflow), made_at(workflow) - MINUTE, _MAX_RUNS
    )
    workflow_nodes = _WorkflowNodes(found)
    if not workflow_nodes.ids:
        raise ObjectNotFound
    chosen = await _select_runs(reads, workflow_nodes, call.query)
    # The oldest run has the creation time of the workflow.
    read = [run for run in await reads.runs([*chosen, min(workflow_nodes.ids)]) if run is not None]
    # Other runs may carry the same tag.
    mine = [run for run in read if run.about is not None and run.about.workflow == workflow]
    nodes = {name: run for name, run in newest(mine).items() if run.id in chosen}
    some = next(iter(mine), None)
    if some is None or some.about is None:
        raise ObjectNotFound
    counts = {state: len(runs) for state, runs in workflow_nodes.nodes.items() if runs}
    out = WorkflowPart(
        workflow_id=workflow,
        name=some.about.workflow_name,
        status=compute_state(counts),
        tenant=some.tenant,
        created_at=isoformat(min(run.created_at for run in mine)),
        total=len(workflow_nodes.ids),
        counts={state.value: count for state, count in counts.items()},
        nodes=[render_node(name, run) for name, run in nodes.items()],
    )
    return Answer(200, out)


async def _select_runs(reads: Reads, workflow_nodes: _WorkflowNodes, query: PartQuery) -> set[RunId]:
    centre = [] if query.around is None else workflow_nodes.current([RunId(parse_id(query.around))])
    if query.around is not None and not centre:
        raise ObjectNotFound
    if len(workflow_nodes.ids) <= query.limit:
        return workflow_nodes.ids
    if centre:
        near = await _read_neighbors(reads, workflow_nodes, centre)
        return _take_first(
            query.limit, centre, near, await _read_neighbors(reads, workflow_nodes, near[:_MAX_EXPANDED])
        )
    wanted = run_states(query.status)
    ranked = sorted(workflow_nodes.nodes, key=lambda state: (state not in wanted, _RANKS[state]))
    ids = [run for state in ranked for run in workflow_nodes.nodes[state]]
    first = ids[: min(_MAX_EXPANDED, max(query.limit // 4, 1))]
    return _take_first(query.limit, first, await _read_neighbors(reads, workflow_nodes, first), ids)


async def _read_neighbors(reads: Reads, workflow_nodes: _WorkflowNodes, runs: list[RunId]) -> list[RunId]:
    """Return some of the parents and children of these runs, as nodes."""
    asked = [one for run in runs for one in workflow_nodes.list_with_replayed(run)]
    before = await asyncio.gather(*(reads.parent_ids(run) for run in asked))
    behind = await asyncio.gather(*(reads.children(run, None, _MAX_NEIGHBORS) for run in asked))
    ids = [parent for parents in before for parent in parents[:_MAX_NEIGHBORS]]
    return workflow_nodes.current([*ids, *(child.id for children in behind for child in children)])


def _take_first(limit: int, *groups: list[RunId]) -> set[RunId]:
    return set(list(dict.fromkeys(run for group in groups for run in group))[:limit])
