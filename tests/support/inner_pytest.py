"""Run pytest in a process of its own, as a user's project does."""

import os
import subprocess
import sys
from pathlib import Path

#: Importing all installed plugins takes longer than the tests.
_PLUGINS = ["-p", "pytest_asyncio.plugin", "-p", "mainspring_pytest"]
_OPTIONS = ["-W", "error", "-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"]


def run_pytest(folder: Path, expected: str) -> None:
    """Run the tests in a folder with our plugin. The output must contain the expected words."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *_PLUGINS, *_OPTIONS],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert expected in done.stdout, done.stdout + done.stderr
