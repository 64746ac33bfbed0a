"""Layout of a workflow's drawing, from left to right. Pure functions.

1. A node's layer is the length of the longest path to it.
2. A layer that is too wide has one box for all nodes that are alike: those of one task with the same parent boxes.
3. Long edges get waypoints in the layers between, so that they cross no box.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from mainspring.core.model.workflows.workflow import layers

WIDTH, HEIGHT = 176, 40
_GAP_X, _GAP_Y = 48, 12
_WAYPOINT = 6
#: Wider layers are merged into fewer boxes. A workflow with more boxes in all is not drawn.
MAX_WIDTH = 12
MAX_BOXES = 400
_SWEEPS = 4
#: Order of severity. A box of several nodes has the first of these states that one of them is in.
_BY_SEVERITY = ("failed", "running", "cancelling", "retrying", "queued", "scheduled", "blocked", "cancelled", "skipped")


class GraphNode(NamedTuple):
    """A node as the layout needs it."""

    name: str
    kind: str
    state: str
    after: tuple[str, ...]


class Box(NamedTuple):
    x: int
    y: int
    #: The nodes of this box, usually one.
    names: tuple[str, ...]
    state: str
    counts: dict[str, int]


class Drawing(NamedTuple):
    width: int
    height: int
    boxes: list[Box]
    #: SVG path data.
    edges: list[str]


#: A box, by the number of its layer and its first node; or the waypoint of a long edge.
_Key: TypeAlias = tuple[int, str]


def lay_out(nodes: Sequence[GraphNode]) -> Drawing | None:
    """Lay out a workflow. ``None`` if it has too many boxes."""
    rows, boxes, parents = _build_boxes({node.name: node for node in nodes})
    if len(boxes) > MAX_BOXES:
        return None
    links, chains = _connect(rows, parents)
    _reduce_crossings(rows, links)
    ys = _place_boxes(rows, links, boxes)
    low = min(ys.values(), default=0)
    bottom = max((ys[key] + _measure(key, boxes) for key in ys), default=0)
    return Drawing(
        width=len(rows) * (WIDTH + _GAP_X) - _GAP_X,
        height=round(bottom - low),
        boxes=[
            Box(
                key[0] * (WIDTH + _GAP_X),
                round(ys[key] - low),
                tuple(node.name for node in held),
                *_summarize_states(held),
            )
            for key, held in boxes.items()
        ],
        edges=[_build_path([(key[0], ys[key] - low + _measure(key, boxes) / 2) for key in chain]) for chain in chains],
    )


def _summarize_states(held: Sequence[GraphNode]) -> tuple[str, dict[str, int]]:
    counts = Counter(node.state for node in held)
    return next((state for state in _BY_SEVERITY if counts[state]), "succeeded"), dict(counts)


def _build_boxes(
    nodes: Mapping[str, GraphNode],
) -> tuple[list[list[_Key]], dict[_Key, list[GraphNode]], dict[_Key, set[_Key]]]:
    """Group the nodes into boxes. Returns the boxes of each layer, the nodes of each box, and its parent boxes."""
    boxes: dict[_Key, list[GraphNode]] = {}
    parents: dict[_Key, set[_Key]] = {}
    box_of: dict[str, _Key] = {}
    rows: list[list[_Key]] = []
    for depth, names in enumerate(layers({name: node.after for name, node in nodes.items()})):
        alike: dict[object, list[GraphNode]] = {}
        for name in names:
            node = nodes[name]
            before = frozenset(box_of[parent] for parent in node.after if parent in box_of)
            alike.setdefault((node.kind, before) if len(names) > MAX_WIDTH else name, []).append(node)
        held = list(alike.values())
        if len(held) > MAX_WIDTH:
            held = [*held[: MAX_WIDTH - 1], [node for some in held[MAX_WIDTH - 1 :] for node in some]]
        row = []
        for some in held:
            key = (depth, some[0].name)
            row.append(key)
            boxes[key] = some
            parents[key] = {box_of[parent] for node in some for parent in node.after if parent in box_of}
        box_of |= {node.name: key for key in row for node in boxes[key]}
        rows.append(row)
    return rows, boxes, parents


def _connect(
    rows: list[list[_Key]], parents: Mapping[_Key, set[_Key]]
) -> tuple[dict[_Key, list[_Key]], list[list[_Key]]]:
    """Connect the layers, and add the waypoints of long edges to them.

    Returns the predecessors of each box and waypoint in the layer before it, and the chain of points of each edge.
    """
    links: dict[_Key, list[_Key]] = {key: [] for row in rows for key in row}
    chains: list[list[_Key]] = []
    for key, before in parents.items():
        for parent in sorted(before):
            chain = [parent]
            for depth in range(parent[0] + 1, key[0]):
                # Edges from one box share waypoints as far as possible.
                place = (depth, f"\0{parent}")
                if place not in links:
                    links[place] = []
                    rows[depth].append(place)
                if chain[-1] not in links[place]:
                    links[place].append(chain[-1])
                chain.append(place)
            links[key].append(chain[-1])
            chains.append([*chain, key])
    return links, chains


def _reduce_crossings(rows: list[list[_Key]], links: Mapping[_Key, list[_Key]]) -> None:
    """Move each box near the middle of its neighbors, which reduces crossings."""
    children: dict[_Key, list[_Key]] = {}
    for key, before in links.items():
        for parent in before:
            children.setdefault(parent, []).append(key)
    for sweep in range(_SWEEPS):
        joined = links if sweep % 2 == 0 else children
        for row in rows[1:] if sweep % 2 == 0 else rows[-2::-1]:
            place = {key: number for other in rows for number, key in enumerate(other)}
            middles = {
                key: sum(place[one] for one in joined[key]) / len(joined[key]) if joined.get(key) else place[key]
                for key in row
            }
            row.sort(key=middles.__getitem__)


def _measure(key: _Key, boxes: Mapping[_Key, object]) -> int:
    return HEIGHT if key in boxes else _WAYPOINT


def _place_boxes(
    rows: list[list[_Key]], links: Mapping[_Key, list[_Key]], boxes: Mapping[_Key, object]
) -> dict[_Key, float]:
    """Place each box as level with its predecessors as the order allows."""
    ys: dict[_Key, float] = {}
    for row in rows:
        wanted = {
            key: sum(ys[one] + _measure(one, boxes) / 2 for one in links[key]) / len(links[key])
            - _measure(key, boxes) / 2
            for key in row
            if links[key]
        }
        below = float("-inf")
        shifts = []
        for key in row:
            ys[key] = max(wanted.get(key, below if below > float("-inf") else 0.0), below)
            below = ys[key] + _measure(key, boxes) + _GAP_Y
            shifts += [ys[key] - wanted[key]] if key in wanted else []
        # Shift the row back by the mean displacement, so that it stays centered.
        if shifts:
            middle = sum(shifts) / len(shifts)
            for key in row:
                ys[key] -= middle
    return ys


def _build_path(points: Sequence[tuple[int, float]]) -> str:
    """Return the SVG path of an edge, from the right of its first box to the left of its last, in curves."""
    parts: list[str] = []
    for (before, y1), (depth, y2) in pairwise(points):
        x1, x2 = before * (WIDTH + _GAP_X) + WIDTH, depth * (WIDTH + _GAP_X)
        if not parts:
            parts.append(f"M{x1} {y1:.0f}")
        middle = (x1 + x2) // 2
        parts.append(f"C{middle} {y1:.0f} {middle} {y2:.0f} {x2} {y2:.0f}")
        if depth != points[-1][0]:
            parts.append(f"H{x2 + WIDTH}")
    return "".join(parts)
