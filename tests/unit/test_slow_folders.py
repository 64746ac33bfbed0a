"""Tests that start whole processes or a browser count as slow, however pytest finds them."""

import subprocess
import sys

from tests.support.processes import ROOT


def test_tests_of_slow_folders_are_left_out_without_a_path() -> None:
    others = [path for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name != "examples"]
    words = ["--collect-only", "-q", "-p", "no:cacheprovider", "-m", "not slow and not postgres"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, *(f"--ignore={path}" for path in others)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "no tests collected" in done.stdout, done.stdout + done.stderr
