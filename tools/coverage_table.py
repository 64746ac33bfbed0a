"""``python -m tools.coverage_table REPORT``: prints line and branch coverage of each package as a Markdown table.

``make coverage`` writes the report with ``coverage json``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGES = ("core/model", "core/scheduler", "core/worker", "features")

#: Numbers by name: num_statements, covered_lines, num_branches, covered_branches.
Summary = Mapping[str, int]


def main(arguments: list[str]) -> int:
    [report] = arguments
    files = json.loads(Path(report).read_text("utf-8"))["files"]
    for line in format_table({path: file["summary"] for path, file in files.items()}):
        print(line)
    return 0


def format_table(summaries: Mapping[str, Summary]) -> Iterator[str]:
    """Return a row for each package. ``summaries`` has the numbers of each file by its path."""
    yield "| package | statements | lines covered | branches | branches covered |"
    yield "|---|---:|---:|---:|---:|"
    for package in PACKAGES:
        inside = [summary for path, summary in summaries.items() if f"src/mainspring/{package}/" in path]
        statements, branches = (sum(summary[name] for summary in inside) for name in ("num_statements", "num_branches"))
        lines, ways = (sum(summary[name] for summary in inside) for name in ("covered_lines", "covered_branches"))
        yield f"| `{package}` | {statements:,} | {lines / statements:.1%} | {branches:,} | {ways / branches:.1%} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
