"""Writes results of ``python -m bench.peers --json`` into the documentation: the chart, and the tables of its pages.

python -m bench.peers.record RESULT.json …
"""

import os
import re
import sys
from pathlib import Path

import msgspec

from bench.peers import chart, report
from bench.peers.report import Result

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "docs" / "images" / "sources" / "peers.json"
#: The rows that each page shows; none: all.
PAGES: dict[str, tuple[str, ...]] = {"README.md": report.SUMMARY, "docs/design/benchmark.md": ()}
_BEGIN, _END = "<!-- peers-bench: written by python -m bench.peers.record -->\n", "<!-- peers-bench: end -->\n"


def write_table(page: str, result: Result | None, keys: tuple[str, ...], image: str) -> str:
    """Return the page with the chart and the table of the result between the two comments, or with nothing there."""
    shown = ""
    if result is not None:
        picture = f"![Processor time, rates and latencies of {len(result.versions)} job queues]({image})"
        shown = f"\n{picture}\n\n{report.markdown(result, keys)}\n{report.conditions(result)}\n\n"
    between = f"{_BEGIN}{shown}{_END}"
    written, found = re.subn(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", lambda _: between, page, flags=re.DOTALL)
    if found != 1:
        raise ValueError(f"{found} places for the table, not one")
    return written


def write(name: str, result: Result | None) -> str:
    """Return a page of ``PAGES`` as it must be."""
    page = ROOT / name
    image = os.path.relpath(chart.IMAGE, page.parent)
    return write_table(page.read_text("utf-8"), result, PAGES[name], image)


def main() -> int:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    result = report.merge([report.read(Path(name)) for name in sys.argv[1:]])
    if not result.representative:
        sys.exit("a run with --quick is not representative")
    RECORDED.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    chart.IMAGE.write_text(chart.draw(result), "utf-8")
    for name in PAGES:
        (ROOT / name).write_text(write(name, result), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
