"""Draws ``docs/images/peers.svg`` from the results of ``python -m bench.peers --json``.

python -m bench.peers.chart RESULT.json …

Every panel has a linear axis that begins at zero. The bars of a panel are sorted, the best one first. Where less is
better, a bar that is much longer than the others is cut off, with a gap in it, so that the others can be compared.
"""

import argparse
import statistics
import sys
from html import escape
from pathlib import Path
from typing import NamedTuple

from bench.figures import number
from bench.peers import report
from bench.peers.report import Result

IMAGE = Path(__file__).parents[2] / "docs" / "images" / "peers.svg"

_WIDTH, _MARGIN, _NAME, _BAR, _GAP, _HEAD = 760, 24, 104, 15, 7, 34
#: The longest bar, to the median one.
_LONGEST = 3
_PANEL = (_WIDTH - 3 * _MARGIN) / 2
_STYLE = """
text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:#1c2733}
.title{font-weight:600;font-size:15px}.head{font-weight:600;font-size:13px}.note{font-size:11px;fill:#536171}
.ours{font-weight:600}.card{fill:#fbfcfe;stroke:#d8dfe8}.axis{stroke:#b4bfcc}
.a{fill:#3f77d1}.b{fill:#a9c3ee}.gap{fill:#fbfcfe}
@media (prefers-color-scheme:dark){text{fill:#e6ebf1}.note{fill:#a3b0bf}.card{fill:#161c24;stroke:#2c3644}
.axis{stroke:#44505f}.a{fill:#5b8fe0}.b{fill:#2f4f85}.gap{fill:#161c24}}
"""


class Panel(NamedTuple):
    key: str
    title: str
    note: str
    #: Whether more is better.
    more: bool
    #: The parts that a bar is stacked of, dark and light.
    parts: tuple[str, ...] = ()


PANELS = (
    Panel(
        "full_cycle_processor_us_per_job",
        "Processor time per job, µs",
        "full cycle; left: client processes, right: server",
        more=False,
        parts=("client", "server"),
    ),
    Panel("full_cycle_jobs_per_s", "Full cycle, jobs per second", "submitted in batches while workers run", more=True),
    Panel("drain_jobs_per_s", "Drain, jobs per second", "a queue that is full before the workers start", more=True),
    Panel(
        "submit_concurrent_jobs_per_s",
        "Submit 64 at once, jobs per second",
        "each caller waits until its own job is committed",
        more=True,
    ),
    Panel(
        "idle_latency_p50_ms",
        "Idle latency, median, ms",
        "from before the submit to the first line of the task",
        more=False,
    ),
    Panel("herd_lateness_p99_ms", "5,000 jobs due at one instant, p99, ms", "how late they start", more=False),
)


def draw(result: Result) -> str:
    rows = len(result.versions)
    height = _HEAD + 18 + rows * (_BAR + _GAP) + 14
    parts = [_text(_MARGIN, 32, "Mainspring beside other job queues", "title")]
    for index, panel in enumerate(PANELS):
        column, row = index % 2, index // 2
        x, y = _MARGIN + column * (_PANEL + _MARGIN), 50 + row * height
        parts += _panel(result, panel, x, y)
    bottom = 50 + -(-len(PANELS) // 2) * height
    caption = _caption(result)
    parts += [_text(_MARGIN, bottom + 16 + 15 * line, words, "note") for line, words in enumerate(caption)]
    return _svg(bottom + 16 + 15 * len(caption) + 4, parts)


def _panel(result: Result, panel: Panel, x: float, y: float) -> list[str]:
    found = [(name, report.median(result, name, panel.key)) for name in result.versions]
    known = sorted(((name, value) for name, value in found if value is not None), key=lambda pair: pair[1])
    if panel.more:
        known.reverse()
    left, length = x + _NAME, _PANEL - _NAME - 52
    values = [value for _, value in known] or [1.0]
    largest = max(values) if panel.more else min(max(values), _LONGEST * statistics.median(values))
    largest = largest or 1.0
    parts = [_text(x, y + 12, panel.title, "head"), _text(x, y + 27, panel.note, "note")]
    top = y + _HEAD
    for line, (name, value) in enumerate(known):
        bar = top + line * (_BAR + _GAP)
        parts.append(_text(left - 8, bar + 12, name, "ours" if name == "mainspring" else "", anchor="end"))
        shown = length * min(value / largest, 1)
        amounts = report.median_parts(result, name, panel.key)
        whole = sum(amounts.values())
        start = left
        for style, part in zip("ab", panel.parts or ("",), strict=False):
            share = amounts[part] / whole if part else 1
            width = shown * share
            parts.append(f'<rect class="{style}" x="{start:.1f}" y="{bar:.1f}" width="{width:.1f}" height="{_BAR}"/>')
            start += width
        if value > largest:
            parts.append(
                f'<path class="gap" d="M{left + length - 22:.1f} {bar + _BAR + 1:.1f}l6 -{_BAR + 2}h5l-6 {_BAR + 2}z"/>'
            )
        parts.append(_text(left + shown + 6, bar + 12, number(value)))
    foot = top + len(known) * (_BAR + _GAP) - _GAP + 3
    parts.append(f'<path class="axis" d="M{left:.1f} {top - 3:.1f}V{foot:.1f}"/>')
    return parts


def _caption(result: Result) -> list[str]:
    names = [f"{name} {version}" for name, version in result.versions.items() if name != "mainspring"]
    lines = [
        "No-op jobs with 168 bytes of arguments. A bar with a gap is cut off.",
        report.conditions(result),
        f"{', '.join(names)}.",
    ]
    if not result.representative:
        lines.append("Smaller numbers than usual: not representative.")
    return lines


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "start") -> str:
    kind = f' class="{style}"' if style else ""
    end = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text{kind} x="{x:.1f}" y="{y:.1f}"{end}>{escape(text)}</text>'


def _svg(height: float, parts: list[str]) -> str:
    lines = "\n".join(parts)
    title = "Mainspring beside other job queues: processor time, rates and latency"
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height:.0f}" \
viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{title}">
<style>{_STYLE}</style>
<rect class="card" x=".5" y=".5" width="{_WIDTH - 1}" height="{height - 1:.0f}" rx="10"/>
{lines}
</svg>
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers.chart", description=__doc__)
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT.json")
    parser.add_argument("--output", type=Path, default=IMAGE)
    options = parser.parse_args()
    result = report.merge([report.read(path) for path in options.results])
    options.output.write_text(draw(result), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
