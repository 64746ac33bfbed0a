"""Which program this is: what the build has written down, or what git says of a checkout.

Only the standard library is used: while the package is built nothing else is there.
"""

import json
import subprocess
from pathlib import Path
from typing import NamedTuple

#: Beside this module in what was built, and nowhere else: tools/build_hook.py.
FILE = "build.json"


class Build(NamedTuple):
    commit: str = ""
    """Empty: nobody knows. With a plus where something was changed since."""
    date: str = ""
    """Of the commit, so that two builds of it are the same."""


def read_build() -> Build:
    here = Path(__file__)
    written = here.with_name(FILE)
    if written.exists():
        return Build(**json.loads(written.read_text()))
    return read_checkout(here.parents[4])


def read_checkout(root: Path) -> Build:
    """Nothing is known of a folder that is none, or without git."""
    if not (root / ".git").exists():
        return Build()
    told = _git(root, "log", "-1", "--format=%H %cI").split()
    if len(told) != 2:
        return Build()
    changed = "+" if _git(root, "status", "--porcelain", "--untracked-files=no") else ""
    return Build(commit=told[0] + changed, date=told[1])


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
