"""List the code blocks of the documentation and how each is checked, or record the outputs of pages."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tools.pages.blocks import ROOT, explain_check, find_plan_name, list_pages, list_without_output, read_blocks


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--record"]:
        return _record(arguments[1:])
    total: Counter[str] = Counter()
    silent = 0
    for page in list_pages():
        print(page.relative_to(ROOT))
        without_output = {block.line for block in list_without_output(page)}
        silent += len(without_output)
        for block in read_blocks(page.read_text()):
            check = explain_check(page, block) or "NOT CHECKED"
            total[check.partition(":")[0].partition(" by ")[0]] += 1
            missing = "; NO OUTPUT" if block.line in without_output else ""
            print(f"  {block.line:4} {block.kind or 'none':8} {check}{missing}")
    print(", ".join(f"{count} {check}" for check, count in total.most_common()), f"{silent} commands without output")
    return 1 if total["NOT CHECKED"] or silent else 0


def _record(pages: list[str]) -> int:
    names = [find_plan_name(Path(page).resolve()).removesuffix("/*") for page in pages]
    test = "tests/system/test_documentation.py::test_the_commands_of_a_page_print_what_it_shows"
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", *(f"{test}[{name}]" for name in names)],
        cwd=ROOT,
        env={**os.environ, "RECORD_PAGES": "1"},
        check=False,
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
