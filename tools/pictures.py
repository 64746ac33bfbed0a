"""Draws the pictures of the documentation: `docs/images/sources/*.toml` become `docs/images/*.svg`.

python -m tools.pictures

A picture is either a graph or a timeline. Each SVG has its own background and follows the reader's light or dark mode.

    title = "…"                       title = "…"
    [boxes.store]                     lanes = ["scheduler a", "scheduler b"]
    at = [1, 0]          # column, row   end = 6          # length of the axis
    text = "store"                    unit = "s"
    note = "PostgreSQL"               [[bars]]
    kind = "store"       # see _KINDS    lane = 0
    [[arrows]]                        span = [0, 3]
    from = "api"                      text = "owns shards 1 to 50"
    to = "store"                      kind = "good"
    text = "submit"                   [[marks]]
    dashed = true                     lane = 0
                                      at = 3
                                      text = "killed"
"""

import sys
import tomllib
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SOURCES = IMAGES / "sources"
_WIDTH, _HEIGHT, _COLUMN_GAP, _ROW_GAP, _MARGIN, _TITLE = 156, 54, 84, 52, 28, 30
_LANE_LABEL, _LANE_HEIGHT, _AXIS = 130, 44, 26
_KINDS = ("plain", "process", "store", "broker", "good", "bad", "muted")
_STYLE = """
text{font:13px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:#1c2733}
.title{font-weight:600;font-size:14px}.note,.label{font-size:11.5px;fill:#536171}.name{font-weight:600}
.card{fill:#fbfcfe;stroke:#d8dfe8}.arrow{stroke:#6b7a8c;stroke-width:1.5;fill:none}.head{fill:#6b7a8c}
.dashed{stroke-dasharray:5 4}.halo{fill:#fbfcfe}.lane{stroke:#e3e8ef}
.plain{fill:#fff;stroke:#9fb0c4}.process{fill:#e6f4ea;stroke:#4c9a63}.store{fill:#e3edfd;stroke:#3f77d1}
.broker{fill:#fff3dd;stroke:#c68a1d}.good{fill:#d8efdf;stroke:#4c9a63}.bad{fill:#fde4e1;stroke:#cc4b3f}
.muted{fill:#eef1f5;stroke:#b4bfcc}.mark{stroke:#cc4b3f;stroke-width:1.5}
@media (prefers-color-scheme:dark){text{fill:#e6ebf1}.note,.label{fill:#a3b0bf}.card{fill:#161c24;stroke:#2c3644}
.arrow{stroke:#93a2b4}.head{fill:#93a2b4}.halo{fill:#161c24}.lane{stroke:#27303c}
.plain{fill:#1f2732;stroke:#526276}.process{fill:#173525;stroke:#4fa56a}.store{fill:#16294a;stroke:#5b8fe0}
.broker{fill:#3a2c10;stroke:#d19a35}.good{fill:#1b3d2a;stroke:#4fa56a}.bad{fill:#431d1a;stroke:#e0685c}
.muted{fill:#222a35;stroke:#44505f}.mark{stroke:#e0685c}}
"""

Point = tuple[float, float]


class Box(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    at: Point
    text: str
    note: str = ""
    kind: str = "plain"
    #: In columns.
    width: Annotated[int, msgspec.Meta(ge=1)] = 1


class Arrow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"start": "from", "end": "to"}):
    start: str
    end: str
    text: str = ""
    dashed: bool = False
    #: Leave the first box at its top or bottom and enter the second at its side, not the other way round.
    upright: bool = False


class Graph(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: str
    boxes: dict[str, Box]
    arrows: list[Arrow] = []


class Bar(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    lane: int
    span: Point
    text: str = ""
    kind: str = "plain"


class Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    lane: int
    at: float
    text: str


class Timeline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: str
    lanes: list[str]
    end: float
    bars: list[Bar]
    marks: list[Mark] = []
    #: The axis begins with this number.
    start: int = 0
    unit: str = " s"
    #: The labels of the axis, if they are not numbers of the unit.
    ticks: list[str] = []


class Rectangle(NamedTuple):
    x: float
    y: float
    width: float
    height: float

    @property
    def center(self) -> Point:
        return self.x + self.width / 2, self.y + self.height / 2


def draw(source: dict[str, Any]) -> str:
    if "lanes" in source:
        return _draw_timeline(msgspec.convert(source, Timeline))
    return _draw_graph(msgspec.convert(source, Graph))


def _draw_graph(graph: Graph) -> str:
    places = {name: _place(box) for name, box in graph.boxes.items()}
    width = max(place.x + place.width for place in places.values()) + _MARGIN
    height = max(place.y + place.height for place in places.values()) + _MARGIN
    lines, labels = [], []
    for arrow in graph.arrows:
        points = _route(places[arrow.start], places[arrow.end], upright=arrow.upright)
        lines.append(_polyline(points, dashed=arrow.dashed))
        if arrow.text:
            labels.append(_label(points, arrow.text))
    boxes = [_box(graph.boxes[name], place) for name, place in places.items()]
    return _svg(graph.title, width, height, [*lines, *boxes, *labels])


def _place(box: Box) -> Rectangle:
    column, row = box.at
    width = box.width * _WIDTH + (box.width - 1) * _COLUMN_GAP
    return Rectangle(
        _MARGIN + column * (_WIDTH + _COLUMN_GAP), _MARGIN + _TITLE + row * (_HEIGHT + _ROW_GAP), width, _HEIGHT
    )


def _route(start: Rectangle, end: Rectangle, *, upright: bool) -> list[Point]:
    """From edge to edge: straight where the boxes face each other, otherwise with one corner."""
    left, right = max(start.x, end.x), min(start.x + start.width, end.x + end.width)
    if left < right:
        # A wide box is met in the middle of the narrow one.
        x = (left + right) / 2
        down = end.y > start.y
        return [(x, start.y + start.height if down else start.y), (x, end.y if down else end.y + end.height)]
    forward = end.x > start.x
    x1 = start.x + start.width if forward else start.x
    if start.y == end.y:
        return [(x1, start.center[1]), (end.x if forward else end.x + end.width, end.center[1])]
    down = end.y > start.y
    if upright:
        corner = (start.center[0], end.center[1])
        return [
            (corner[0], start.y + start.height if down else start.y),
            corner,
            (end.x if forward else end.x + end.width, corner[1]),
        ]
    return [
        (x1, start.center[1]),
        (end.center[0], start.center[1]),
        (end.center[0], end.y if down else end.y + end.height),
    ]


def _draw_timeline(timeline: Timeline) -> str:
    length = 560
    left, top = _MARGIN + _LANE_LABEL, _MARGIN + _TITLE

    def x(value: float) -> float:
        return left + length * value / timeline.end

    parts = []
    bottom = top + len(timeline.lanes) * _LANE_HEIGHT
    for number, lane in enumerate(timeline.lanes):
        y = top + number * _LANE_HEIGHT + _LANE_HEIGHT / 2
        parts.append(f'<path class="lane" d="M{left} {y}H{left + length}"/>')
        parts.append(_text(left - 12, y + 4.5, lane, "name", anchor="end"))
    steps = len(timeline.ticks) - 1 if timeline.ticks else int(timeline.end)
    for step in range(steps + 1):
        label = timeline.ticks[step] if timeline.ticks else f"{timeline.start + step}{timeline.unit}"
        parts.append(
            _text(
                x(timeline.end * step / steps if timeline.ticks else step), bottom + 18, label, "label", anchor="middle"
            )
        )
    for bar in timeline.bars:
        start, end = (x(value) for value in bar.span)
        y = top + bar.lane * _LANE_HEIGHT + 7
        parts.append(
            f'<rect class="{_check(bar.kind)}" x="{start:.1f}" y="{y}" width="{max(end - start, 6):.1f}" '
            f'height="{_LANE_HEIGHT - 14}" rx="5"/>'
        )
        parts.append(_text((start + end) / 2, y + 19.5, bar.text, "label", anchor="middle"))
    for mark in timeline.marks:
        y = top + mark.lane * _LANE_HEIGHT
        parts.append(f'<path class="mark" d="M{x(mark.at):.1f} {y + 2}v{_LANE_HEIGHT - 4}"/>')
        parts.append(_text(x(mark.at) + 6, y + 12, mark.text, "label"))
    return _svg(timeline.title, left + length + _MARGIN + 14, bottom + _AXIS + _MARGIN / 2, parts)


def _box(box: Box, place: Rectangle) -> str:
    x, y = place.center
    shape = (
        f'<rect class="{_check(box.kind)}" x="{place.x}" y="{place.y}" width="{place.width}" height="{place.height}" '
        'rx="8" stroke-width="1.4"/>'
    )
    if not box.note:
        return shape + _text(x, y + 4.5, box.text, "name", anchor="middle")
    return (
        shape + _text(x, y - 3, box.text, "name", anchor="middle") + _text(x, y + 15, box.note, "note", anchor="middle")
    )


def _polyline(points: list[Point], *, dashed: bool) -> str:
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path class="arrow{" dashed" if dashed else ""}" d="{path}" marker-end="url(#head)"/>'


def _label(points: list[Point], text: str) -> str:
    """In the middle of the longest part, over a patch of the background."""
    (x1, y1), (x2, y2) = max(
        pairwise(points),
        key=lambda part: abs(part[0][0] - part[1][0]) + abs(part[0][1] - part[1][1]),
    )
    x, y = (x1 + x2) / 2, (y1 + y2) / 2
    rows = text.split("\n")
    width = max(len(row) for row in rows) * 6.1 + 8
    height = 15 * len(rows)
    patch = (
        f'<rect class="halo" x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" height="{height}"/>'
    )
    return patch + "".join(
        _text(x, y - height / 2 + 11.5 + 15 * number, row, "label", anchor="middle") for number, row in enumerate(rows)
    )


def _text(x: float, y: float, text: str, style: str, anchor: str = "start") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _check(kind: str) -> str:
    if kind not in _KINDS:
        raise ValueError(f"kind: {kind!r} is not one of {', '.join(_KINDS)}")
    return kind


def _svg(title: str, width: float, height: float, parts: list[str]) -> str:
    lines = "\n".join(parts)
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" \
viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(title)}">
<style>{_STYLE}</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">\
<path class="head" d="M0 0L8 4L0 8z"/></marker></defs>
<rect class="card" x=".5" y=".5" width="{width - 1:.0f}" height="{height - 1:.0f}" rx="10"/>
{_text(_MARGIN, _MARGIN + 6, title, "title")}
{lines}
</svg>
"""


def main() -> int:
    for source in sorted(SOURCES.glob("*.toml")):
        (IMAGES / f"{source.stem}.svg").write_text(draw(tomllib.loads(source.read_text("utf-8"))), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
