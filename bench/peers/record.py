"""Writes results of ``python -m bench.peers --json`` into the documentation: the chart, and the tables of its pages.

python -m bench.peers.record RESULT.json …
"""

import re
import sys
from pathlib import Path

import msgspec

from bench.peers import chart, report
from bench.peers.report import Result

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "docs" / "images" / "sources" / "peers.json"
#: The rows that each page shows; none: all.
PAGES = {"README.md": report.SUMMARY, "docs/design/benchmark.md": ()}
_BEGIN, _END = "<!-- peers-bench: written by python -m bench.peers.record -->\n", "<!-- peers-bench: end -->\n"


def write_table(page: str, result: Result, keys: tuple[str, ...]) -> str:
    """Return the page with the result's table between the two comments."""
    table = f"{_BEGIN}\n{report.markdown(result, keys)}\n{report.conditions(result)}\n\n{_END}"
    written, found = re.subn(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", lambda _: table, page, flags=re.DOTALL)
    if found != 1:
        raise ValueError(f"{found} places for the table, not one")
    return written


def main() -> int:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    result = report.merge([report.read(Path(name)) for name in sys.argv[1:]])
    if not result.representative:
        sys.exit("a run with --quick is not representative")
    RECORDED.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    chart.IMAGE.write_text(chart.draw(result), "utf-8")
    for name, keys in PAGES.items():
        page = ROOT / name
        page.write_text(write_table(page.read_text("utf-8"), result, keys), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
