"""Sequence diagrams as pictures: the part of Mermaid's language that the pages use, as SVG, without a script.

participant S as Store
A->>B: what is asked        A-->>B: what is answered        A-xB: what does not arrive
Note over A,B: what is to be known
"""

import re
from html import escape
from textwrap import wrap
from typing import NamedTuple, TypeAlias

_MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_PARTICIPANT = re.compile(r"participant (\w+)(?: as (.+))?")
_MESSAGE = re.compile(r"(\w+)(->>|-->>|-x)(\w+): (.+)")
_NOTE = re.compile(r"Note over (\w+)(?:,(\w+))?: (.+)")
_COLUMN, _MARGIN, _LINE, _CHARACTER = 190, 95, 16, 6.6
_HEAD, _GAP, _PADDING = 34, 14, 8


class Unreadable(Exception):
    """A line that is not in the part of the language that is drawn."""


class Message(NamedTuple):
    sender: str
    receiver: str
    arrow: str
    text: str


class Note(NamedTuple):
    first: str
    last: str
    text: str


Step: TypeAlias = "Message | Note"


class Diagram(NamedTuple):
    participants: dict[str, str]
    steps: list[Step]


def parse(text: str) -> Diagram:
    participants: dict[str, str] = {}
    steps: list[Step] = []
    first, *lines = [line.strip() for line in text.splitlines() if line.strip()]
    if first != "sequenceDiagram":
        raise Unreadable(f"only sequence diagrams are drawn: {first}")
    for line in lines:
        if found := _PARTICIPANT.fullmatch(line):
            participants[found[1]] = found[2] or found[1]
        elif found := _MESSAGE.fullmatch(line):
            steps.append(Message(found[1], found[3], found[2], found[4]))
        elif found := _NOTE.fullmatch(line):
            steps.append(Note(found[1], found[2] or found[1], found[3]))
        else:
            raise Unreadable(line)
        if steps and (strangers := {steps[-1][0], steps[-1][1]} - participants.keys()):
            raise Unreadable(f"{line}: nobody is called {', '.join(sorted(strangers))}")
    return Diagram(participants, steps)


def draw(diagram: Diagram, title: str) -> str:
    """One picture. Its colours are the page's."""
    columns = {name: _MARGIN + position * _COLUMN for position, name in enumerate(diagram.participants)}
    width = _COLUMN * len(columns)
    body: list[str] = []
    y = _HEAD + _GAP
    for step in diagram.steps:
        y += _message(body, step, columns, y) if isinstance(step, Message) else _note(body, step, columns, y, width)
    lines = [f'<line class="life" x1="{x}" y1="{_HEAD}" x2="{x}" y2="{y}"/>' for x in columns.values()]
    heads = [
        f'<rect class="head" x="{x - 78}" y="2" width="156" height="{_HEAD - 4}" rx="4"/>'
        + _text([diagram.participants[name]], x, 22, "middle", "name")
        for name, x in columns.items()
    ]
    return (
        f'<svg class="sequence" role="img" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y + 4}" '
        f'width="{width}"><title>{escape(title)}</title>'
        f"<desc>{escape(in_words(diagram))}</desc>{''.join(lines)}{''.join(heads)}{''.join(body)}</svg>"
    )


def in_words(diagram: Diagram) -> str:
    """For who does not see it."""
    names = diagram.participants
    said = []
    for step in diagram.steps:
        if isinstance(step, Message):
            how = " (does not arrive)" if step.arrow == "-x" else ""
            said.append(f"{names[step.sender]} to {names[step.receiver]}{how}: {step.text}.")
        else:
            said.append(f"{step.text}.")
    return " ".join(said)


def with_pictures(markdown: str, title: str) -> str:
    """A page whose diagrams are drawn."""

    def picture(found: re.Match[str]) -> str:
        return f"```{{raw}} html\n<figure>{draw(parse(found[1]), title)}</figure>\n```"

    return _MERMAID.sub(picture, markdown)


def _message(body: list[str], step: Message, columns: dict[str, int], y: int) -> int:
    begin, end = columns[step.sender], columns[step.receiver]
    if begin == end:
        lines = wrap(step.text, round((_COLUMN - 34) / _CHARACTER))
        body.append(_text(lines, begin + 26, y + 12, "start"))
        bottom = y + max(len(lines) * _LINE, 20)
        body.append(f'<path class="ask" d="M{begin} {y + 4} h18 V{bottom} h-10"/>{_tip(begin + 4, bottom, -1)}')
        return bottom - y + _GAP
    span, way = abs(end - begin), 1 if end > begin else -1
    lines = wrap(step.text, round((span - 20) / _CHARACTER))
    at = y + len(lines) * _LINE + 4
    body.append(_text(lines, (begin + end) // 2, y + 12, "middle"))
    kind = "answer" if step.arrow == "-->>" else "ask"
    if step.arrow == "-x":
        middle = (begin + end) // 2
        body.append(f'<line class="ask" x1="{begin}" y1="{at}" x2="{middle}" y2="{at}"/>')
        body.append(f'<path class="lost" d="M{middle - 5} {at - 5} l10 10 m0 -10 l-10 10"/>')
    else:
        body.append(f'<line class="{kind}" x1="{begin}" y1="{at}" x2="{end - way}" y2="{at}"/>{_tip(end, at, way)}')
    return at - y + _GAP


def _note(body: list[str], step: Note, columns: dict[str, int], y: int, width: int) -> int:
    left = max(4, min(columns[step.first], columns[step.last]) - 84)
    right = min(width - 4, max(columns[step.first], columns[step.last]) + 84)
    lines = wrap(step.text, round((right - left - 2 * _PADDING) / _CHARACTER))
    height = len(lines) * _LINE + 2 * _PADDING - 4
    body.append(f'<rect class="note" x="{left}" y="{y}" width="{right - left}" height="{height}"/>')
    body.append(_text(lines, (left + right) // 2, y + _PADDING + 10, "middle"))
    return height + _GAP


def _tip(x: int, y: int, way: int) -> str:
    return f'<path class="tip" d="M{x} {y} l{-8 * way} -4 v8 z"/>'


def _text(lines: list[str], x: int, y: int, anchor: str, kind: str = "words") -> str:
    spans = "".join(f'<tspan x="{x}" y="{y + at * _LINE}">{escape(line)}</tspan>' for at, line in enumerate(lines))
    return f'<text class="{kind}" text-anchor="{anchor}">{spans}</text>'
