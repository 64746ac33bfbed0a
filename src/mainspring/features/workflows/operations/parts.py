"""HTTP operation for a part of a large workflow: the nodes that need attention, and their neighbors."""

import asyncio
from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta

from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.ids import RunId, made_at
from mainspring.core.model.base.instant import MINUTE, isoformat
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.workflows.workflow import MAX_NODES, newest, state_of, tag_of
from mainspring.core.ports.storage.catalog import Reads, Standings
from mainspring.http.context import Api
from mainspring.http.operation import Answer, Call, Nothing, Resource
from mainspring.http.problems import Missing, Problem
from mainspring.http.schemas.common import Limit, Request, known_id
from mainspring.http.schemas.status_words import run_states
from mainspring.http.schemas.workflows import WorkflowPart, node_out

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
_LOOKED_BESIDE = 4
_BESIDE = 20
#: A node has one run for each retry.
_MOST_RUNS = 2 * MAX_NODES


class PartQuery(Request):
    limit: Limit = 200
    status: Annotated[str, Meta(max_length=200, description="Those with one of these go first.")] | None = None
    around: Annotated[str, Meta(max_length=40, description="The run of a node.")] | None = None


class _Whole:
    """The nodes of a workflow, by their newest runs and states."""

    def __init__(self, found: Standings) -> None:
        self._replays = found.replays
        self._replayed = {new: old for old, new in found.replays.items()}
        #: The nodes of each state, oldest first, in the order of submission.
        self.nodes = {
            state: [run for run in reversed(runs) if run not in found.replays] for state, runs in found.runs.items()
        }
        self.ids = {run for runs in self.nodes.values() for run in runs}

    def runs_of(self, run: RunId) -> list[RunId]:
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
async def get_workflow_part(api: Api, call: Call[Nothing, PartQuery]) -> Answer:
    """Get a part of a workflow that has too many nodes to show.

    Failed nodes come first, then running, waiting, cancelled or skipped, and succeeded ones, with the neighbors of
    the first four. `around` selects a node with its neighbors instead. `total`, `counts` and `status` cover all
    nodes. A workflow of at most `limit` nodes is returned completely.
    """
    workflow = RunId(known_id(call.path["id"]))
    reads = api.seen_by(call.principal)
    found = await reads.standings(call.principal.tenant, tag_of(workflow), made_at(workflow) - MINUTE, _MOST_RUNS)
    whole = _Whole(found)
    if not whole.ids:
        raise Missing
    chosen = await _chosen(reads, whole, call.query)
    # The oldest run has the creation time of the workflow.
    read = [run for run in await reads.runs([*chosen, min(whole.ids)]) if run is not None]
    # Other runs may carry the same tag.
    mine = [run for run in read if run.about is not None and run.about.workflow == workflow]
    nodes = {name: run for name, run in newest(mine).items() if run.id in chosen}
    some = next(iter(mine), None)
    if some is None or some.about is None:
        raise Missing
    counts = {state: len(runs) for state, runs in whole.nodes.items() if runs}
    out = WorkflowPart(
        workflow_id=workflow,
        name=some.about.workflow_name,
        status=state_of(counts),
        tenant=some.tenant,
        created_at=isoformat(min(run.created_at for run in mine)),
        total=len(whole.ids),
        counts={state.value: count for state, count in counts.items()},
        nodes=[node_out(name, run) for name, run in nodes.items()],
    )
    return Answer(200, out)


async def _chosen(reads: Reads, whole: _Whole, query: PartQuery) -> set[RunId]:
    centre = [] if query.around is None else whole.current([RunId(known_id(query.around))])
    if query.around is not None and not centre:
        raise Missing
    if len(whole.ids) <= query.limit:
        return whole.ids
    if centre:
        near = await _beside(reads, whole, centre)
        return _first(query.limit, centre, near, await _beside(reads, whole, near[:_LOOKED_BESIDE]))
    wanted = run_states(query.status)
    ranked = sorted(whole.nodes, key=lambda state: (state not in wanted, _RANKS[state]))
    ids = [run for state in ranked for run in whole.nodes[state]]
    first = ids[: min(_LOOKED_BESIDE, max(query.limit // 4, 1))]
    return _first(query.limit, first, await _beside(reads, whole, first), ids)


async def _beside(reads: Reads, whole: _Whole, runs: list[RunId]) -> list[RunId]:
    """Return some of the parents and children of these runs, as nodes."""
    asked = [one for run in runs for one in whole.runs_of(run)]
    before = await asyncio.gather(*(reads.parent_ids(run) for run in asked))
    behind = await asyncio.gather(*(reads.children(run, None, _BESIDE) for run in asked))
    ids = [parent for parents in before for parent in parents[:_BESIDE]]
    return whole.current([*ids, *(child.id for children in behind for child in children)])


def _first(limit: int, *groups: list[RunId]) -> set[RunId]:
    return set(list(dict.fromkeys(run for group in groups for run in group))[:limit])
