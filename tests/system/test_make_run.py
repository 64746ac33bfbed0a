"""``make run`` from a fresh clone installs what running needs, and nothing else."""

import os
import re
import signal
import subprocess
import tomllib
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest

from tests.support.processes import START_SECONDS, free_port
from tests.support.waiting import wait_until
from tools.services import ROOT

pytestmark = [pytest.mark.system, pytest.mark.timeout(1_200), pytest.mark.xdist_group("dist")]

LARGEST_BYTES = 150 * 10**6


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    return dict(line.split("==", 1) for line in lines)


def is_ready(port: str) -> bool:
    with suppress(httpx2.TransportError):
        return httpx2.get(f"http://127.0.0.1:{port}/readyz", timeout=60, trust_env=False).status_code == 200
    return False


def bytes_on_disk(folder: Path) -> int:
    """As du counts them: in blocks."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def test_running_is_pinned_to_the_versions_that_are_tested() -> None:
    run, dev = pins("run.txt"), pins("dev.txt")
    assert {name: version.split(" ;")[0] for name, version in run.items()} == {
        name: dev[name].split(" ;")[0] for name in run
    }
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {re.split(r"[>=<;\s]", words, maxsplit=1)[0] for words in wanted} <= run.keys()
    # Neither an extra nor what tests need.
    assert not run.keys() & {"asyncpg", "redis", "pytest", "mypy", "faker", "litestar", "django"}


def test_a_fresh_clone_runs_after_one_small_installation(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    # As it stands here, committed or not.
    changed = subprocess.run(
        ["git", "ls-files", "--modified", "--others", "--exclude-standard", "--deduplicate"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in changed.stdout.splitlines():
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            (clone / name).write_bytes((ROOT / name).read_bytes())
    port = str(free_port())
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MAINSPRING_"))}
    environment |= {"MAINSPRING_PORT": port}
    log = tmp_path / "log"
    with log.open("wb") as output:
        # A session of its own, so that its signal reaches make and what make has started, as Ctrl-C does.
        run = subprocess.Popen(
            ["make", "run"], cwd=clone, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        wait_until(lambda: is_ready(port), log.read_text, deadline=START_SECONDS)
    finally:
        os.killpg(run.pid, signal.SIGINT)
        run.wait(START_SECONDS)
    said = log.read_text()
    assert "Installing what running needs into .venv" in said
    assert "Starting the demo: .venv/bin/mainspring up mainspring.demo:app" in said
    assert bytes_on_disk(clone / ".venv") < LARGEST_BYTES
    # Again there is nothing to install, and for developing there is.
    assert "Nothing" in _make(clone, ".venv/.run") or "up to date" in _make(clone, ".venv/.run")
    assert "Installing what developing needs" in _make(clone, "--dry-run", "setup")
    assert "Installing" not in _make(clone, "--dry-run", "run")


def test_a_clone_for_developing_can_run(tmp_path: Path) -> None:
    """The stamp of the developer set is one for running, too."""
    said = _make(ROOT, "--dry-run", "--always-make", ".venv/.installed")
    assert "touch .venv/.installed .venv/.run" in said


def _make(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout
