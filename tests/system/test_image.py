"""``deploy/Dockerfile`` without an engine: its step that installs, and what came of it run as the image would."""

import fnmatch
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import psutil
import pytest

from tests.support.processes import free_port
from tests.support.servers import not_here
from tools.services import ROOT

pytestmark = [pytest.mark.system, pytest.mark.timeout(600), pytest.mark.xdist_group("dist")]

#: Lines that go on are one.
LINES = re.sub(r"\\\n\s*", " ", (ROOT / "deploy" / "Dockerfile").read_text()).splitlines()
VERSIONS = (ROOT / "docs" / "reference" / "versions.md").read_text()
BUILD = LINES[: LINES.index("", LINES.index("WORKDIR /build"))]
RUN = LINES[len(BUILD) :]
#: Nothing of this tree must be found by accident.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MAINSPRING_"))}
#: In a namespace of its own. $1: Python, $2: what is installed, then the command. It becomes process 1, without root,
#: on a file system that it cannot write to but for /tmp.
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


def test_what_is_copied_is_there_and_reaches_the_engine() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert copied()
    for name in copied():
        assert (ROOT / name).exists()
        assert any(fnmatch.fnmatch(name, pattern) for pattern in allowed), name


def test_it_runs_as_somebody_who_is_not_root() -> None:
    assert "USER 10001:10001" in RUN
    assert 'ENTRYPOINT ["mainspring"]' in RUN
    for stage in (BUILD, RUN):
        [base] = [line.split()[1] for line in stage if line.startswith("FROM ")]
        # The one that tests run on, as the page of versions has it.
        [tried] = re.findall(r"^\| Python \| (3\.\d+) \|", VERSIONS, re.MULTILINE)
        assert re.fullmatch(rf"python:{re.escape(tried)}\.\d+-slim-\w+", base)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the first stage makes of the files that it is given."""
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


def test_the_image_says_which_commit_it_is_of(installed: Path) -> None:
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
    # It is not where it was built for.
    environment |= {"PYTHONPATH": "/mnt/app", "LD_LIBRARY_PATH": "/mnt/python/lib"}
    with log.open("wb") as output:
        outer = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        until = time.monotonic() + 60
        while not (inner := psutil.Process(outer.pid).children()) or inner[0].uids().real != 10001:
            assert outer.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.05)
        yield inner[0]
        assert outer.wait(60) == 0, log.read_text()
    finally:
        if outer.poll() is None:
            outer.kill()
            outer.wait()


def test_it_is_process_1_without_root_on_a_read_only_system(installed: Path, tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    settings = {"MAINSPRING_STORE": "/tmp/mainspring.db", "MAINSPRING_TASKS_COMMANDS": "true"}
    with contained(installed, log, "up", "--port", str(port), **settings) as process:
        until = time.monotonic() + 100
        while not _answers(f"http://127.0.0.1:{port}/readyz"):
            assert process.is_running(), log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.1)
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert re.search(r"^NSpid:\t\d+\t1$", status, re.MULTILINE)
        assert re.search(r"^CapBnd:\t0+$", status, re.MULTILINE)
        # A job that leaves a process behind: nobody is left unburied.
        script = "touch /nowhere; sleep 0.2 & echo $$; touch /tmp/here"
        body = {"task": "shell", "payload": {"command": ["sh", "-c", script]}}
        assert httpx2.post(f"http://127.0.0.1:{port}/v1/jobs", json=body, trust_env=False).status_code == 201
        here = Path(f"/proc/{process.pid}/root/tmp/here")
        while not here.exists():
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.1)
        time.sleep(1)
        dead = [child for child in process.children(recursive=True) if child.status() == psutil.STATUS_ZOMBIE]
        assert dead == []
        assert not Path("/nowhere").exists()
        process.send_signal(signal.SIGTERM)


def _answers(url: str) -> bool:
    with suppress(httpx2.TransportError):
        return httpx2.get(url, timeout=5, trust_env=False).status_code == 200
    return False
