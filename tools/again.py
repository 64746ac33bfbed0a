"""In CI, tests that failed beside all others are run once more, alone: a machine that stood still is not a defect.

Only a few, and they are named: a name that appears here must be fixed. More than a few, or one that fails
again, is a failure.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

FEW = 3
FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main() -> int:
    if os.environ.get("CI") != "true":
        return 1
    failed = json.loads(FAILED.read_text()) if FAILED.exists() else {}
    names = sorted({alone(name) for name in failed})
    if not 0 < len(names) <= FEW:
        return 1
    print(f"again, alone: {' '.join(names)}", flush=True)
    done = subprocess.run([sys.executable, "-m", "pytest", *names])
    if done.returncode == 0:
        print(f"FAILED BESIDE OTHERS, PASSED ALONE: {' '.join(names)}", flush=True)
    return done.returncode


def alone(name: str) -> str:
    """Without the group that keeps tests in one process: alone there is none."""
    return re.sub(r"@[\w-]+$", "", name)


if __name__ == "__main__":
    sys.exit(main())
