"""``deploy/Dockerfile`` without Docker: its install step, and the installed program in a container made by hand."""

import fnmatch
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import psutil
import pytest

from tests.support.processes import START_SECONDS, free_port
from tests.support.servers import not_here
from tests.support.waiting import wait_until
from tools.services import ROOT

pytestmark = [pytest.mark.system, pytest.mark.timeout(900), pytest.mark.xdist_group("dist")]

#: Continued lines are joined.
LINES = re.sub(r"\\\n\s*", " ", (ROOT / "deploy" / "Dockerfile").read_text()).splitlines()
VERSIONS = (ROOT / "docs" / "reference" / "versions.md").read_text()
BUILD = LINES[: LINES.index("", LINES.index("WORKDIR /build"))]
RUN = LINES[len(BUILD) :]
#: Variables that do not lead to this checkout.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MAINSPRING_"))}
#: Runs in namespaces of its own. $1: Python, $2: the installed packages, then the command. The command becomes process
#: 1 without root, on a file system where only /tmp is writable.
CONTAINER = """
set -e
mount -t tmpfs tmpfs /mnt
mkdir /mnt/python /mnt/app
mount --bind "$1" /mnt/python
mount --bind "$2" /mnt/app
shift 2
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -o remount,bind,ro /
mount -o remount,ro /mnt
cd /mnt
exec setpriv --reuid=10001 --regid=10001 --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all "$@"
"""


def copied() -> list[str]:
    return [word for line in BUILD if line.startswith("COPY ") for word in line.split()[1:-1]]


def test_copied_files_exist_and_are_not_ignored() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert copied()
    for name in copied():
        assert (ROOT / name).exists()
        assert any(fnmatch.fnmatch(name, pattern) for pattern in allowed), name


def test_the_image_does_not_run_as_root_and_has_the_tested_python() -> None:
    assert "USER 10001:10001" in RUN
    assert 'ENTRYPOINT ["mainspring"]' in RUN
    for stage in (BUILD, RUN):
        [base] = [line.split()[1] for line in stage if line.startswith("FROM ")]
        # The version that tests run on, by the page of versions.
        [tried] = re.findall(r"^\| Python \| (3\.\d+) \|", VERSIONS, re.MULTILINE)
        assert re.fullmatch(rf"python:{re.escape(tried)}\.\d+-slim-\w+", base)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the first stage on the files that it copies."""
    folder = tmp_path_factory.mktemp("image")
    for line in (line for line in BUILD if line.startswith("COPY ")):
        *names, target = line.split()[1:]
        for name in names:
            place = folder / "build" / (f"{target}{Path(name).name}" if target.endswith("/") else target)
            place.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, place)
    [step] = [line.removeprefix("RUN ") for line in BUILD if line.startswith("RUN ")]
    step = re.sub("^python ", f"{sys.executable} ", step).replace("/opt/mainspring", str(folder / "opt"))
    environment = ENVIRONMENT | {"BUILD_COMMIT": "c0ffee", "BUILD_DATE": "2026-11-16T12:00:00Z"}
    done = subprocess.run(
        ["sh", "-ec", step], cwd=folder / "build", env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return folder / "opt"


def test_the_image_reports_its_commit(installed: Path) -> None:
    command = [str(installed / "bin" / "mainspring"), "--version"]
    done = subprocess.run(command, cwd=installed, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert "\ncommit c0ffee of 2026-11-16T12:00:00Z\n" in done.stdout


@contextmanager
def contained(installed: Path, log: Path, *arguments: str, **settings: str) -> Iterator[psutil.Process]:
    """``mainspring`` as process 1."""
    if sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("unshare"):
        not_here("a container is made by hand, which needs root on Linux")
    [packages] = installed.glob("lib/python*/site-packages")
    unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", CONTAINER, "sh"]
    python = f"/mnt/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    command = [*unshare, sys.base_prefix, str(packages), python, "-m", "mainspring", *arguments]
    environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", **settings}
    # It was installed for another folder.
    environment |= {"PYTHONPATH": "/mnt/app", "LD_LIBRARY_PATH": "/mnt/python/lib"}
    with log.open("wb") as output:
        outer = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:

        def inner() -> list[psutil.Process]:
            assert outer.poll() is None, log.read_text()
            return [child for child in psutil.Process(outer.pid).children() if child.uids().real == 10001]

        [process] = wait_until(inner, log.read_text)
        yield process
        assert outer.wait(120) == 0, log.read_text()
    finally:
        if outer.poll() is None:
            outer.kill()
            outer.wait()


def test_the_image_runs_as_process_1_without_root_on_a_read_only_file_system(installed: Path, tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    settings = {"MAINSPRING_STORE": "/tmp/mainspring.db", "MAINSPRING_TASKS_COMMANDS": "true"}
    with contained(installed, log, "up", "--port", str(port), **settings) as process:
        url = f"http://127.0.0.1:{port}"

        def ready() -> bool:
            assert process.is_running(), log.read_text()
            with suppress(httpx2.TransportError):
                return httpx2.get(f"{url}/readyz", timeout=60, trust_env=False).status_code == 200
            return False

        wait_until(ready, log.read_text, deadline=START_SECONDS)
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert re.search(r"^NSpid:\t\d+\t1$", status, re.MULTILINE)
        assert re.search(r"^CapBnd:\t0+$", status, re.MULTILINE)
        # Process 1 has to reap what a job leaves behind.
        script = "touch /nowhere; sleep 300 & echo $$; touch /tmp/here"
        body = {"task": "shell", "payload": {"command": ["sh", "-c", script]}}
        submitted = httpx2.post(f"{url}/v1/jobs", json=body, timeout=120, trust_env=False)
        assert submitted.status_code == 201
        job = f"{url}/v1/jobs/{submitted.json()['jobId']}"
        wait_until(lambda: httpx2.get(job, timeout=120, trust_env=False).json()["status"] == "succeeded", log.read_text)
        assert Path(f"/proc/{process.pid}/root/tmp/here").exists()
        wait_until(lambda: not _zombies(process), lambda: _zombies(process))
        assert not Path("/nowhere").exists()
        process.send_signal(signal.SIGTERM)


def _zombies(process: psutil.Process) -> list[psutil.Process]:
    found = []
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if child.status() == psutil.STATUS_ZOMBIE:
                found.append(child)
    return found
