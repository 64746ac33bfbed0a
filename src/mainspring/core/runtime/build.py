"""The version of this program: recorded by the build, or read from git in a checkout.

Uses only the standard library, because the build hook imports it without dependencies.
"""

import json
import subprocess
from pathlib import Path
from typing import NamedTuple

#: Exists beside this module only in built packages; see tools/build_hook.py.
FILE = "build.json"


class Build(NamedTuple):
    commit: str = ""
    """Empty: unknown. Ends with a plus if there are uncommitted changes."""
    date: str = ""
    """The date of the commit, so that two builds of it are identical."""


def read_build() -> Build:
    here = Path(__file__)
    written = here.with_name(FILE)
    if written.exists():
        return Build(**json.loads(written.read_text()))
    return read_checkout(here.parents[4])


def read_checkout(root: Path) -> Build:
    """Read the version from git. Empty for a folder that is not a checkout, or without git."""
    if not (root / ".git").exists():
        return Build()
    found = _git(root, "log", "-1", "--format=%H %cI").split()
    if len(found) != 2:
        return Build()
    changed = "+" if _git(root, "status", "--porcelain", "--untracked-files=no") else ""
    return Build(commit=found[0] + changed, date=found[1])


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
