"""Pages of workflows: list, inspect, cancel and retry them."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.workflows.workflow import build_workflow_tag
from mainspring.features.workflows.graph import GraphNode, lay_out
from mainspring.features.workflows.operations.parts import get_workflow_part
from mainspring.features.workflows.operations.workflows import cancel_workflow, list_workflows, retry_workflow
from mainspring.http.schemas.workflows import NodeOut, WorkflowPart
from mainspring.web.formatting import duration, instant, plural
from mainspring.web.live_lists import read_live_list
from mainspring.web.page import ActionReply, Pages, Reply, Visit

workflows = Pages()

_PAGE = 20
#: How many nodes are read and drawn. Of a larger workflow, only the most relevant ones are drawn.
_MAX_DRAWN = 200
#: How many nodes are listed, failed ones first: in general, and if the workflow is too large to be drawn whole.
_LISTED, _LISTED_OF_MORE = 200, 100
#: How many dependencies of a node are named.
_MAX_NAMED = 20
_WIDTH = 1_000
_MIN_BAR_WIDTH = 4.0
_MARKS = 4
_ORDER = ("failed", "running", "cancelling", "retrying", "queued", "scheduled", "blocked", "cancelled", "skipped")

_STATES = frozenset(state.value for state in RunState)


class WorkflowsQuery(msgspec.Struct, frozen=True):
    text: str = ""
    cursor: str = ""


class WorkflowQuery(msgspec.Struct, frozen=True):
    status: str = ""
    #: The run of a node. It is drawn with its neighbors if the workflow is too large to be drawn whole.
    around: str = ""


class Bar(NamedTuple):
    """A node on the timeline, which is 1,000 units wide."""

    node: NodeOut
    state: str
    #: The time between the node being ready and its start.
    waited_x: float
    waited: float
    x: float
    width: float
    words: str


@workflows.page("GET", "/workflows", permission=Permission.READ, query=WorkflowsQuery)
async def show_workflows(visit: Visit[WorkflowsQuery]) -> Reply:
    given = msgspec.structs.asdict(visit.query)
    listed = await read_live_list(
        visit, list_workflows, {**given, "limit": _PAGE}, lambda workflow: str(workflow.workflow_id)
    )
    return visit.show("workflows/list.html", page=listed.page, items=listed.items, fresh=listed.fresh, given=given)


@workflows.page("GET", "/workflows/{id}", permission=Permission.READ, query=WorkflowQuery)
async def show_workflow(visit: Visit[WorkflowQuery]) -> Reply:
    query = visit.query
    # "retrying" is a status of the dashboard only; the API does not know it.
    status = query.status if query.status in _STATES else ""
    found: WorkflowPart = await visit.ask(
        get_workflow_part, path=visit.path, query={"limit": _MAX_DRAWN, "status": status, "around": query.around}
    )
    states = {node.name: get_state(node) for node in found.nodes}
    left_out = found.total - len(found.nodes)
    drawing = lay_out([GraphNode(node.name, node.task, states[node.name], node.after) for node in found.nodes])
    bars, marks = build_timeline(found, states, visit.now)
    chosen = [node for node in found.nodes if query.status in ("", states[node.name])]
    listed = _LISTED_OF_MORE if left_out else _LISTED
    if len(chosen) > listed:
        chosen.sort(key=lambda node: _get_rank(states[node.name]))
    counts = found.counts if left_out else Counter(states.values())
    return visit.show(
        "workflows/detail.html",
        workflow=found,
        states=states,
        by_name={node.name: node for node in found.nodes},
        counts={name: counts[name] for name in (*_ORDER, "succeeded") if counts.get(name)},
        left_out=left_out,
        centre=next((node for node in found.nodes if left_out and node.run_id == query.around), None),
        drawing=drawing,
        bars=bars[:listed],
        more_bars=max(len(bars) - listed, 0),
        marks=marks,
        nodes=chosen[:listed],
        more_nodes=max(len(chosen) - listed, 0) + left_out,
        named=_MAX_NAMED,
        given=msgspec.structs.asdict(query),
        tag=build_workflow_tag(RunId(found.workflow_id)),
        reasons=_read_reasons(found),
        ended=found.status != "running",
    )


@workflows.page("POST", "/workflows/{id}/cancel", permission=Permission.OPERATE)
async def do_cancel(visit: Visit[Any]) -> Reply:
    cancelled = await visit.ask(cancel_workflow, path=visit.path)
    words = f"{plural(cancelled.cancelled, 'node')} cancelled."
    return ActionReply(words=words, to=f"workflows/{visit.path['id']}")


@workflows.page("POST", "/workflows/{id}/retry", permission=Permission.OPERATE)
async def do_retry(visit: Visit[Any]) -> Reply:
    node = visit.form.get("node", "")
    made = await visit.ask(retry_workflow, path=visit.path, body={"node": node} if node else None)
    words = f"{plural(len(made.nodes), 'node')} retried."
    return ActionReply(words=words, to=f"workflows/{visit.path['id']}")


def _read_reasons(found: WorkflowPart) -> dict[str, str]:
    """Return the reason for each node's status: its error, or the API's reason with run ids replaced by node names."""
    names = {node.run_id: node.name for node in found.nodes}
    return {
        node.name: node.error or " ".join(names.get(word, word) for word in node.reason.split()) for node in found.nodes
    }


def get_state(node: NodeOut) -> str:
    """Return the status of a node, or "retrying" if it waits for another attempt. The API has no such status."""
    waits = node.status in ("scheduled", "queued", "blocked")
    return "retrying" if waits and node.attempt_number > 0 else node.status


def _get_rank(state: str) -> int:
    return _ORDER.index(state) if state in _ORDER else len(_ORDER)


def build_timeline(found: WorkflowPart, states: dict[str, str], now: Instant) -> tuple[list[Bar], list[str]]:
    """Build the bars of the nodes that have started, in that order, and the labels of the time axis."""
    begun = [(instant(node.start_time), node) for node in found.nodes if node.start_time is not None]
    if not begun:
        return [], []
    begun.sort(key=lambda one: (one[0], one[1].name))
    ends = {node.name: now if node.end_time is None else instant(node.end_time) for _, node in begun}
    ready = {node.name: _get_ready_at(node, ends, instant(found.created_at)) for _, node in begun}
    first = min(min(ready.values()), begun[0][0])
    whole = max(max(ends.values()) - first, 1)

    def place(moment: Instant) -> float:
        return round((moment - first) / whole * _WIDTH, 1)

    bars = []
    for start, node in begun:
        width = max(place(ends[node.name]) - place(start), _MIN_BAR_WIDTH)
        x = min(place(start), _WIDTH - width)
        waited_x = min(place(ready[node.name]), x)
        took = duration((ends[node.name] - start) / 1e6)
        words = f"{states[node.name]}, took {took}, waited {duration(max(start - ready[node.name], 0) / 1e6)}"
        bars.append(Bar(node, states[node.name], waited_x, round(x - waited_x, 1), round(x, 1), round(width, 1), words))
    marks = [duration(whole * number / _MARKS / 1e6) if number else "0" for number in range(_MARKS + 1)]
    return bars, marks


def _get_ready_at(node: NodeOut, ends: dict[str, Instant], made: Instant) -> Instant:
    """Return when the node became ready: its last dependency had ended, or the workflow was created if it has none."""
    before: Sequence[Instant] = [ends[name] for name in node.after if name in ends]
    start = instant(node.start_time or "")
    return min(max(before, default=made), start)
